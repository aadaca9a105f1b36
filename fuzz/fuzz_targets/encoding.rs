//! A hostile compressed body must be decompressed or rejected, within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_gateway::fuzz::encoding(bytes));
