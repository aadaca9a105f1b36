//! Hostile settings of a trigger, and its records, must be read or rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_triggers::fuzz::trigger(bytes));
