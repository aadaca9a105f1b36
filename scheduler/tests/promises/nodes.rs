//! The nodes of a cluster: they carry out the scheduler's decisions, check that everything fits,
//! and report events.

use super::models::{SIZES, index, parts, together_bytes};
use super::world::{PromiseWorld, Told};
use std::collections::{BTreeMap, HashSet};
use weir_scheduler::{Action, DeviceSpec, Event, Evictable};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId, Platform};

/// Memory of the devices, by node.
const CAPACITIES: [&[u64]; 2] = [&[10, 7], &[12]];

/// One device of a node.
pub(super) struct PromisedDevice {
    capacity_bytes: u64,
    resident: HashSet<ModelId>,
    evictable: Evictable,
    running: BTreeMap<InvocationId, Vec<ModelId>>,
}

impl PromiseWorld {
    pub(super) fn carry_out(&mut self, action: Action) {
        let (invocation, node, device, evict) = match action {
            Action::Start { invocation, node, device, evict, .. } => (invocation, node, device, evict),
            Action::Load { device: id, model, evict } => {
                return device(&mut self.nodes, id).evictable.require(model, evict);
            }
            Action::Release { device: id, model } => {
                device(&mut self.nodes, id).evictable.release_required(&model);
                return self.to_scheduler.push_back(Event::Released { device: id, model });
            }
            Action::Reserved { invocation, .. } => return self.steps_arrive(invocation),
            Action::Reject { .. } | Action::WakeAt(_) => return,
        };
        let told = &self.invocations[&invocation];
        // Its node went down, and may be up again.
        if told.rejection.is_some() {
            return;
        }
        let models = told.models.clone();
        let devices = self.nodes.get_mut(&node).expect("something was started on a node that is down");
        let device = &mut devices[device.map_or(0, |device| device.ordinal as usize)];
        device.evictable.start(invocation, models.clone(), evict);
        if told.cancelled {
            // The invocation was cancelled, but other placements may rely on its victims already.
            device.evictable.finish(invocation);
            return;
        }
        device.running.insert(invocation, models);
        self.to_scheduler.push_back(Event::Started { invocation });
    }

    /// A running invocation opens a model.
    pub(super) fn open(&mut self, invocation: usize, model: usize) {
        let Some((id, invocation)) = self.running(invocation) else { return };
        let device = device(&mut self.nodes, id);
        let models = &device.running[&invocation];
        if models.is_empty() {
            return;
        }
        let model = models[model % models.len()].clone();
        self.load(id, model);
    }

    /// A device loads one of its required models, if any is missing, or reports that it cannot.
    pub(super) fn load_required(&mut self, at: usize, fails: bool) {
        let Some(id) = self.devices().nth(at) else { return };
        let device = device(&mut self.nodes, id);
        let is_missing = |model: &&ModelId| !device.resident.contains(*model);
        let missing = device.evictable.required().find(is_missing).cloned();
        let Some(model) = missing else { return };
        if fails {
            device.evictable.release_required(&model);
            self.to_scheduler.push_back(Event::LoadFailed { device: id, model });
        } else {
            self.load(id, model);
        }
    }

    /// A granted or required model must fit after the evictable models are evicted.
    fn load(&mut self, id: DeviceId, model: ModelId) {
        let device = device(&mut self.nodes, id);
        if device.resident.contains(&model) {
            return;
        }
        for victim in device.evictable.victims() {
            if device.used_bytes_with(&model) <= device.capacity_bytes {
                break;
            }
            if device.resident.remove(&victim) {
                device.evictable.evicted(&victim);
                self.to_scheduler.push_back(Event::Evicted { device: id, model: victim });
            }
        }
        assert!(
            device.used_bytes_with(&model) <= device.capacity_bytes,
            "{model} was granted and does not fit: {:?} of {} bytes",
            device.resident,
            device.capacity_bytes
        );
        device.resident.insert(model.clone());
        let bytes = SIZES[index(&model)];
        let parts = parts(index(&model));
        let load_time_ns = Some(bytes);
        self.to_scheduler.push_back(Event::Loaded { device: id, model, bytes, load_time_ns, parts });
    }

    pub(super) fn finish(&mut self, invocation: usize) {
        let Some((id, invocation)) = self.running(invocation) else { return };
        self.stop(id, invocation);
        let event = if invocation.0.is_multiple_of(3) {
            Event::Failed { invocation, used: None }
        } else {
            Event::Finished { invocation, used: None }
        };
        self.to_scheduler.push_back(event);
    }

