//! Placement of invocations: requests placements, waits for the results, and tracks which models
//! this node's devices may evict.
//!
//! Placements come from a scheduler: this node's own, or the one of the cluster's dispatcher. The
//! scheduler is a pure state machine protected by one lock, which is held for one `handle` at a
//! time. Most invocations are placed by the `handle` call that announces them; the others wait
//! until a later event starts them. A node that loses its dispatcher places its invocations on its
//! own devices until there is a new dispatcher. Waiting invocations are announced again, so none is
//! lost.

mod asking;
mod calls;
mod clock;
mod config;
mod device_use;
mod dispatching;
mod driver;
mod ending;
mod guard;
mod placing;
mod record;
mod reporting;
mod required;
mod residency;
mod shadow_config;
mod staging;
mod state;
mod stopping;
mod timeline;
mod wake;

#[cfg(test)]
mod tests;

pub(crate) use asking::Link;
pub use config::SchedulerConfig;
pub use device_use::UseRecorder;
pub(crate) use driver::LinkId;
pub use guard::{LocalPlacement, PlacementGuard};
pub use required::CopyLoad;
pub use residency::{HealthChange, ResidencyChanges, ResidentLoad};
pub use shadow_config::ShadowConfig;
pub(crate) use state::ForwardStep;
pub use state::{Placement, RemotePlacement};

use crate::wire::{AnnouncedInvocation, Granted, Hello, NodeEvent};
use clock::now;
use device_use::RunningCall;
use driver::PlacementDriver;
use moka::sync::Cache;
use parking_lot::Mutex;
use record::RecordSink;
use residency::ResidencyTable;
use staging::StagingTable;
use state::{Elsewhere, PlacementRefusal, PlacementState, Placer, WaitingCall};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_scheduler::{
    Action, Arrival, DeviceSpec, Event, InvocationOutcome, PlacementHistory, PlacementRecord, Setup,
    StorageTier,
};
use weir_telemetry::Metrics;
use weir_types::{InvocationId, ModelId, NodeId, Ordinal, TenantId};

/// The limits of kept placements, from which the API explains why a call ran where it did.
const KEPT_PER_TENANT_MAX: usize = 1_000;
const KEPT_TENANTS_MAX: usize = 100;
/// The limit of kept outcomes of calls that other nodes received.
const KEPT_OUTCOMES_MAX: u64 = 10_000;

