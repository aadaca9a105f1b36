//! Hostile messages of a worker of models on the CPU must be read or rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_onnx::fuzz::cpu_worker(bytes));
