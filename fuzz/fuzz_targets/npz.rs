//! Fuzz target: arbitrary bytes, read as a `.npz` file of embeddings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::read(bytes, "npz"));
