//! Running invocations, from placement to end.

use super::{DeviceView, View};
use crate::policy::Demand;
use crate::{DeviceKey, Estimate, FunctionKey, ModelKey, Placement, TenantKey};
use smallvec::SmallVec;
use weir_types::{InvocationId, NodeId};

/// An invocation that was started.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) node: NodeId,
    device: Option<DeviceKey>,
    models: SmallVec<[ModelKey; 1]>,
    /// The models of `models` that were not on the device.
    pub(super) missing: SmallVec<[ModelKey; 1]>,
    function: FunctionKey,
    pub(super) tenant: TenantKey,
    batch: u32,
    started_at_ns: u64,
    /// Measured duration of the loads that the invocation waited for.
    pub(super) load_time_ns: u64,
    end_ns: u64,
    pub(super) charged_ns: u64,
}

impl View {
    /// Number of invocations that were started and have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn is_running(&self, invocation: InvocationId) -> bool {
        self.running.contains_key(&invocation)
    }

    /// Records a placement. The running invocation takes over the references of its request.
    pub(crate) fn place(&mut self, placement: &Placement, now_ns: u64) {
        self.clock += 1;
        let clock = self.clock;
        let Placement { request, node, device, evict, evict_elsewhere, why } = placement;
        for (device, model) in evict_elsewhere {
            self.change(*device, SmallVec::from_slice(&[*model]), |view| view.give_up(*model));
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.running += 1;
        }
        for demand in &request.models {
            self.models.get_mut(demand.model).waits_no_more();
        }
        let Estimate { load_time_ns, run_time_ns, .. } = why.estimate;
        let charged_ns = load_time_ns.saturating_add(run_time_ns);
        let there_at_ns = now_ns.saturating_add(why.estimate.ready_after_ns());
        let end_ns = there_at_ns.saturating_add(run_time_ns);
        let mut missing = SmallVec::new();
        if let Some(device) = *device {
            let view = self.devices.get(device.index()).and_then(Option::as_ref);
            let lacks = |demand: &&Demand| view.is_some_and(|view| !view.holds(demand.model));
            missing = request.models.iter().filter(lacks).map(|demand| demand.model).collect();
            let touched =
                request.models.iter().map(|demand| demand.model).chain(evict.iter().copied()).collect();
            self.change(device, touched, |view| {
                view.grant((request.invocation, end_ns, there_at_ns), &request.models, evict, clock);
            });
        }
        let running = Running {
            node: *node,
            device: *device,
            models: request.models.iter().map(|demand| demand.model).collect(),
            missing,
            function: request.function,
            tenant: request.tenant,
            batch: request.batch,
            started_at_ns: now_ns,
            load_time_ns: 0,
            end_ns,
            charged_ns,
        };
        self.tenants.start(request.tenant, charged_ns);
        self.running.insert(request.invocation, running);
    }

    /// Records that an invocation has begun to run. Returns whether the invocation is known.
    pub(crate) fn started(&mut self, invocation: InvocationId, now_ns: u64) -> bool {
        let Some(running) = self.running.get_mut(&invocation) else { return false };
        let late_ns = now_ns.saturating_sub(running.started_at_ns);
        let (before_ns, end_ns) = (running.end_ns, running.end_ns.saturating_add(late_ns));
        running.started_at_ns = now_ns;
        running.end_ns = end_ns;
        if let Some(device) = running.device.filter(|_| late_ns > 0) {
            self.change(device, SmallVec::new(), |view| view.expect_end(invocation, before_ns, end_ns));
        }
        true
    }

    /// Records the end of an invocation. Returns whether the invocation is known. Only invocations
    /// that succeeded (`worked`) update the run times.
    pub(crate) fn over(&mut self, invocation: InvocationId, now_ns: u64, worked: bool) -> bool {
        let Some(running) = self.running.remove(&invocation) else { return false };
        let taken_ns = now_ns.saturating_sub(running.started_at_ns);
        self.tenants.finish(running.tenant, running.charged_ns, taken_ns);
        if let Some(node) = self.nodes.get_mut(&running.node) {
            node.running = node.running.saturating_sub(1);
        }
        if let Some(key) = running.device {
            let models = running.models.clone();
            // On platforms that overlap computation with loads, a cold run takes less than load and
            // run time together. A cold run counts only while no better measurement exists.
            let says_run_time = |device: &&DeviceView| {
                let may_overlap =
                    device.spec().platform.computes_behind_loads() && !running.missing.is_empty();
                let is_known = self.functions.get(running.function.0).count(device.kind().index()) > 0;
                worked && !(may_overlap && is_known)
            };
            if let Some(kind) = self.device(key).filter(says_run_time).map(|device| device.kind().index()) {
                let run_time_ns = taken_ns.saturating_sub(running.load_time_ns);
                self.functions.get_mut(running.function.0).add(kind, running.batch, run_time_ns);
                self.run_times.add(kind, running.batch, run_time_ns);
            }
            self.change(key, models.clone(), |device| {
                device.release((invocation, running.end_ns), &models, worked.then_some(taken_ns));
            });
            self.eased.push(key);
        }
        // Even an invocation without a device frees part of its tenant's limit on running
        // invocations.
        self.freed += 1;
        self.drop_running(&running);
        true
    }

    /// Releases the references of an invocation that has ended.
    pub(super) fn drop_running(&mut self, running: &Running) {
        for model in &running.models {
            self.models.release(*model);
        }
        self.functions.release(running.function.0);
        self.tenants.release(running.tenant);
    }
}
