//! A hostile body of the Open Inference Protocol must be parsed or rejected, without touching
//! memory outside of it.
#![no_main]

mod check_request;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_request::read_or_refuse(bytes));
