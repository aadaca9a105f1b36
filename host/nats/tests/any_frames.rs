//! Runs the fuzz target without a fuzzer: on its seeds, and on mutated seeds.

#![allow(clippy::expect_used, clippy::panic, reason = "a folder that cannot be read fails the test")]

#[path = "../../../fuzz/fuzz_targets/check_nats.rs"]
mod check_nats;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

use check_nats::decode_or_refuse;
use proptest::prelude::*;
use seeds::{mutated, seeds};

#[test]
fn fuzz_target_accepts_every_seed() {
    seeds("nats").iter().for_each(|seed| decode_or_refuse(seed));
}

proptest! {
    #[test]
    fn fuzz_target_accepts_mutated_seeds(bytes in mutated("nats")) {
        decode_or_refuse(&bytes);
    }
}
