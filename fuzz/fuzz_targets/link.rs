//! Hostile bytes on the link between a node and the dispatcher must be decoded or rejected.
#![no_main]

mod check_link;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_link::decode_or_refuse(bytes));
