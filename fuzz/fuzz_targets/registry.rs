//! Hostile records of deployments must be read or skipped.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_control::fuzz::registry(bytes));
