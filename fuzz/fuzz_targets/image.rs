//! A hostile image must be decoded or rejected.
#![no_main]

mod check_image;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_image::decode_or_refuse(bytes));
