//! Nodes coming up and going down.

use super::View;
use super::functions::AllTimes;
use super::models::Has;
use crate::{Bandwidths, DeviceKey, DeviceSpec, DeviceView, KindKey, MeasuredTransfer, StorageTier};
use smallvec::SmallVec;
use std::cmp::Reverse;
use weir_types::{DeviceId, InvocationId, NodeId, Platform};

/// Transfers between tiers of a node do not depend on the kind of a device.
pub(super) const TRANSFERS: usize = 0;

/// Maximum number of distinct kinds of devices; further kinds count as the last one.
const KINDS_MAX: usize = 256;

/// A node.
#[derive(Debug)]
pub struct NodeView {
    pub(super) devices: Vec<DeviceKey>,
    pub(super) running: u32,
    /// The tier from which the node would load a model that it has not reported.
    origin: StorageTier,
    /// Times of loads onto the node's devices, by kind of device.
    loads: Bandwidths,
    /// Times of transfers between tiers of the node.
    transfers: Bandwidths,
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

    /// Adds a node. Returns its devices.
    pub(crate) fn node_up(&mut self, node: NodeId, specs: Vec<DeviceSpec>) -> Vec<DeviceKey> {
        let mut devices = Vec::new();
        let has_cpu = specs.iter().any(|spec| spec.platform == Platform::Cpu);
        for (ordinal, spec) in (0..).zip(specs) {
            let kind = self.kind(&spec);
            let has_cpu_beside = has_cpu && spec.platform != Platform::Cpu;
            let beside = (has_cpu_beside, self.commitments.ahead_ns());
            let view = DeviceView::new(DeviceId { node, ordinal }, kind, spec, beside);
            let place = self.devices.iter().position(Option::is_none).unwrap_or(self.devices.len());
            let key = DeviceKey(u32::try_from(place).unwrap_or(u32::MAX));
            if view.is_open() {
                self.open.insert((Reverse(0), key));
            } else {
                self.closed.insert((view.free_at_ns(), key));
            }
            match self.devices.get_mut(place) {
                Some(free) => *free = Some(view),
                None => self.devices.push(Some(view)),
            }
            devices.push(key);
        }
        self.eased.extend_from_slice(&devices);
        self.nodes.insert(node, NodeView::new(devices.clone()));
        self.freed += 1;
        self.sum_up();
        devices
    }

    /// Marks a device as down or up. Returns whether its state changed.
    pub(crate) fn set_down(&mut self, key: DeviceKey, is_down: bool) -> bool {
        let Some(was_down) =
            self.device(key).map(DeviceView::is_down).filter(|was_down| *was_down != is_down)
        else {
            return false;
        };
        self.change(key, SmallVec::new(), |view| view.set_down(is_down));
        // Requests that waited for the device, or found no placement, are planned again.
        self.freed += 1;
        if was_down {
            self.eased.push(key);
        }
        true
    }

    /// Sets a device's memory for models. Returns whether it changed.
    pub(crate) fn set_capacity(&mut self, key: DeviceKey, capacity_bytes: u64) -> bool {
        let Some(before_bytes) = self.device(key).map(|device| device.spec().capacity_bytes) else {
            return false;
        };
        self.change(key, SmallVec::new(), |view| view.set_capacity(capacity_bytes));
        let now_bytes = self.device(key).map_or(0, |device| device.spec().capacity_bytes);
        if now_bytes == before_bytes {
            return false;
        }
        // Requests that waited for room, or found no placement, are planned again.
        self.freed += 1;
        if now_bytes > before_bytes {
            self.eased.push(key);
        }
        self.sum_up();
        true
    }

