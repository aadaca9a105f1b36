//! A hostile ONNX file must be lowered or rejected.
#![no_main]

mod check_onnx;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_onnx::read_or_refuse(bytes));
