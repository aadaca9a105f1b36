//! The scheduler's guarantees, over random histories of a cluster with delayed messages in both
//! directions.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod models;
mod nodes;
mod steps;
mod world;

use proptest::prelude::*;
use steps::{PromiseStep, step};
use weir_scheduler::{DeviceRule, PolicyKind};
use world::PromiseWorld;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_048) })]

    /// No invocation is lost or starts twice, granted models are never evicted, the queue is
    /// bounded, and every model that an invocation opens fits into the device at that moment.
    /// `PromiseWorld` contains the checks.
    #[test]
    fn promises_hold_over_random_histories(
        policy in prop::sample::select(&PolicyKind::ALL[..]),
        rule in prop::sample::select(&DeviceRule::ALL[..]),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut world = PromiseWorld::new(policy, rule);
        steps.into_iter().for_each(|step| world.take(step));
        world.end();
    }
}

/// A history in which one load uses up an eviction that another load relied on. An eviction list
/// that ends with its invocation gets this wrong: both loads fit when they were promised, and then
/// one of them does not.
#[test]
fn loads_that_rely_on_the_same_victim_all_fit() {
    for (policy, rule) in
        PolicyKind::ALL.into_iter().flat_map(|policy| DeviceRule::ALL.map(|rule| (policy, rule)))
    {
        let mut world = PromiseWorld::new(policy, rule);
        steps().into_iter().for_each(|step| world.take(step));
        world.end();
    }
}

fn steps() -> [PromiseStep; 13] {
    [
        // The device of 10 bytes holds models 0 (4) and 1 (5) from before.
        PromiseStep::Arrive { models: vec![0, 1], deadline_ns: 1_000 },
        PromiseStep::Exchange(9),
        PromiseStep::Open { invocation: 0, model: 0 },
        PromiseStep::Open { invocation: 0, model: 1 },
        PromiseStep::Finish { invocation: 0 },
        PromiseStep::Exchange(9),
        // Both are promised room; then the second loads before the first.
        PromiseStep::Arrive { models: vec![2], deadline_ns: 1_000 },
        PromiseStep::Arrive { models: vec![3], deadline_ns: 1_000 },
        PromiseStep::Exchange(9),
        PromiseStep::Open { invocation: 1, model: 0 },
        PromiseStep::Finish { invocation: 1 },
        PromiseStep::Exchange(9),
        PromiseStep::Open { invocation: 0, model: 0 },
    ]
}
