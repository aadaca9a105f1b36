//! Events of invocations, models, devices and nodes: updates the view, and reschedules invocations
//! whose device was lost.

use super::Scheduler;
use super::required::CopyEnd;
use crate::view::InvocationEnd;
use crate::{
    Action, Arrival, DeviceKey, Estimate, Event, PlacementDecision, PlacementRequest, Rejection, Slo, Why,
};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId};

impl Scheduler {
    /// Updates the view.
    pub(super) fn note(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Arrived(_) => {}
            Event::Woken => self.wake_at_ns = None,
            Event::Paused => self.pause(),
            Event::Resumed => self.resume(actions),
            Event::Running { arrival, node, device } => self.adopt(arrival, node, device),
            Event::Started { invocation } => {
                let known = self.view.started(invocation, self.now_ns);
                self.corrections.unknown_invocation += u64::from(!known);
            }
            Event::Finished { invocation, used } => {
                self.over(invocation, InvocationEnd { worked: true, used });
            }
            Event::Failed { invocation, used } => {
                self.over(invocation, InvocationEnd { worked: false, used });
            }
            Event::Cancelled { invocation, .. }
                if self.drop_held(invocation)
                    || self.end_workflow(invocation)
                    || self.release_step(invocation) => {}
            Event::Cancelled { invocation, used } => match self.give_up(invocation) {
                Some(request) => self.view.forget(&request),
                None => self.over(invocation, InvocationEnd { worked: false, used }),
            },
            Event::Loaded { device, model, bytes, load_time_ns, parts } => {
                if let Some(device) = self.key_of(device) {
                    let news = self.view.loaded(device, &model, (bytes, &parts), load_time_ns);
                    self.corrections.residency += u64::from(!news);
                }
            }
            Event::Evicted { device, model } => {
                if let Some(device) = self.key_of(device) {
                    let news = self.view.evicted(device, &model);
                    self.corrections.residency += u64::from(!news);
                }
            }
            Event::Required { models } => {
                self.required.set(models, self.now_ns, &mut self.view, actions);
            }
            Event::Released { device, model } => self.copy_ended(device, &model, CopyEnd::Released),
            Event::LoadFailed { device, model } => self.copy_ended(device, &model, CopyEnd::Failed),
            Event::Staged { node, model, bytes, moved } => {
                if self.view.node(node).is_some() {
                    self.view.staged(node, &model, &bytes, moved.as_ref());
                } else {
                    self.corrections.unknown_device += 1;
                }
            }
            Event::Origin { node, tier } => {
                let known = self.view.set_origin(node, tier);
                self.corrections.unknown_device += u64::from(!known);
            }
            Event::NodeUp { node, devices } => {
                if self.view.node(node).is_some() {
                    self.corrections.node_up_twice += 1;
                    self.node_down(node, actions);
                }
                let devices = self.view.node_up(node, devices);
                self.required.changed(self.now_ns, &mut self.view);
                self.devices_came(&devices);
                self.judge_waiting(actions);
            }
            Event::NodeDown { node } => self.node_down(node, actions),
            Event::DeviceDown { device } => self.device_down(device, actions),
            Event::DeviceUp { device } => {
                if let Some(device) = self.key_of(device) {
                    self.view.set_down(device, false);
                    self.required.changed(self.now_ns, &mut self.view);
                }
            }
            Event::DeviceResized { device, capacity_bytes } => {
                self.device_resized(device, capacity_bytes, actions);
            }
        }
    }

    /// Records that a device no longer keeps a required copy.
    fn copy_ended(&mut self, device: DeviceId, model: &ModelId, end: CopyEnd) {
        let Some(device) = self.key_of(device) else { return };
        let known = self.required.ended(device, model, end, self.now_ns, &mut self.view);
        self.corrections.residency += u64::from(!known);
    }

    /// Adopts an invocation that another scheduler placed.
    fn adopt(&mut self, mut arrival: Arrival, node: NodeId, device: Option<u32>) {
        if self.is_known(arrival.invocation) {
            self.corrections.arrived_twice += 1;
            return;
        }
        let key = device.and_then(|ordinal| self.view.device_key(DeviceId { node, ordinal }));
        if self.view.node(node).is_none() || device.is_some() && key.is_none() {
            self.corrections.unknown_device += 1;
            return;
        }
        self.drop_repeated_models(&mut arrival);
        let request = self.view.resolve(&arrival, self.now_ns);
        let on_device = key.and_then(|key| self.view.device(key));
        let estimate = on_device.map(|device| self.view.estimate(self.now_ns, device, &request));
        let why = Why { estimate: estimate.unwrap_or_default(), ..Why::default() };
        let (evict, evict_elsewhere) = Default::default();
        let placement = PlacementDecision { request, node, device: key, evict, evict_elsewhere, why };
        self.view.place(&placement, self.now_ns);
    }

    fn key_of(&mut self, device: DeviceId) -> Option<DeviceKey> {
        let key = self.view.device_key(device);
        self.corrections.unknown_device += u64::from(key.is_none());
        key
    }

    fn over(&mut self, invocation: InvocationId, end: InvocationEnd) {
        let known = self.view.over(invocation, self.now_ns, end);
        self.corrections.unknown_invocation += u64::from(!known);
    }

    fn node_down(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let Some((lost, devices)) = self.view.node_down(node) else {
            self.corrections.unknown_device += 1;
            return;
        };
        self.required.devices_lost(&devices, self.now_ns, &mut self.view);
        self.policy.devices_gone(&devices, &self.view);
        for request in self.admission.devices_gone(&devices) {
            self.rehouse(request, actions);
        }
        self.devices_left();
        actions.extend(lost.into_iter().map(|invocation| Action::Reject {
            invocation,
            why: Rejection::NodeLost,
            estimate: Estimate::default(),
            alternatives: Vec::new(),
        }));
    }

    fn device_down(&mut self, device: DeviceId, actions: &mut Vec<Action>) {
        let Some(device) = self.key_of(device) else { return };
        if self.view.set_down(device, true) {
            self.required.device_down(device, self.now_ns, &mut self.view, actions);
            self.rehouse_all(device, actions);
        }
    }

    /// Replans the invocations that wait for a device with more or less memory.
    fn device_resized(&mut self, device: DeviceId, capacity_bytes: u64, actions: &mut Vec<Action>) {
        let Some(device) = self.key_of(device) else { return };
        if self.view.set_capacity(device, capacity_bytes) {
            self.required.shrink(device, self.now_ns, &mut self.view, actions);
            self.policy.devices_gone(&[device], &self.view);
            for request in self.admission.device_resized(device) {
                self.rehouse(request, actions);
            }
            self.devices_came(&[device]);
            self.judge_waiting(actions);
        }
    }

    /// Replans the invocations that waited for a device.
    fn rehouse_all(&mut self, device: DeviceKey, actions: &mut Vec<Action>) {
        self.policy.devices_gone(&[device], &self.view);
        for request in self.admission.devices_gone(&[device]) {
            self.rehouse(request, actions);
        }
        self.view.reserve(device, false, false);
    }

    /// Reschedules an invocation that waited for a lost device.
    fn rehouse(&mut self, request: PlacementRequest, actions: &mut Vec<Action>) {
        if request.slo == Slo::NONE {
            self.admission.watch(request.invocation, request.arrived_at_ns);
            self.queue(request);
        } else if self.is_without_devices() && !request.is_step {
            self.judge_later(request, &[]);
        } else if let Err(refused) = self.admission.admit(self.now_ns, &self.view, request, true) {
            match refused.request.is_step {
                true => self.continue_late(refused.request),
                false => self.refuse(*refused, actions),
            }
        }
    }
}
