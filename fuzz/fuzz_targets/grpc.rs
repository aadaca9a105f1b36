//! A hostile message over gRPC must be decoded or rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_gateway::fuzz::grpc(bytes));
