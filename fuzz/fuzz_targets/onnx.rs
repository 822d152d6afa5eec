//! Fuzz target: arbitrary bytes, checked as an ONNX model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::check_model(bytes));
