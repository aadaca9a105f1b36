//! A hostile kernel graph must be parsed or rejected.
#![no_main]

mod check_kernel_graph;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_kernel_graph::read_or_refuse(bytes));
