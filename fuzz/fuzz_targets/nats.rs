//! Hostile bytes of a server of NATS must be decoded or rejected.
#![no_main]

mod check_nats;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_nats::decode_or_refuse(bytes));
