//! A body of the Open Inference Protocol, as hostile as it gets: it must be read or refused, and nothing outside of it touched.
#![no_main]

mod check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check::read_or_refuse(bytes));
