//! A hostile manifest must be parsed or rejected.
#![no_main]

mod check_manifest;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_manifest::read_or_refuse(bytes));
