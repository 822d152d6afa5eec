//! Fuzz target: arbitrary bytes, read as a pickle of Python.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::read_pickle(bytes));
