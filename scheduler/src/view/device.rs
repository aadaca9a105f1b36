//! One device: its capabilities, its running invocations, and their times. [`held`] tracks its
//! models.

mod held;
pub use held::{EvictionCandidate, Need};

mod open;
use open::Forming;

use super::committed::{Commitment, CommittedWork};
use super::memory::{BYTES_MAX, MemoryUse};
use crate::policy::OpenableModel;
use crate::{DeviceSpec, FunctionKey, KindKey, ModelKey};
use held::HeldModel;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{DeviceId, InvocationId, Platform, RunningMean};

/// One device.
#[derive(Debug)]
pub struct DeviceView {
    id: DeviceId,
    kind: KindKey,
    spec: DeviceSpec,
    models: BTreeMap<ModelKey, HeldModel>,
    memory: MemoryUse,
    /// Number of models of which a copy is required here, and when all of them are expected to be
    /// loaded.
    required: u32,
    copies_there_at_ns: u64,
    /// Models given up by decisions about other devices, not yet reported to the node.
    given_up: Vec<ModelKey>,
    /// Expected ends of the invocations with a grant here.
    ends: BTreeSet<(u64, InvocationId)>,
    /// The work of these invocations.
    committed: CommittedWork,
    /// Device work that may be committed ahead of the runs, for each run slot.
    commit_ahead_ns: u64,
    /// When the loads that were placed here are expected to have completed.
    loads_end_at_ns: u64,
    /// Batches that further invocations may join while the current event is handled.
    forming: SmallVec<[Forming; 1]>,
    /// Number of invocations ever placed here.
    dispatches: u64,
    run_time_ns: RunningMean,
    /// Whether an invocation admitted with an SLO waits for the device, so that no other invocation
    /// may start.
    is_kept: bool,
    /// Whether the device serves invocations with SLOs, and runs at most as many at once as it has
    /// slots.
    serves_slos: bool,
    /// Whether the device accepts no invocations for now.
    is_down: bool,
    /// Whether the node also has a CPU that runs models.
    has_cpu_beside: bool,
}

/// A grant: an invocation that may use its models on a device until it ends.
#[derive(Debug, Clone, Copy)]
pub(in crate::view) struct DeviceGrant {
    pub(in crate::view) invocation: InvocationId,
    pub(in crate::view) function: FunctionKey,
    /// Expected end of the invocation.
    pub(in crate::view) end_ns: u64,
    /// When its missing models are expected to be loaded.
    pub(in crate::view) there_at_ns: u64,
    /// Time of its loads.
    pub(in crate::view) load_time_ns: u64,
    pub(in crate::view) work: Commitment,
    pub(in crate::view) now_ns: u64,
    /// Its items, and the maximum items of a batch.
    pub(in crate::view) items: (u32, u32),
}

/// Upper bound on the slots whose starts are predicted one by one.
const SLOTS_FORESEEN_MAX: u32 = 256;

impl DeviceView {
    pub(super) fn new(
        id: DeviceId,
        kind: KindKey,
        mut spec: DeviceSpec,
        (has_cpu_beside, commit_ahead_ns): (bool, u64),
    ) -> Self {
        spec.capacity_bytes = spec.capacity_bytes.min(BYTES_MAX);
        let (models, memory, given_up, ends, run_time_ns) = Default::default();
        let (committed, forming) = Default::default();
        Self {
            id,
            kind,
            spec,
            models,
            memory,
            required: 0,
            copies_there_at_ns: 0,
            given_up,
            ends,
            committed,
            commit_ahead_ns,
            loads_end_at_ns: 0,
            forming,
            dispatches: 0,
            run_time_ns,
            is_kept: false,
            serves_slos: false,
            is_down: false,
            has_cpu_beside,
        }
    }

    /// The device's id.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The device's kind, by which estimates are keyed.
    #[must_use]
    pub fn kind(&self) -> KindKey {
        self.kind
    }

