//! Running invocations, from placement to end.

use super::committed::Commitment;
use super::device::DeviceGrant;
use super::{DeviceView, View};
use crate::policy::OpenableModel;
use crate::{
    DeviceKey, DeviceUse, Estimate, FunctionKey, ModelKey, PlacementDecision, PlacementRequest, TenantKey,
};
use smallvec::SmallVec;
use weir_types::{InvocationId, NodeId};

/// An invocation that was started.
#[derive(Debug)]
pub(super) struct StartedInvocation {
    pub(super) node: NodeId,
    device: Option<DeviceKey>,
    models: SmallVec<[ModelKey; 1]>,
    /// The models of `models` that were not on the device.
    pub(super) missing: SmallVec<[ModelKey; 1]>,
    /// The models of `models` that the device has not loaded yet.
    loading: SmallVec<[ModelKey; 1]>,
    /// Its predicted work on the device.
    predicted: Commitment,
    /// The part of `predicted` that is committed now.
    work: Commitment,
    /// When the work lapses; `u64::MAX` if it has, or is not committed.
    pub(super) overdue_at_ns: u64,
    function: FunctionKey,
    pub(super) tenant: TenantKey,
    batch: u32,
    placed_at_ns: u64,
    started_at_ns: u64,
    /// Measured duration of the loads that the invocation waited for.
    pub(super) load_time_ns: u64,
    end_ns: u64,
    pub(super) charged_ns: u64,
    /// Expected time from the start of its first run to its end.
    to_end_ns: u64,
}

/// The end of an invocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InvocationEnd {
    /// Whether the invocation succeeded, so that its times are learned.
    pub(crate) worked: bool,
    /// Its use of the device, if it was measured.
    pub(crate) used: Option<DeviceUse>,
}

