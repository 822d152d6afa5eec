//! Fuzz target: arbitrary bytes, read as a ZIP archive of images.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::read_zip(bytes));