    /// The device's capabilities.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Number of invocations with a grant here.
    #[must_use]
    pub fn running(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// Whether a model can run on the device.
    #[must_use]
    pub fn can_run(&self, demand: &OpenableModel) -> bool {
        demand.runs_on.contains(self.spec.platform)
    }

    /// The demands that can run, and so are granted, on the device. The other demands run on the
    /// CPU of the same node.
    pub fn own<'a>(&'a self, demands: &'a [OpenableModel]) -> impl Iterator<Item = &'a OpenableModel> {
        demands.iter().filter(|demand| self.can_run(demand))
    }

    /// Whether the device can serve `demands`, ignoring memory: each demand can run on the device
    /// or on the CPU of the same node, and at least one on the device.
    #[must_use]
    pub fn suits(&self, demands: &[OpenableModel]) -> bool {
        let runs_beside =
            |demand: &OpenableModel| self.has_cpu_beside && demand.runs_on.contains(Platform::Cpu);
        let all_run = demands.iter().all(|demand| self.can_run(demand) || runs_beside(demand));
        all_run && (demands.is_empty() || self.own(demands).next().is_some())
    }

    /// Whether the device [`suits`](Self::suits) `demands` and is not down.
    #[must_use]
    pub fn takes(&self, demands: &[OpenableModel]) -> bool {
        !self.is_down && self.suits(demands)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.is_down
    }

    /// Sets whether the device is down.
    pub(super) fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
    }

    /// Sets the memory for models.
    pub(super) fn set_capacity(&mut self, capacity_bytes: u64) {
        self.spec.capacity_bytes = capacity_bytes.min(BYTES_MAX);
    }

    /// Whether the limit on concurrent invocations for devices that serve SLOs is reached.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.running() >= self.slots_for_slos().min(self.spec.invocations_max)
    }

    /// Limit on concurrent invocations while the device serves invocations with SLOs.
    pub(crate) fn slots_for_slos(&self) -> u32 {
        self.spec.slots.min(self.spec.invocations_max).clamp(1, SLOTS_FORESEEN_MAX)
    }

    /// Expected ends of the running invocations, last first.
    pub(crate) fn last_ends_ns(&self) -> impl Iterator<Item = u64> {
        self.ends.iter().rev().map(|(end_ns, _)| *end_ns)
    }

    /// Reserves the device for waiting invocations with SLOs (`is_kept`), or limits it to its slots
    /// because it serves such invocations (`serves_slos`), or neither.
    pub(super) fn reserve(&mut self, is_kept: bool, serves_slos: bool) {
        self.is_kept = is_kept;
        self.serves_slos = serves_slos;
    }

    /// Whether the device is reserved for waiting invocations with SLOs.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(super) fn is_reserved(&self, is_kept: bool, serves_slos: bool) -> bool {
        (self.is_kept, self.serves_slos) == (is_kept, serves_slos)
    }

    /// Number of invocations ever placed here.
    #[must_use]
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Measured duration of invocations with a grant here.
    #[must_use]
    pub fn run_time_ns(&self) -> RunningMean {
        self.run_time_ns
    }

    /// Earliest expected end of the running invocations; `None` if nothing runs.
    #[must_use]
    pub fn first_end_ns(&self) -> Option<u64> {
        self.ends.first().map(|(end_ns, _)| *end_ns)
    }

    /// The running invocations.
    pub(super) fn runs(&self) -> impl Iterator<Item = InvocationId> {
        self.ends.iter().map(|(_, invocation)| *invocation)
    }

    /// Grants `demands` to one more invocation, and gives up `victims`.
    pub(super) fn grant(
        &mut self,
        grant: &DeviceGrant,
        demands: &[OpenableModel],
        victims: &[ModelKey],
        clock: u64,
    ) {
        let DeviceGrant { invocation, end_ns, there_at_ns, work, .. } = *grant;
        self.ends.insert((end_ns, invocation));
        self.dispatches += 1;
        self.commit(grant, &work);
        for demand in demands {
            if self.can_run(demand) {
                self.promise(demand, there_at_ns, clock);
            }
        }
        for victim in victims {
            self.allow(*victim);
        }
    }

    /// Changes the expected end of a running invocation.
    pub(super) fn expect_end(&mut self, invocation: InvocationId, before_ns: u64, end_ns: u64) {
        if self.ends.remove(&(before_ns, invocation)) {
            self.ends.insert((end_ns, invocation));
        }
    }

    /// Replaces the committed work of a running invocation.
    pub(super) fn recommit(&mut self, before: &Commitment, now: &Commitment) {
        self.committed.remove(before);
        self.committed.add(now);
    }

    /// Ends an invocation with a grant of `models`.
    pub(super) fn release(
        &mut self,
        (invocation, end_ns): (InvocationId, u64),
        models: &[ModelKey],
        work: &Commitment,
        run_time_ns: Option<u64>,
    ) {
        self.ends.remove(&(end_ns, invocation));
        self.committed.remove(work);
        if let Some(run_time_ns) = run_time_ns {
            self.run_time_ns.add(run_time_ns);
        }
        models.iter().for_each(|model| self.keep_promise(*model));
    }
}