/// Requests placements.
pub struct Placements {
    metrics: Arc<Metrics>,
    node: NodeId,
    address: Option<String>,
    devices: Vec<DeviceSpec>,
    scheduler: Setup,
    state: Mutex<PlacementState>,
    /// The outcomes of calls that ran here, and whose placement another node keeps.
    outcomes: Cache<InvocationId, InvocationOutcome>,
    /// Records the scheduler's events and actions.
    record: Option<RecordSink>,
    /// The number of running calls without models that were placed here without asking the
    /// scheduler, and its limit.
    unasked: AtomicUsize,
    unasked_max: usize,
    /// Notified whenever a grant on one of this node's devices ends, or more models may be evicted.
    freed: Notify,
    /// Notified whenever one of this node's devices is to load a required model.
    required: Notify,
    /// The origin of the scheduler's clock.
    epoch: Instant,
    /// The next wake-up that the scheduler requested, on the scheduler's clock.
    wake_at_ns: watch::Sender<Option<u64>>,
    /// Cancelled once the node refuses all calls without a place.
    refusing: CancellationToken,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// The configuration of a node's placements.
pub struct PlacementConfig {
    /// This node's identifier in the cluster.
    pub node: NodeId,
    /// The address at which the other nodes of the cluster reach this one; `None` for a single
    /// node.
    pub address: Option<String>,
    /// This node's devices, by ordinal.
    pub devices: Vec<DeviceSpec>,
    /// The tier of models' files unless the node reports another tier.
    pub origin: StorageTier,
    /// The limit of concurrent calls without models that run here at once without asking the
    /// scheduler. Calls of tenants with caps always ask the scheduler.
    pub unasked_max: usize,
    /// The configuration of this node's own scheduler.
    pub scheduler: Setup,
    /// The file to record the scheduler's events and actions in, if any.
    pub record: Option<PathBuf>,
    /// The metrics for the accuracy of estimates.
    pub metrics: Arc<Metrics>,
}

/// The messages of a link that are handled while the lock is held once, so that no call waits long
/// for the lock.
const MESSAGES_PER_LOCK: usize = 32;

/// The result of announcing an invocation to the scheduler.
enum Placing {
    Done(Result<Placement, PlacementRefusal>),
    Waits(oneshot::Receiver<Result<Placement, PlacementRefusal>>),
}

impl Placements {
    /// Starts with nothing running.
    pub fn start(config: PlacementConfig) -> Arc<Self> {
        let PlacementConfig { node, address, devices, origin, unasked_max, scheduler, record, metrics } =
            config;
        let residency = ResidencyTable::new(devices.len());
        let staging = StagingTable::new(origin);
        let own = hello(node, &address, &devices, (&residency, &staging));
        let mut driver = PlacementDriver::new(0, own, &scheduler, record.is_some());
        if devices.is_empty() && address.is_some() {
            driver.await_election(0);
        }
        let state = PlacementState {
            placer: Placer::Own(Box::new(driver)),
            waiting: HashMap::new(),
            away: HashMap::new(),
            running: HashMap::new(),
            history: PlacementHistory::new(KEPT_PER_TENANT_MAX, KEPT_TENANTS_MAX),
            residency,
            staging,
            loading: BTreeSet::new(),
            released: Vec::new(),
            placements: Weak::new(),
        };
        let placements = Arc::new(Self {
            metrics,
            node,
            address,
            devices,
            scheduler,
            state: Mutex::new(state),
            outcomes: Cache::new(KEPT_OUTCOMES_MAX),
            record: record.map(RecordSink::new),
            unasked: AtomicUsize::new(0),
            unasked_max,
            freed: Notify::new(),
            required: Notify::new(),
            epoch: now(),
            wake_at_ns: watch::Sender::new(None),
            refusing: CancellationToken::new(),
            tasks: Mutex::default(),
        });
        let weak = Arc::downgrade(&placements);
        placements.state.lock().placements = weak.clone();
        let mut tasks = vec![tokio::spawn(wake::wake(weak.clone(), placements.wake_at_ns.subscribe()))];
        if placements.record.is_some() {
            tasks.push(tokio::spawn(record::keep(weak)));
        }
        *placements.tasks.lock() = tasks.into_iter().map(AbortOnDropHandle::new).collect();
        placements
    }

    /// This node's identifier in the cluster.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// A grant on this device for a call that could not run where it was placed. The scheduler is
    /// not asked again. The call may evict the models that are resident on the device.
    pub fn grant_here(&self, models: Vec<ModelId>, device: Option<Ordinal>) -> Granted {
        let evict = device.map(|device| self.state.lock().residency.residents(device)).unwrap_or_default();
        Granted { device, models, evict, origin: None, estimate_ns: None, is_fallback: true }
    }

    /// The recorder of an invocation's use of `device`; `None` if the invocation was not placed
    /// there.
    pub fn recorder(&self, invocation: InvocationId, device: Ordinal) -> Option<Arc<UseRecorder>> {
        let state = self.state.lock();
        let running = state.running.get(&invocation)?;
        (running.device == Some(device)).then(|| running.recorder.clone())
    }

    /// The placement of one of the tenant's latest invocations on this node, with its reasons.
    pub fn explanation(&self, tenant: &TenantId, invocation: InvocationId) -> Option<PlacementRecord> {
        self.state.lock().history.get(tenant, invocation).cloned()
    }

    /// The outcome of a call that ran here and was placed by another node, if it has ended.
    pub fn outcome(&self, invocation: InvocationId) -> Option<InvocationOutcome> {
        self.outcomes.get(&invocation)
    }

    /// Records that an invocation that was placed here uses a model on a device other than the one
    /// it was placed on.
    pub fn grant_beside(&self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        self.state.lock().residency.add(invocation, device, model);
    }

