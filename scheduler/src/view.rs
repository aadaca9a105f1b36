//! What the scheduler knows: nodes, their devices, what is in their memory, and what runs on them.

mod device;
pub use device::{Candidate, DeviceView};

use crate::{DeviceSpec, LoadTimes, Placement};
use std::collections::{BTreeMap, HashMap};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

/// The cluster as the scheduler sees it. Policies read it; only [`Scheduler`](crate::Scheduler) changes it.
#[derive(Debug, Default)]
pub struct View {
    nodes: BTreeMap<NodeId, NodeView>,
    running: HashMap<InvocationId, Running>,
    load_times: LoadTimes,
    /// Counts grants, to tell which model was used last.
    clock: u64,
    freed: u64,
}

/// One node.
#[derive(Debug)]
pub struct NodeView {
    devices: Vec<DeviceView>,
    running: u32,
}

/// An invocation that was told to start.
#[derive(Debug)]
struct Running {
    node: NodeId,
    grant: Option<Grant>,
    started_at_ns: u64,
}

#[derive(Debug)]
struct Grant {
    ordinal: u32,
    models: Vec<ModelId>,
}

impl View {
    /// The nodes that are up.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeView)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// A node, if it is up.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&NodeView> {
        self.nodes.get(&node)
    }

    /// The devices of all nodes that are up.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceView)> {
        self.nodes.iter().flat_map(|(node, view)| {
            let numbered = (0..).zip(&view.devices);
            numbered.map(|(ordinal, device)| (DeviceId { node: *node, ordinal }, device))
        })
    }

    /// A device, if its node is up.
    #[must_use]
    pub fn device(&self, device: DeviceId) -> Option<&DeviceView> {
        self.nodes.get(&device.node)?.devices.get(usize::try_from(device.ordinal).ok()?)
    }

    /// What loads have cost so far.
    #[must_use]
    pub fn load_times(&self) -> &LoadTimes {
        &self.load_times
    }

    /// Invocations that were told to start and are not over.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Rises whenever something ends, leaves or comes up: what had no place before may have one now.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    pub(crate) fn is_running(&self, invocation: InvocationId) -> bool {
        self.running.contains_key(&invocation)
    }

    /// Book a placement.
    pub(crate) fn place(&mut self, placement: &mut Placement, now_ns: u64) {
        let Some(node) = self.nodes.get_mut(&placement.node) else { return };
        self.clock += 1;
        node.running += 1;
        let arrival = &mut placement.arrival;
        let grant = placement.device.and_then(|device| {
            let view = node.devices.get_mut(usize::try_from(device.ordinal).ok()?)?;
            view.grant(&arrival.models, &placement.evict, self.clock);
            let models = std::mem::take(&mut arrival.models).into_iter().map(|demand| demand.model).collect();
            Some(Grant { ordinal: device.ordinal, models })
        });
        let running = Running { node: placement.node, grant, started_at_ns: now_ns };
        self.running.insert(arrival.invocation, running);
    }

    /// An invocation does run. False if it is not known.
    pub(crate) fn started(&mut self, invocation: InvocationId, now_ns: u64) -> bool {
        self.running.get_mut(&invocation).map(|running| running.started_at_ns = now_ns).is_some()
    }

    /// An invocation is over. False if it is not known. Only those that did their work say how long that takes.
    pub(crate) fn over(&mut self, invocation: InvocationId, now_ns: u64, worked: bool) -> bool {
        let Some(Running { node, grant, started_at_ns }) = self.running.remove(&invocation) else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(&node) else { return true };
        node.running = node.running.saturating_sub(1);
        if let Some(Grant { ordinal, models }) = grant
            && let Some(device) = usize::try_from(ordinal).ok().and_then(|at| node.devices.get_mut(at))
        {
            let run_time_ns = worked.then(|| now_ns.saturating_sub(started_at_ns));
            device.release(&models, run_time_ns);
            self.freed += 1;
        }
        true
    }

    /// A model is in a device's memory. False if the device is not known, or the model was there already.
    pub(crate) fn loaded(
        &mut self,
        device: DeviceId,
        model: ModelId,
        bytes: u64,
        load_time_ns: Option<u64>,
    ) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let Some(view) = device_mut(&mut self.nodes, device) else { return false };
        if let Some(load_time_ns) = load_time_ns {
            self.load_times.add(&view.spec().kind, &model, bytes, load_time_ns);
        }
        self.freed += 1;
        view.loaded(model, bytes, clock)
    }

    /// A model is not in a device's memory any more. False if it was not.
    pub(crate) fn evicted(&mut self, device: DeviceId, model: &ModelId) -> bool {
        let evicted = device_mut(&mut self.nodes, device).is_some_and(|view| view.evicted(model));
        self.freed += u64::from(evicted);
        evicted
    }

    pub(crate) fn node_up(&mut self, node: NodeId, devices: Vec<DeviceSpec>) {
        let devices = devices.into_iter().map(DeviceView::new).collect();
        self.nodes.insert(node, NodeView { devices, running: 0 });
        self.freed += 1;
    }

    /// Forget a node. Returns what ran there, in order, or none if the node is not known.
    pub(crate) fn node_down(&mut self, node: NodeId) -> Option<Vec<InvocationId>> {
        self.nodes.remove(&node)?;
        let mut lost: Vec<_> =
            self.running.extract_if(|_, running| running.node == node).map(|(id, _)| id).collect();
        lost.sort_unstable();
        Some(lost)
    }
}

impl NodeView {
    /// Its devices, by ordinal.
    #[must_use]
    pub fn devices(&self) -> &[DeviceView] {
        &self.devices
    }

    /// Invocations that run on it, with and without models.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running
    }
}

fn device_mut(nodes: &mut BTreeMap<NodeId, NodeView>, device: DeviceId) -> Option<&mut DeviceView> {
    nodes.get_mut(&device.node)?.devices.get_mut(usize::try_from(device.ordinal).ok()?)
}
