//! Hostile messages of a worker of a GPU must be read or rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_cuda::fuzz::gpu_worker(bytes));
