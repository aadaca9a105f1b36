//! Placement by the location of inputs, weighed by the time to move them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use proptest::prelude::*;
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, InputsOn, ModelDemand, Network, PolicyKind,
    PolicyOptions, Scheduler, Settings,
};
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const MS: u64 = 1_000_000;
const MB: u64 = 1_000_000;
/// Run time.
const RUN_MS: u64 = 20;

/// Nodes with one device each, which holds the model and runs one invocation at a time.
struct Nodes {
    scheduler: Scheduler,
    now_ns: u64,
}

/// A node, and the expected time to move inputs to it.
type InputPlace = (u32, u64);

fn model() -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) }
}

impl Nodes {
    fn new(policy: PolicyKind, nodes: u32) -> Self {
        let network = Network { bytes_per_second: 1_000 * MB, round_trip_ns: MS };
        let settings = Settings { network, ..Settings::default() };
        let scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let mut all = Self { scheduler, now_ns: 0 };
        for node in (0..nodes).map(NodeId) {
            let device = DeviceSpec {
                platform: Platform::Cpu,
                kind: "cpu".into(),
                capacity_bytes: 10,
                slots: 1,
                invocations_max: 1,
                rule: DeviceRule::default(),
            };
            all.tell(Event::NodeUp { node, devices: vec![device] });
            let device = DeviceId { node, ordinal: 0 };
            all.tell(Event::Loaded {
                device,
                model: model(),
                bytes: 5,
                load_time_ns: None,
                parts: Vec::new(),
            });
        }
        all
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        actions
    }

    /// The node on which the invocation starts at once, and the best alternative.
    fn arrive(&mut self, id: u64, inputs: &[(u32, u64)]) -> Option<(InputPlace, Option<InputPlace>)> {
        let inputs = inputs.iter().map(|(node, bytes)| InputsOn { node: NodeId(*node), bytes: *bytes });
        let ModelId { tenant, name, version } = model();
        let demand = ModelDemand {
            model: model(),
            bytes: 5,
            load_time_ns: None,
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        };
        let actions = self.tell(Event::Arrived(Arrival {
            invocation: InvocationId(id),
            function: FunctionId { tenant, name, version },
            models: vec![demand],
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: Some(RUN_MS * MS),
            run_times_ns: Vec::new(),
            slo: None,
            inputs: inputs.collect(),
            batch_items_max: 0,
            is_splittable: false,
            steps: Vec::new(),
        }));
        actions.into_iter().find_map(|action| match action {
            Action::Start { node, why, .. } => {
                let other = why.alternatives.first();
                let other = other.map(|other| (other.device.node.0, other.estimate.move_time_ns));
                Some(((node.0, why.estimate.move_time_ns), other))
            }
            _ => None,
        })
    }
}

#[test]
fn large_inputs_run_on_their_node_and_the_placement_explains_it() {
    let mut nodes = Nodes::new(PolicyKind::FinishFirst, 2);
    assert_eq!(nodes.arrive(1, &[(1, 100 * MB)]).unwrap(), ((1, 0), Some((0, 101 * MS))));
    // The reverse case, with most of the input on the other node.
    let mut nodes = Nodes::new(PolicyKind::FinishFirst, 2);
    assert_eq!(nodes.arrive(1, &[(0, 100 * MB), (1, 5 * MB)]).unwrap(), ((0, 6 * MS), Some((1, 101 * MS))));
}

#[test]
fn calls_wait_for_the_node_of_their_inputs_only_if_moving_takes_longer() {
    let mut nodes = Nodes::new(PolicyKind::FinishFirst, 2);
    assert_eq!(nodes.arrive(1, &[(1, MB)]).unwrap().0.0, 1);
    // Node 1 is busy for 20 ms.
    assert_eq!(nodes.arrive(2, &[(1, 100 * MB)]), None, "moving takes 101 ms: it waits for its node");
    assert_eq!(nodes.arrive(3, &[(1, 5 * MB)]).unwrap(), ((0, 6 * MS), Some((1, 0))), "moving takes 6 ms");
    nodes.now_ns = RUN_MS * MS;
    let actions = nodes.tell(Event::Finished { invocation: InvocationId(1), used: None });
    let started = actions.iter().find_map(|action| match action {
        Action::Start { invocation, node, .. } => Some((invocation.0, node.0)),
        _ => None,
    });
    assert_eq!(started, Some((2, 1)));
}

#[test]
fn other_policies_ignore_inputs() {
    for policy in PolicyKind::ALL.iter().copied().filter(|policy| *policy != PolicyKind::FinishFirst) {
        let with = Nodes::new(policy, 3).arrive(1, &[(2, 1_000 * MB)]).map(|((node, _), _)| node);
        let without = Nodes::new(policy, 3).arrive(1, &[]).map(|((node, _), _)| node);
        assert_eq!(with, without, "{policy:?}");
    }
}

proptest! {
    /// Among otherwise equal nodes, the node with the shortest move time is chosen.
    #[test]
    fn least_move_time_wins_between_equal_nodes(inputs in prop::collection::vec((0_u32..4, 1_u64..1_000 * MB), 0..4), nodes in 2_u32..40) {
        let ((on, move_time_ns), _) = Nodes::new(PolicyKind::FinishFirst, nodes).arrive(1, &inputs).unwrap();
        let network = Network { bytes_per_second: 1_000 * MB, round_trip_ns: MS };
        let inputs: Vec<_> =
            inputs.iter().map(|(node, bytes)| InputsOn { node: NodeId(*node), bytes: *bytes }).collect();
        let least_ns = (0..nodes).map(|node| network.move_time_ns(&inputs, NodeId(node))).min().unwrap();
        prop_assert_eq!(move_time_ns, least_ns);
        prop_assert_eq!(network.move_time_ns(&inputs, NodeId(on)), least_ns);
    }
}
