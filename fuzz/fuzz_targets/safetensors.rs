//! Any bytes, read as a file of `.safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::read(bytes, "safetensors"));