    /// Announces an invocation that needs `models`. Most invocations are placed by this call and
    /// are never added to `waiting`.
    fn arrive(&self, arrival: Arrival, models: Vec<ModelId>) -> Placing {
        let id = arrival.invocation;
        let mut state = self.state.lock();
        // Checked under the lock: no call is added to those that were refused.
        if self.refusing.is_cancelled() {
            return Placing::Done(Err(PlacementRefusal::Stopping));
        }
        let tenant = arrival.function.tenant.clone();
        let mut kept = self.address.is_some().then(|| arrival.clone());
        let mut own = Some(models);
        let mut answer = None;
        self.announce(&mut state, arrival, |state, action| match action {
            Action::Start { invocation, .. }
            | Action::Reject { invocation, .. }
            | Action::Reserved { invocation, .. }
                if invocation == id =>
            {
                if let Some(record) = PlacementRecord::for_action(&action) {
                    state.history.add(&tenant, record);
                }
                answer = Some(match action {
                    Action::Start { node, device, evict, .. } => {
                        let elsewhere = self.elsewhere(state, node);
                        let device = device.map(|device| device.ordinal);
                        let models = own.take();
                        let models = models.unwrap_or_default();
                        let granted = Granted {
                            device,
                            models,
                            evict,
                            origin: None,
                            estimate_ns: None,
                            is_fallback: false,
                        };
                        state.start(id, elsewhere, granted, Some(tenant.clone()), kept.take())
                    }
                    Action::Reject { why, estimate, .. } => Err(PlacementRefusal::Rejected(why, estimate)),
                    Action::Reserved { invocation, .. } => {
                        Ok(Placement::Local(LocalPlacement::of_separate_steps(invocation)))
                    }
                    Action::Load { .. } | Action::Release { .. } | Action::WakeAt(_) => {
                        Err(PlacementRefusal::NoAnswer)
                    }
                });
            }
            other => self.carry_out(state, other),
        });
        if let Some(answer) = answer {
            return Placing::Done(answer);
        }
        let (start, started) = oneshot::channel();
        let models = own.unwrap_or_default();
        state.waiting.insert(id, WaitingCall { tenant, models, arrival: kept, start });
        Placing::Waits(started)
    }

    /// Completes when a load that found no room may find room. Considers only changes after this
    /// call.
    pub fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Whether a running invocation delays the eviction of a model on a device.
    pub fn is_held_up(&self, device: Ordinal) -> bool {
        self.state.lock().residency.is_held_up(device)
    }

    /// Whether an invocation that runs on this node may use a model on a device.
    pub fn is_granted(&self, device: Ordinal, model: &ModelId) -> bool {
        self.state.lock().residency.is_granted(device, model)
    }

    /// The models that a load on a device may evict now.
    pub fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.state.lock().residency.victims(device)
    }

    /// Makes resident models evictable that no invocation on this node needs. Required where the
    /// scheduler assumed room that is not free yet: it may have just taken over, or its update is
    /// still in transit. Returns whether there were such models.
    pub fn give_up_unneeded(&self, device: Ordinal) -> bool {
        let mut state = self.state.lock();
        let unneeded = state.residency.unneeded(device);
        let is_any = !unneeded.is_empty();
        self.may_evict(&mut state, device, unneeded);
        is_any
    }

    fn announce(
        &self,
        state: &mut PlacementState,
        arrival: Arrival,
        carry_out: impl FnMut(&mut PlacementState, Action),
    ) {
        match &mut state.placer {
            Placer::Own(driver) => {
                if let Some(earlier) = driver.arrived(arrival.invocation, self.node) {
                    self.decide_all(state, vec![earlier]);
                }
                self.decide(state, Event::Arrived(arrival), carry_out);
            }
            Placer::Dispatcher(_) => {
                let now_ns = self.time_ns(now());
                let in_ns = |at_ns: u64| at_ns.saturating_sub(now_ns);
                let deadline_in_ns = in_ns(arrival.deadline_at_ns);
                let due_in_ns = arrival.slo.map_or(u64::MAX, |slo| slo.due_at_ns);
                let due_in_ns = (due_in_ns < u64::MAX).then(|| in_ns(due_in_ns));
                self.tell(state, NodeEvent::Arrived { arrival, deadline_in_ns, due_in_ns });
            }
        }
    }

    /// Reports an event on this node to the current placer.
    fn tell(&self, state: &mut PlacementState, event: NodeEvent) {
        match &mut state.placer {
            Placer::Own(_) => self.feed(state, self.node, event),
            Placer::Dispatcher(link) => link.send(event),
        }
    }

