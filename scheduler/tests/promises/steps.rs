//! Random steps of a cluster's history.

use super::models::{SIZES, model};
use proptest::prelude::*;
use weir_scheduler::{Event, Part, PartId};
use weir_types::{DeviceId, InvocationId, NodeId};

/// A step. Numbers are taken modulo the number of candidates.
#[derive(Debug, Clone)]
pub(crate) enum PromiseStep {
    Arrive {
        models: Vec<usize>,
        deadline_ns: u64,
    },
    /// Delivers at most this many decisions to the nodes, and as many events to the scheduler.
    Exchange(usize),
    Open {
        invocation: usize,
        model: usize,
    },
    Finish {
        invocation: usize,
    },
    Cancel {
        invocation: usize,
    },
    Unload {
        device: usize,
        model: usize,
    },
    Down {
        node: u32,
    },
    Up {
        node: u32,
    },
    Time {
        ns: i64,
    },
    /// Devices are to keep copies of these models.
    Require {
        models: Vec<usize>,
        copies_min: u32,
    },
    /// A device loads a required model, or fails to.
    LoadRequired {
        device: usize,
        fails: bool,
    },
    Nonsense(Event),
}

pub(crate) fn step() -> impl Strategy<Value = PromiseStep> {
    let models = prop::collection::vec(0..SIZES.len(), 0..4);
    let required = prop::collection::vec(0..SIZES.len(), 0..4);
    prop_oneof![
        1 => (required, 1_u32..4)
            .prop_map(|(models, copies_min)| PromiseStep::Require { models, copies_min }),
        4 => (0_usize..3, prop::bool::weighted(0.2))
            .prop_map(|(device, fails)| PromiseStep::LoadRequired { device, fails }),
        8 => (models, 1_u64..100).prop_map(|(models, deadline_ns)| PromiseStep::Arrive { models, deadline_ns }),
        8 => (1_usize..6).prop_map(PromiseStep::Exchange),
        8 => (0_usize..8, 0_usize..4).prop_map(|(invocation, model)| PromiseStep::Open { invocation, model }),
        5 => (0_usize..8).prop_map(|invocation| PromiseStep::Finish { invocation }),
        1 => (0_usize..64).prop_map(|invocation| PromiseStep::Cancel { invocation }),
        1 => (0_usize..3, 0_usize..4).prop_map(|(device, model)| PromiseStep::Unload { device, model }),
        1 => (0_u32..2).prop_map(|node| PromiseStep::Down { node }),
        1 => (0_u32..2).prop_map(|node| PromiseStep::Up { node }),
        3 => (-20_i64..50).prop_map(|ns| PromiseStep::Time { ns }),
        2 => nonsense().prop_map(PromiseStep::Nonsense),
    ]
}

/// Events about unknown things, or with absurd numbers, which must not affect the guarantees for
/// everything else.
fn nonsense() -> impl Strategy<Value = Event> {
    let nobody = InvocationId(u64::MAX);
    let nowhere = |node, ordinal| DeviceId { node: NodeId(node), ordinal };
    prop_oneof![
        Just(Event::Started { invocation: nobody }),
        Just(Event::Finished { invocation: nobody, used: None }),
        Just(Event::Failed { invocation: nobody, used: None }),
        Just(Event::Cancelled { invocation: nobody, used: None }),
        Just(Event::NodeDown { node: NodeId(9) }),
        Just(Event::Evicted { device: nowhere(0, 0), model: model(99) }),
        Just(Event::Evicted { device: nowhere(9, 0), model: model(0) }),
        Just(Event::Loaded {
            device: nowhere(0, u32::MAX),
            model: model(0),
            bytes: u64::MAX,
            load_time_ns: Some(u64::MAX),
            parts: vec![Part { id: PartId(1), bytes: u64::MAX }],
        }),
        Just(Event::Woken),
    ]
}