/// Least committed device time of an invocation that waits for a load and whose run time is not
/// known, as a multiple of the work that may be committed ahead.
const UNKNOWN_RUN_MULTIPLE: u64 = 2;

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
    pub(crate) fn place(&mut self, placement: &PlacementDecision, now_ns: u64) {
        self.clock += 1;
        let clock = self.clock;
        let PlacementDecision { request, node, device, evict, evict_elsewhere, why } = placement;
        for (device, model) in evict_elsewhere {
            self.change(*device, SmallVec::from_slice(&[*model]), |view| view.give_up(*model));
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.running += 1;
        }
        for demand in &request.models {
            self.models.get_mut(demand.model).waits_no_more();
        }
        let Estimate { load_time_ns, .. } = why.estimate;
        let loading = self.not_loaded(*device, request);
        let work = self.work(*device, request, &why.estimate, !loading.is_empty());
        let charged_ns = load_time_ns.saturating_add(work.added_ns());
        let there_at_ns = now_ns.saturating_add(why.estimate.ready_after_ns());
        let to_end_ns = why.estimate.run_time_ns.saturating_add(why.estimate.off_device_ns);
        let end_ns = there_at_ns.saturating_add(to_end_ns);
        let mut missing = SmallVec::<[ModelKey; 1]>::new();
        if let Some(device) = *device {
            let view = self.devices.get(device.index()).and_then(Option::as_ref);
            let lacks = |demand: &&OpenableModel| view.is_some_and(|view| !view.holds(demand.model));
            missing = request.models.iter().filter(lacks).map(|demand| demand.model).collect();
            let touched =
                request.models.iter().map(|demand| demand.model).chain(evict.iter().copied()).collect();
            let grant = DeviceGrant {
                invocation: request.invocation,
                function: request.function,
                end_ns,
                there_at_ns,
                load_time_ns,
                work,
                now_ns,
                items: (request.batch, request.batch_items_max),
            };
            self.change(device, touched, |view| view.grant(&grant, &request.models, evict, clock));
            if self.device(device).is_some_and(DeviceView::forms_batches) {
                self.commitments.forms_on(device);
            }
        }
        let counts_work = device.and_then(|device| self.device(device)).is_some_and(DeviceView::counts_work);
        let overdue_at_ns = match counts_work {
            true => self.commitments.watch(request.invocation, there_at_ns, to_end_ns),
            false => u64::MAX,
        };
        let running = StartedInvocation {
            node: *node,
            device: *device,
            models: request.models.iter().map(|demand| demand.model).collect(),
            loading,
            missing,
            predicted: work,
            work,
            overdue_at_ns,
            function: request.function,
            tenant: request.tenant,
            batch: request.batch,
            placed_at_ns: now_ns,
            started_at_ns: now_ns,
            load_time_ns: 0,
            end_ns,
            charged_ns,
            to_end_ns,
        };
        self.tenants.start(request.tenant, charged_ns);
        self.running.insert(request.invocation, running);
    }

    /// The models of `request` that run on the device and are not loaded there.
    fn not_loaded(&self, device: Option<DeviceKey>, request: &PlacementRequest) -> SmallVec<[ModelKey; 1]> {
        let Some(device) = device.and_then(|device| self.device(device)) else { return SmallVec::new() };
        let models = device.own(&request.models).map(|demand| demand.model);
        models.filter(|model| !device.has_loaded(*model)).collect()
    }

    /// The work that `request` commits to a device, with this estimate.
    fn work(
        &self,
        device: Option<DeviceKey>,
        request: &PlacementRequest,
        estimate: &Estimate,
        is_loading: bool,
    ) -> Commitment {
        let Some(device) = device.and_then(|device| self.device(device)) else {
            return Commitment::new(estimate.run_time_ns, estimate.run_time_ns, 0, 0);
        };
        let Estimate { run_time_ns, off_device_ns, load_time_ns, .. } = *estimate;
        let joined = device.batch_joined_by(request);
        let added_ns = joined.and_then(|items| {
            let run = &self.functions.get(request.function.0).run;
            run.added_ns(device.kind().index(), items, request.batch)
        });
        // Invocations that are placed during a load all run right after it. If their run time is not
        // known, few are placed.
        let run_time_ns = match !is_loading || self.knows_run_time(device, request) {
            true => run_time_ns,
            false => run_time_ns.max(UNKNOWN_RUN_MULTIPLE * self.commitments.ahead_ns()),
        };
        let added_ns = added_ns.unwrap_or(run_time_ns);
        let work = Commitment::new(run_time_ns, added_ns, off_device_ns, load_time_ns);
        if is_loading { work.loading() } else { work }
    }

    /// Records that the device has started the first run of an invocation. Returns whether the
    /// invocation is known.
    pub(crate) fn started(&mut self, invocation: InvocationId, now_ns: u64) -> bool {
        let Some(running) = self.running.get_mut(&invocation) else { return false };
        let device = running.device.and_then(|key| self.devices.get(key.index())?.as_ref());
        let counts_work = device.is_some_and(DeviceView::counts_work);
        let end_before_ns = running.end_ns;
        let work_before = running.work;
        let late_ns = now_ns.saturating_sub(running.started_at_ns);
        running.started_at_ns = now_ns;
        if counts_work {
            running.end_ns = now_ns.saturating_add(running.to_end_ns);
            // Models that it has not loaded by now, it may never open.
            running.loading.clear();
            running.work = running.predicted.loaded();
            self.commitments.unwatch(invocation, running.overdue_at_ns);
            running.overdue_at_ns = self.commitments.watch(invocation, now_ns, running.to_end_ns);
        } else {
            running.end_ns = running.end_ns.saturating_add(late_ns);
        }
        let end_ns = running.end_ns;
        let work = running.work;
        let Some(device) = running.device else { return true };
        self.change(device, SmallVec::new(), |view| {
            view.expect_end(invocation, end_before_ns, end_ns);
            view.recommit(&work_before, &work);
        });
        if work != work_before {
            self.freed += 1;
            self.eased.push(device);
        }
        true
    }

    /// When the work of an invocation lapses.
    pub(crate) fn lapse_at_ns(&self) -> Option<u64> {
        self.commitments.overdue_at_ns()
    }

    /// Releases the device time committed for an invocation that has run much longer than
    /// predicted. The scheduler assumes that such an invocation waits for something other than the
    /// device.
    pub(super) fn lapse(&mut self, invocation: InvocationId) {
        let Some(running) = self.running.get_mut(&invocation) else { return };
        running.overdue_at_ns = u64::MAX;
        running.loading.clear();
        let before = running.work;
        let now = running.predicted.lapsed();
        running.work = now;
        let Some(device) = running.device else { return };
        self.change(device, SmallVec::new(), |view| view.recommit(&before, &now));
        self.freed += 1;
        self.eased.push(device);
    }

    /// Records that a model was loaded that invocations on the device wait for. Returns whether
    /// that changes the device's committed work.
    pub(super) fn load_ended(&mut self, key: DeviceKey, model: ModelKey) -> bool {
        let Some(device) = self.device(key).filter(|device| device.awaits_loads()) else { return false };
        let mut news = SmallVec::<[(Commitment, Commitment); 4]>::new();
        for invocation in device.runs().collect::<SmallVec<[InvocationId; 8]>>() {
            let Some(running) = self.running.get_mut(&invocation) else { continue };
            let before = running.loading.len();
            running.loading.retain(|loading| *loading != model);
            if before > 0 && running.loading.is_empty() {
                news.push((running.work, running.work.loaded()));
                running.work = running.work.loaded();
            }
        }
        self.change(key, SmallVec::new(), |view| {
            news.iter().for_each(|(before, now)| view.recommit(before, now));
        });
        !news.is_empty()
    }

    /// Records the end of an invocation. Returns whether the invocation is known. Only invocations
    /// that succeeded update the learned times.
    pub(crate) fn over(&mut self, invocation: InvocationId, now_ns: u64, end: InvocationEnd) -> bool {
        let Some(running) = self.running.remove(&invocation) else { return false };
        self.commitments.unwatch(invocation, running.overdue_at_ns);
        let InvocationEnd { worked, used } = end;
        // The device time is charged, whether the invocation succeeded or not.
        let taken_ns = match used {
            Some(used) => used.device_time_ns.saturating_add(running.load_time_ns),
            None if worked => now_ns.saturating_sub(running.started_at_ns),
            // Its node was lost, or its use is not known: it may not have used the device at all.
            None => now_ns.saturating_sub(running.started_at_ns).min(running.charged_ns),
        };
        self.tenants.finish(running.tenant, running.charged_ns, taken_ns);
        if let Some(node) = self.nodes.get_mut(&running.node) {
            node.running = node.running.saturating_sub(1);
        }
        if let Some(key) = running.device {
            let models = running.models.clone();
            if worked {
                self.learn_run(key, &running, now_ns, used);
            }
            self.change(key, models.clone(), |device| {
                let ended = (invocation, running.end_ns);
                device.release(ended, &models, &running.work, worked.then_some(taken_ns));
            });
            self.eased.push(key);
        }
        // Even an invocation without a device frees part of its tenant's limit on running
        // invocations.
        self.freed += 1;
        self.drop_running(&running);
        true
    }

    /// Learns the times of an invocation that succeeded.
    fn learn_run(
        &mut self,
        key: DeviceKey,
        running: &StartedInvocation,
        now_ns: u64,
        used: Option<DeviceUse>,
    ) {
        let Some(device) = self.device(key) else { return };
        let kind = device.kind().index();
        // On platforms that overlap computation with loads, a cold run takes less than load and run
        // time together, and also prepares the device. It says nothing about other runs.
        if device.spec().platform.computes_behind_loads() && !running.missing.is_empty() {
            return;
        }
        let times = self.functions.get_mut(running.function.0);
        let (items, run_time_ns) = match used {
            Some(DeviceUse { batch_items: 0, run_time_ns, .. }) => (running.batch, run_time_ns),
            Some(DeviceUse { batch_items, run_time_ns, .. }) => (batch_items, run_time_ns),
            None => {
                let taken_ns = now_ns.saturating_sub(running.started_at_ns);
                (running.batch, taken_ns.saturating_sub(running.load_time_ns))
            }
        };
        times.run.add(kind, items, run_time_ns);
        if let Some(used) = used {
            let life_ns = now_ns.saturating_sub(running.placed_at_ns);
            let on_device_ns = used.run_time_ns.saturating_add(used.wait_ns);
            times.off_device.add(kind, running.batch, life_ns.saturating_sub(on_device_ns));
        }
        self.all_times.runs.add(kind, items, run_time_ns);
    }

    /// Releases the references of an invocation that has ended.
    pub(super) fn drop_running(&mut self, running: &StartedInvocation) {
        for model in &running.models {
            self.models.release(*model);
        }
        self.functions.release(running.function.0);
        self.tenants.release(running.tenant);
    }
}
