//! A hostile workflow document must be parsed or rejected.
#![no_main]

mod check_workflow;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_workflow::read_or_refuse(bytes));
