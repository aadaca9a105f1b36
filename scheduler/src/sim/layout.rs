//! Layout of simulated devices: their nodes, their kinds, and the outages of nodes.

use super::workload::ModelCosts;
use super::{SimulatedCluster, Workload};
use crate::estimate::round_ns;
use crate::{DeviceKind, DeviceRule, DeviceSpec, Event};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use weir_types::{DeviceId, NodeId, Platform};

/// A kind of device.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedKind {
    /// The kind's name.
    pub name: &'static str,
    /// Memory, relative to the workload's capacity.
    pub capacity: f64,
    /// Load and run times, relative to the workload's times.
    pub time: f64,
}

impl SimulatedKind {
    /// Mixed devices: one in three is small and fast, and one in three is large and slow.
    pub const MIXED: [Self; 3] = [
        Self { name: "plain", capacity: 1.0, time: 1.0 },
        Self { name: "small", capacity: 0.5, time: 0.7 },
        Self { name: "large", capacity: 2.0, time: 2.5 },
    ];
}

/// Outages of nodes. A node loses everything that runs on it, and comes back empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Average time between outages.
    pub every_ns: u64,
    /// Average duration of an outage.
    pub away_ns: u64,
    /// The random seed.
    pub seed: u64,
}

/// Devices by number, node after node. Nodes differ by at most one device.
#[derive(Debug)]
pub(super) struct DeviceLayout {
    nodes: u32,
    devices: u32,
    kinds: Vec<SimulatedKind>,
    capacity_bytes: u64,
    slots: u32,
    rule: DeviceRule,
}

/// Invocations with a grant on a device under [`DeviceRule::CommittedWork`]: as many as a node runs
/// by default.
const INVOCATIONS_MAX: u32 = 1_000;

impl DeviceLayout {
    pub(super) fn new(workload: &Workload, cluster: &SimulatedCluster) -> Self {
        let devices = workload.devices();
        let capacity_bytes = workload.capacity_bytes();
        let SimulatedCluster { slots, rule, .. } = *cluster;
        let nodes = cluster.nodes.clamp(1, devices);
        Self { nodes, devices, kinds: cluster.kinds.clone(), capacity_bytes, slots, rule }
    }

    /// Maximum number of invocations with a grant on a device.
    pub(super) fn invocations_max(&self) -> u32 {
        match self.rule {
            DeviceRule::CountedInvocations => self.slots,
            DeviceRule::CommittedWork => INVOCATIONS_MAX,
        }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        0..self.nodes
    }

    /// The devices of a node.
    pub(super) fn devices_of(&self, node: u32) -> std::ops::Range<u32> {
        let first = |node: u32| {
            let first = u64::from(node) * u64::from(self.devices) / u64::from(self.nodes);
            u32::try_from(first).unwrap_or(self.devices)
        };
        first(node)..first(node + 1)
    }

    pub(super) fn id(&self, device: u32) -> DeviceId {
        // The last node whose first device is not after this device.
        let nodes = (u64::from(device) + 1) * u64::from(self.nodes);
        let node = nodes.div_ceil(u64::from(self.devices)).saturating_sub(1);
        let node = u32::try_from(node).unwrap_or(0).min(self.nodes - 1);
        DeviceId { node: NodeId(node), ordinal: device - self.devices_of(node).start }
    }

    /// The number of a device, if it exists.
    pub(super) fn number(&self, id: DeviceId) -> Option<u32> {
        (id.node.0 < self.nodes).then(|| self.devices_of(id.node.0).nth(id.ordinal as usize)).flatten()
    }

    pub(super) fn kind_name(&self, device: u32) -> DeviceKind {
        self.kind(device).map_or("simulated", |kind| kind.name).into()
    }

    pub(super) fn capacity_bytes(&self, device: u32) -> u64 {
        self.kind(device)
            .map_or(self.capacity_bytes, |kind| round_ns(self.capacity_bytes as f64 * kind.capacity))
    }

    /// Costs of a model on a device.
    pub(super) fn costs(&self, device: u32, costs: ModelCosts) -> ModelCosts {
        let Some(kind) = self.kind(device) else { return costs };
        let time_ns = |ns: u64| round_ns(ns as f64 * kind.time);
        let load_time_ns = time_ns(costs.load_time_ns);
        let run_time_ns = time_ns(costs.run_time_ns).max(1);
        ModelCosts { load_time_ns, run_time_ns, ..costs }
    }

    pub(super) fn up(&self, node: u32) -> Event {
        let spec = |device: u32| DeviceSpec {
            kind: self.kind_name(device),
            platform: Platform::Cpu,
            capacity_bytes: self.capacity_bytes(device),
            slots: self.slots,
            invocations_max: self.invocations_max(),
            rule: self.rule,
        };
        Event::NodeUp { node: NodeId(node), devices: self.devices_of(node).map(spec).collect() }
    }

    /// Outages until `end_ns`, as (node, start, end).
    pub(super) fn losses(&self, losses: Losses, end_ns: u64) -> Vec<(u32, u64, u64)> {
        let mut rng = Pcg64::seed_from_u64(losses.seed);
        let about = |rng: &mut Pcg64, ns: u64| round_ns(ns as f64 * (0.5 + rng.random::<f64>())).max(1);
        let mut back_at_ns = vec![0_u64; self.nodes as usize];
        let mut all = Vec::new();
        let mut at_ns = about(&mut rng, losses.every_ns);
        while at_ns < end_ns {
            let node = rng.random_range(0..self.nodes);
            let up_at_ns = at_ns + about(&mut rng, losses.away_ns);
            if back_at_ns[node as usize] < at_ns {
                back_at_ns[node as usize] = up_at_ns;
                all.push((node, at_ns, up_at_ns));
            }
            at_ns += about(&mut rng, losses.every_ns);
        }
        all
    }

    /// Kinds are assigned to devices round-robin.
    fn kind(&self, device: u32) -> Option<&SimulatedKind> {
        self.kinds.get(device as usize % self.kinds.len().max(1))
    }
}
