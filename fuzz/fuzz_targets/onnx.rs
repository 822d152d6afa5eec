//! Any bytes, opened as an ONNX model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trueshot_fuzz::open_model(bytes));