    fn decide(
        &self,
        state: &mut PlacementState,
        event: Event,
        carry_out: impl FnMut(&mut PlacementState, Action),
    ) {
        let Placer::Own(driver) = &mut state.placer else { return };
        let actions = driver.handle(self.time_ns(now()), event);
        self.carry_out_all(state, actions, carry_out);
    }

    fn carry_out_all(
        &self,
        state: &mut PlacementState,
        mut actions: Vec<Action>,
        mut carry_out: impl FnMut(&mut PlacementState, Action),
    ) {
        for action in actions.drain(..) {
            carry_out(state, action);
        }
        if let Placer::Own(driver) = &mut state.placer {
            let evict = driver.take_own_evict();
            driver.recycle(actions);
            for (device, evict) in evict {
                self.may_evict(state, device, evict);
            }
        }
        // Only now, since the scheduler's answer has actions that follow these.
        self.report_released(state);
    }

    fn carry_out(&self, state: &mut PlacementState, action: Action) {
        state.explain(&action);
        match action {
            Action::Start { invocation, node, device, evict, why } => {
                if why.queued_ns > 0 {
                    tracing::debug!(%invocation, queued_ns = why.queued_ns, "placed after a wait");
                }
                let elsewhere = self.elsewhere(state, node);
                state.started(invocation, elsewhere, device.map(|device| device.ordinal), evict);
            }
            Action::Reject { invocation, why, estimate, .. } => state.rejected(invocation, why, estimate),
            Action::Reserved { invocation, .. } => state.reserved(invocation),
            Action::Load { device, model, evict } if device.node == self.node => {
                self.require_here(state, device.ordinal, model, evict);
            }
            Action::Release { device, model } if device.node == self.node => {
                self.release_here(state, device.ordinal, &model);
            }
            // The driver has told the other node.
            Action::Load { .. } | Action::Release { .. } => {}
            Action::WakeAt(at_ns) => {
                self.wake_at_ns.send_replace(Some(at_ns));
            }
        }
    }

    fn may_evict(&self, state: &mut PlacementState, device: Ordinal, evict: Vec<ModelId>) {
        if !evict.is_empty() {
            state.residency.allow(device, evict);
            self.freed.notify_waiters();
        }
    }

    /// The address of `node`, if it is another node.
    fn elsewhere(&self, state: &PlacementState, node: NodeId) -> Option<Elsewhere> {
        let Placer::Own(driver) = &state.placer else { return None };
        (node != self.node).then(|| Elsewhere(driver.address(node).cloned()))
    }

    /// This node's introduction to a scheduler.
    fn hello(&self, state: &PlacementState) -> Hello {
        let now_ns = self.time_ns(now());
        let running = state.running.values().filter_map(|RunningCall { arrival, device, origin, .. }| {
            let arrival = arrival.clone()?;
            let deadline_in_ns = arrival.deadline_at_ns.saturating_sub(now_ns);
            Some(AnnouncedInvocation { arrival, deadline_in_ns, device: *device, origin: *origin })
        });
        let running = running.collect();
        // The caller splits the list where a message has to be short.
        Hello {
            running,
            ..hello(self.node, &self.address, &self.devices, (&state.residency, &state.staging))
        }
    }

    /// Converts a time to the scheduler's clock.
    pub fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Placements {
    /// Appends the records to their files. Called periodically, and at the end.
    pub async fn write_record(&self) {
        if let Some(record) = &self.record {
            let lines = match &mut self.state.lock().placer {
                Placer::Own(driver) => driver.take_lines(),
                Placer::Dispatcher(_) => Vec::new(),
            };
            record.write(lines).await;
        }
    }
}

fn hello(
    node: NodeId,
    address: &Option<String>,
    devices: &[DeviceSpec],
    (residency, staging): (&ResidencyTable, &StagingTable),
) -> Hello {
    Hello {
        node,
        address: address.as_deref().unwrap_or_default().into(),
        devices: residency.resized(devices),
        resident: residency.all_resident(),
        origin: staging.origin(),
        staged: staging.all(),
        down: residency.down(),
        running: Vec::new(),
        has_more: false,
    }
}