    /// Removes a node. Returns its running invocations, in order, and its devices; `None` if the
    /// node is unknown.
    pub(crate) fn node_down(&mut self, node: NodeId) -> Option<(Vec<InvocationId>, Vec<DeviceKey>)> {
        let NodeView { devices, .. } = self.nodes.remove(&node)?;
        let mut lost: Vec<_> = self.running.extract_if(|_, running| running.node == node).collect();
        lost.sort_unstable_by_key(|(invocation, _)| *invocation);
        for (invocation, running) in &lost {
            self.commitments.unwatch(*invocation, running.overdue_at_ns);
            self.tenants.finish(running.tenant, running.charged_ns, running.charged_ns);
            self.drop_running(running);
        }
        for key in &devices {
            let Some(view) = self.devices.get_mut(key.index()).and_then(Option::take) else { continue };
            if let Some((_, up)) = self.kinds_up.get_mut(view.kind().index()) {
                *up = up.saturating_sub(1);
            }
            self.open.remove(&(Reverse(view.dispatches()), *key));
            self.closed.remove(&(view.free_at_ns(), *key));
            for model in view.all() {
                self.models.moved(model, *key, &view.has(model), &Has::default(), &mut self.tenants);
            }
        }
        self.models.unstage(node);
        self.sum_up();
        Some((lost.into_iter().map(|(invocation, _)| invocation).collect(), devices))
    }

    /// Returns the key of a kind, and counts one more device of it.
    fn kind(&mut self, DeviceSpec { kind, platform, .. }: &DeviceSpec) -> KindKey {
        let known = self.kinds.iter().position(|known| known == kind);
        let at = known.unwrap_or_else(|| {
            if self.kinds.len() < KINDS_MAX {
                self.kinds.push(kind.clone());
                self.kinds_up.push((*platform, 0));
            }
            self.kinds.len() - 1
        });
        if let Some((_, up)) = self.kinds_up.get_mut(at) {
            *up += 1;
        }
        KindKey(u32::try_from(at).unwrap_or(u32::MAX))
    }

    fn sum_up(&mut self) {
        self.capacity_bytes_max = self.devices().map(|(_, device)| device.spec().capacity_bytes).max();
        let slots = self.devices().map(|(_, device)| {
            let spec = device.spec();
            u64::from(spec.slots.min(spec.invocations_max).max(1))
        });
        let slots = slots.sum();
        self.tenants.set_slots(slots);
    }
}

impl NodeView {
    fn new(devices: Vec<DeviceKey>) -> Self {
        let (loads, transfers) = Default::default();
        Self { devices, running: 0, origin: StorageTier::Disk, loads, transfers }
    }

    pub(super) fn set_origin(&mut self, origin: StorageTier) {
        self.origin = origin;
    }

    pub(super) fn origin(&self) -> StorageTier {
        self.origin
    }

    pub(super) fn learn_load(&mut self, kind: usize, tier: StorageTier, bytes: u64, load_time_ns: u64) {
        self.loads.add(kind, tier, bytes, load_time_ns);
    }

    pub(super) fn learn_transfer(&mut self, MeasuredTransfer { from, bytes, time_ns }: &MeasuredTransfer) {
        self.transfers.add(TRANSFERS, *from, *bytes, *time_ns);
    }

    /// Time to load `bytes` onto a device of a kind, as measured on this node; else as measured on
    /// all nodes; else transfer by transfer, measured on this node or on all nodes.
    pub(super) fn by_size_ns(&self, all: &AllTimes, kind: usize, tier: StorageTier, bytes: u64) -> u64 {
        if let Some(time_ns) = self.loads.measured_ns(kind, tier, bytes) {
            return time_ns;
        }
        let transfer_ns = self.transfers.measured_ns(TRANSFERS, tier, bytes);
        let transfer_ns = transfer_ns.or_else(|| all.transfers.measured_ns(TRANSFERS, tier, bytes));
        match (transfer_ns, tier.next()) {
            (Some(transfer_ns), Some(next)) if !all.loads.is_measured(kind, tier) => {
                transfer_ns.saturating_add(self.by_size_ns(all, kind, next, bytes))
            }
            _ => all.loads.by_size_ns(kind, tier, bytes),
        }
    }

    /// The node's devices, by ordinal.
    #[must_use]
    pub fn devices(&self) -> &[DeviceKey] {
        &self.devices
    }

    /// Invocations that run on the node, with and without models.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running
    }
}