    pub(super) fn cancel(&mut self, invocation: u64) {
        let invocation = InvocationId(invocation);
        let Some(told) = self.invocations.get_mut(&invocation) else { return };
        // The driver cancels each invocation once, and only before it learns of its end.
        if told.cancelled || told.rejection.is_some() || self.over.contains(&invocation) {
            return;
        }
        told.cancelled = true;
        let running = self.nodes.iter().find_map(|(node, devices)| {
            let ordinal = devices.iter().position(|device| device.running.contains_key(&invocation))?;
            Some(DeviceId { node: *node, ordinal: ordinal as u32 })
        });
        match running {
            Some(id) => {
                self.stop(id, invocation);
                self.to_scheduler.push_back(Event::Cancelled { invocation, used: None });
            }
            None if self.to_scheduler.iter().any(|event| is_end_of(event, invocation)) => told_not(told),
            None => self.tell(Event::Cancelled { invocation, used: None }),
        }
    }

    fn stop(&mut self, id: DeviceId, invocation: InvocationId) {
        let device = device(&mut self.nodes, id);
        device.running.remove(&invocation);
        device.evictable.finish(invocation);
    }

    /// A model is unloaded independently of the scheduler, for example because it was deleted.
    /// Granted models stay.
    pub(super) fn unload(&mut self, at: usize, model: usize) {
        let Some(id) = self.devices().nth(at) else { return };
        let device = device(&mut self.nodes, id);
        let mut free: Vec<_> = device.resident.iter().cloned().collect();
        free.retain(|model| !device.evictable.is_granted(model));
        free.sort();
        let Some(model) = free.into_iter().nth(model) else { return };
        device.resident.remove(&model);
        device.evictable.evicted(&model);
        self.to_scheduler.push_back(Event::Evicted { device: id, model });
    }

    fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.nodes.iter().flat_map(|(node, devices)| {
            (0..devices.len() as u32).map(|ordinal| DeviceId { node: *node, ordinal })
        })
    }

    pub(super) fn up(&mut self, node: u32) {
        // A node that was up restarts without reporting that it was down.
        self.leave(node);
        let capacities = CAPACITIES[node as usize];
        let device = |capacity_bytes: &u64| PromisedDevice {
            capacity_bytes: *capacity_bytes,
            resident: HashSet::new(),
            evictable: Evictable::new(),
            running: BTreeMap::new(),
        };
        self.nodes.insert(NodeId(node), capacities.iter().map(device).collect());
        let spec = |capacity_bytes: &u64| DeviceSpec {
            kind: "cpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: *capacity_bytes,
            slots: 2,
            invocations_max: 3,
            rule: self.rule,
        };
        self.tell(Event::NodeUp { node: NodeId(node), devices: capacities.iter().map(spec).collect() });
    }

    /// Takes a node down: the scheduler gets its earlier events, and the node loses the decisions
    /// sent to it.
    pub(super) fn leave(&mut self, node: u32) {
        let node = NodeId(node);
        while let Some(event) = self.to_scheduler.pop_front() {
            self.tell(event);
        }
        self.nodes.remove(&node);
        self.to_nodes.retain(|action| match action {
            Action::Start { node: to, .. } => *to != node,
            Action::Load { device, .. } | Action::Release { device, .. } => device.node != node,
            Action::Reserved { .. } | Action::Reject { .. } | Action::WakeAt(_) => true,
        });
    }

    pub(super) fn running(&self, index: usize) -> Option<(DeviceId, InvocationId)> {
        let all = self.nodes.iter().flat_map(|(node, devices)| {
            (0..).zip(devices).flat_map(move |(ordinal, device)| {
                device.running.keys().map(move |id| (DeviceId { node: *node, ordinal }, *id))
            })
        });
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }
}

impl PromisedDevice {
    /// Bytes that its memory would hold with one more model.
    fn used_bytes_with(&self, model: &ModelId) -> u64 {
        together_bytes(self.resident.iter().chain([model]))
    }
}

fn device(nodes: &mut BTreeMap<NodeId, Vec<PromisedDevice>>, id: DeviceId) -> &mut PromisedDevice {
    &mut nodes.get_mut(&id.node).unwrap()[id.ordinal as usize]
}

fn told_not(told: &mut Told) {
    told.cancelled = false;
}

fn is_end_of(event: &Event, of: InvocationId) -> bool {
    matches!(event, Event::Finished { invocation, .. } | Event::Failed { invocation, .. } if *invocation == of)
}
