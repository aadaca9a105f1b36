//! The memory of one device, and the promises made about it.
//!
//! ```text
//! capacity_bytes  >=  held_bytes                            -  evictable_bytes
//!                     in memory, or granted and on its way     in memory, may go, granted to nobody
//! ```
//!
//! This holds after every grant. What changes between grants keeps it: a grant that ends leaves its models in memory or takes them out
//! of the sum, and an eviction takes its model out of both sums. Only a model that turns out larger than it was said to be can break it,
//! until enough is evicted.

use super::Parts;
use super::memory::{BYTES_MAX, Holders, Memory, Size, together_bytes};
use super::models::Has;
use crate::policy::Demand;
use crate::{DeviceSpec, KindKey, ModelKey, PartId};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{DeviceId, InvocationId, Platform, RunningMean};

/// One device.
#[derive(Debug)]
pub struct DeviceView {
    id: DeviceId,
    kind: KindKey,
    spec: DeviceSpec,
    models: BTreeMap<ModelKey, Held>,
    memory: Memory,
    /// Given up by decisions about other devices, which the node has not been told yet.
    given_up: Vec<ModelKey>,
    /// When invocations with a grant here are expected to end.
    ends: BTreeSet<(u64, InvocationId)>,
    /// Invocations that were ever placed here.
    dispatches: u64,
    run_time_ns: RunningMean,
    /// One that was admitted with an SLO waits for it: nobody else may start.
    is_kept: bool,
    /// It serves such, and takes as many at once as it has slots.
    serves_slos: bool,
    /// It takes nothing for now.
    is_down: bool,
    /// Its node has a processor that runs models, too.
    has_cpu_beside: bool,
}

/// More slots than this count as this many where starts are foreseen one by one.
const SLOTS_FORESEEN_MAX: u32 = 256;

/// What a device holds, or has promised to hold.
#[derive(Debug)]
struct Held {
    bytes: u64,
    parts: Parts,
    resident: bool,
    /// Running invocations that may open it.
    grants: u32,
    /// The node was told that it may go.
    evictable: bool,
    used: u64,
    /// When it is expected to be there, if it is not resident.
    there_at_ns: u64,
}

/// A model that could become a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which one.
    pub model: ModelKey,
    /// The memory that is free once it goes by itself: all that it takes but for what others have in common with it.
    pub bytes: u64,
    /// When it was last granted or loaded; higher is later. Those granted together are equal.
    pub used: u64,
}

/// What granting models would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes of those that are neither there nor on their way.
    pub missing_bytes: u64,
    /// Bytes that must be freed by victims beyond those that may go already.
    pub over_bytes: u64,
}

impl DeviceView {
    pub(super) fn new(id: DeviceId, kind: KindKey, mut spec: DeviceSpec, has_cpu_beside: bool) -> Self {
        spec.capacity_bytes = spec.capacity_bytes.min(BYTES_MAX);
        let (models, memory, given_up, ends, run_time_ns) = Default::default();
        Self {
            id,
            kind,
            spec,
            models,
            memory,
            given_up,
            ends,
            dispatches: 0,
            run_time_ns,
            is_kept: false,
            serves_slos: false,
            is_down: false,
            has_cpu_beside,
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Its kind, as estimates are kept by.
    #[must_use]
    pub fn kind(&self) -> KindKey {
        self.kind
    }

    /// What it can do.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Bytes of models in memory, and of those granted and on their way; what they have in common counts once.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.memory.held_bytes()
    }

    /// The part of [`held_bytes`](Self::held_bytes) that may go and is granted to nobody.
    #[must_use]
    pub fn evictable_bytes(&self) -> u64 {
        self.memory.evictable_bytes()
    }

    /// Whether a model is in memory, or granted and on its way, and was not given up.
    #[must_use]
    pub fn holds(&self, model: ModelKey) -> bool {
        self.models.get(&model).is_some_and(|held| !held.is_evictable_now())
    }

    /// The models for which [`holds`](Self::holds) is true.
    pub fn held(&self) -> impl Iterator<Item = ModelKey> {
        self.models.iter().filter(|(_, held)| !held.is_evictable_now()).map(|(model, _)| *model)
    }

    /// Invocations with a grant here.
    #[must_use]
    pub fn running(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// Whether a model can run here.
    #[must_use]
    pub fn can_run(&self, demand: &Demand) -> bool {
        demand.runs_on.contains(self.spec.platform)
    }

    /// Those of `demands` that can run here, and so are granted here: the others have the processor beside it.
    pub fn own<'a>(&'a self, demands: &'a [Demand]) -> impl Iterator<Item = &'a Demand> {
        demands.iter().filter(|demand| self.can_run(demand))
    }

    /// Whether it is for `demands`, if ever it has room for them: each can run here or on the processor beside it, and some of them here.
    #[must_use]
    pub fn suits(&self, demands: &[Demand]) -> bool {
        let runs_beside = |demand: &Demand| self.has_cpu_beside && demand.runs_on.contains(Platform::Cpu);
        let all_run = demands.iter().all(|demand| self.can_run(demand) || runs_beside(demand));
        all_run && (demands.is_empty() || self.own(demands).next().is_some())
    }

    /// The same at the moment.
    #[must_use]
    pub fn takes(&self, demands: &[Demand]) -> bool {
        !self.is_down && self.suits(demands)
    }

    /// Whether those of `demands` that run here fit, with nothing else in memory.
    #[must_use]
    pub fn is_large_enough(&self, demands: &[Demand]) -> bool {
        together_bytes(self.own(demands)) <= self.spec.capacity_bytes
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down
    }

    /// Take nothing more for now, or go on.
    pub(super) fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
    }

    /// Whether one more invocation may be granted models here.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let is_closed = self.is_down || self.is_kept || self.serves_slos && self.is_full();
        !is_closed && self.running() < self.spec.invocations_max
    }

    /// Whether as many run here as may while it serves invocations with SLOs.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.running() >= self.slots_for_slos().min(self.spec.invocations_max)
    }

    /// How many run here at once while it serves invocations with SLOs.
    pub(crate) fn slots_for_slos(&self) -> u32 {
        self.spec.slots.min(self.spec.invocations_max).clamp(1, SLOTS_FORESEEN_MAX)
    }

    /// When what runs here is expected to end, the last first.
    pub(crate) fn last_ends_ns(&self) -> impl Iterator<Item = u64> {
        self.ends.iter().rev().map(|(end_ns, _)| *end_ns)
    }

    /// The models that are granted to what runs here, and the memory that they take.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (ModelKey, Size)> {
        self.models.iter().filter(|(_, held)| held.grants > 0).map(|(model, held)| (*model, held.size()))
    }

    /// The memory that a model takes for which [`holds`](Self::holds) is true, and when it is there: 0 if now.
    pub(crate) fn place_of(&self, model: ModelKey) -> Option<(Size, u64)> {
        let held = self.models.get(&model).filter(|held| !held.is_evictable_now())?;
        Some((held.size(), if held.resident { 0 } else { held.there_at_ns }))
    }

    /// Keep it for those that were admitted with an SLO and wait for it, or have it serve such beside others, or neither.
    pub(super) fn reserve(&mut self, is_kept: bool, serves_slos: bool) {
        (self.is_kept, self.serves_slos) = (is_kept, serves_slos);
    }

    pub(super) fn is_reserved(&self, is_kept: bool, serves_slos: bool) -> bool {
        (self.is_kept, self.serves_slos) == (is_kept, serves_slos)
    }

    /// When one more invocation may be granted models here: 0 if now.
    #[must_use]
    pub fn free_at_ns(&self) -> u64 {
        match self.is_open() {
            true => 0,
            false if self.is_down => u64::MAX,
            false => self.first_end_ns().unwrap_or(u64::MAX),
        }
    }

    /// How many invocations were ever placed here.
    #[must_use]
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// How long invocations with a grant here take, as measured.
    #[must_use]
    pub fn run_time_ns(&self) -> RunningMean {
        self.run_time_ns
    }

    /// When the first of those that run here is expected to end; none if nothing runs.
    #[must_use]
    pub fn first_end_ns(&self) -> Option<u64> {
        self.ends.first().map(|(end_ns, _)| *end_ns)
    }

    /// How long an invocation placed now is expected to wait for a slot.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        let slots = self.spec.slots.max(1);
        let ahead = (self.running() + 1).saturating_sub(slots);
        if ahead == 0 {
            return 0;
        }
        if self.spec.invocations_max <= slots {
            return self.first_end_ns().unwrap_or(0).saturating_sub(now_ns);
        }
        crate::estimate::round_ns(self.run_time_ns.mean).saturating_mul(u64::from(ahead)) / u64::from(slots)
    }

    /// The models in memory that are granted to nobody and were not given up yet, by key.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let free = self.models.iter().filter(|(_, held)| held.is_candidate());
        free.map(|(model, held)| self.as_candidate(*model, held))
    }

    /// One of the [`candidates`](Self::candidates).
    #[must_use]
    pub fn candidate(&self, model: ModelKey) -> Option<Candidate> {
        let held = self.models.get(&model).filter(|held| held.is_candidate())?;
        Some(self.as_candidate(model, held))
    }

    fn as_candidate(&self, model: ModelKey, held: &Held) -> Candidate {
        let only_its = held.parts.iter().filter(|part| self.memory.holders(part.id).firm == 1);
        let bytes = only_its.fold(held.own_bytes(), |sum, part| sum.saturating_add(part.bytes));
        Candidate { model, bytes, used: held.used }
    }

    /// What of a model that is held nobody else has, and the rest.
    pub(super) fn size_of(&self, model: ModelKey) -> Option<(u64, &Parts)> {
        self.models.get(&model).map(|held| (held.own_bytes(), &held.parts))
    }

    /// The models that have a part.
    pub(super) fn holders(&self, part: PartId) -> Holders {
        self.memory.holders(part)
    }

    /// Whether models here have anything in common with others.
    pub(super) fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    /// Of a model that takes `bytes`, what no other model has here.
    pub(super) fn missing_bytes(&self, model: ModelKey, bytes: u64, parts: &Parts) -> u64 {
        let own = u32::from(self.models.contains_key(&model));
        let missing = parts.iter().filter(|part| self.memory.holders(part.id).all <= own);
        missing.fold(parts.own_bytes(bytes), |sum, part| sum.saturating_add(part.bytes))
    }

    /// What granting `demands` would take.
    #[must_use]
    pub fn need(&self, demands: &[Demand]) -> Need {
        let (mut missing_bytes, mut firm_bytes) = (0_u64, self.memory.firm_bytes());
        let mut counted = SmallVec::<[PartId; 8]>::new();
        for demand in self.own(demands) {
            let held = self.models.get(&demand.model);
            // To be granted, what may go must be taken off the list of those that may.
            let (bytes, parts) = match held {
                Some(held) if !held.is_evictable_now() => continue,
                Some(held) => (held.bytes, &held.parts),
                None => (demand.bytes.min(BYTES_MAX), &demand.parts),
            };
            let own_bytes = parts.own_bytes(bytes);
            firm_bytes = firm_bytes.saturating_add(own_bytes);
            if held.is_none() {
                missing_bytes = missing_bytes.saturating_add(own_bytes);
            }
            for part in parts.iter() {
                let holders = self.memory.holders(part.id);
                if holders.firm > 0 || counted.contains(&part.id) {
                    continue;
                }
                counted.push(part.id);
                firm_bytes = firm_bytes.saturating_add(part.bytes);
                if holders.all == 0 {
                    missing_bytes = missing_bytes.saturating_add(part.bytes);
                }
            }
        }
        Need { missing_bytes, over_bytes: firm_bytes.saturating_sub(self.spec.capacity_bytes) }
    }

    /// The invocations that run here.
    pub(super) fn runs(&self) -> impl Iterator<Item = InvocationId> {
        self.ends.iter().map(|(_, invocation)| *invocation)
    }

    /// All models with a place here, given up or not.
    pub(super) fn all(&self) -> impl Iterator<Item = ModelKey> {
        self.models.keys().copied()
    }

    pub(super) fn has(&self, model: ModelKey) -> Has {
        let Some(held) = self.models.get(&model) else { return Has::default() };
        Has {
            place: true,
            bytes: held.bytes,
            holds: !held.is_evictable_now(),
            free_at_ns: self.free_at_ns(),
            parts: held.parts.clone(),
        }
    }

    /// Grant `demands` to one more invocation, giving up `victims`.
    pub(super) fn grant(
        &mut self,
        (invocation, end_ns, there_at_ns): (InvocationId, u64, u64),
        demands: &[Demand],
        victims: &[ModelKey],
        clock: u64,
    ) {
        self.ends.insert((end_ns, invocation));
        self.dispatches += 1;
        for demand in demands {
            if !self.can_run(demand) {
                continue;
            }
            self.given_up.retain(|model| *model != demand.model);
            let bytes = demand.bytes.min(BYTES_MAX);
            self.alter(
                demand.model,
                || Held::of(bytes, demand.parts.clone(), there_at_ns),
                |held| {
                    held.evictable = false;
                    held.grants += 1;
                    held.used = clock;
                },
            );
        }
        for victim in victims {
            self.allow(*victim);
        }
    }

    /// A model may go. False if it is not there, granted, or may go already.
    fn allow(&mut self, model: ModelKey) -> bool {
        let Some(held) = self.models.get_mut(&model).filter(|held| held.is_candidate()) else { return false };
        self.memory.remove(held.bytes, &held.parts, true);
        held.evictable = true;
        self.memory.add(held.bytes, &held.parts, false);
        true
    }

    /// Change what is held of a model, which is `new` if nothing was, and keep the sums.
    fn alter(&mut self, model: ModelKey, new: impl FnOnce() -> Held, change: impl FnOnce(&mut Held)) {
        let held = match self.models.entry(model) {
            Entry::Occupied(entry) => {
                let held = entry.into_mut();
                self.memory.remove(held.bytes, &held.parts, !held.is_evictable_now());
                held
            }
            Entry::Vacant(entry) => entry.insert(new()),
        };
        change(held);
        self.memory.add(held.bytes, &held.parts, !held.is_evictable_now());
    }

    /// A model may go that is in the way elsewhere. The node is told with the next start here: it needs no room before.
    pub(super) fn give_up(&mut self, model: ModelKey) {
        if self.allow(model) {
            self.given_up.push(model);
        }
    }

    /// What was given up since the last start here.
    pub(super) fn take_given_up(&mut self) -> Vec<ModelKey> {
        std::mem::take(&mut self.given_up)
    }

    /// One that runs here is expected to end at another time.
    pub(super) fn expect_end(&mut self, invocation: InvocationId, before_ns: u64, end_ns: u64) {
        if self.ends.remove(&(before_ns, invocation)) {
            self.ends.insert((end_ns, invocation));
        }
    }

    /// An invocation with a grant of `models` is over.
    pub(super) fn release(
        &mut self,
        (invocation, end_ns): (InvocationId, u64),
        models: &[ModelKey],
        run_time_ns: Option<u64>,
    ) {
        self.ends.remove(&(end_ns, invocation));
        if let Some(run_time_ns) = run_time_ns {
            self.run_time_ns.add(run_time_ns);
        }
        for model in models {
            let Some(held) = self.models.get_mut(model) else { continue };
            held.grants = held.grants.saturating_sub(1);
            if held.grants == 0 && !held.resident {
                self.remove(*model);
            }
        }
    }

    /// A model is in memory. False if it was already, with this size.
    pub(super) fn loaded(&mut self, model: ModelKey, bytes: u64, parts: Parts, clock: u64) -> bool {
        let mut news = false;
        self.alter(
            model,
            || Held::of(0, Parts::default(), 0),
            |held| {
                let bytes = bytes.min(BYTES_MAX);
                news = (held.resident, held.bytes, &held.parts) != (true, bytes, &parts);
                (held.resident, held.bytes, held.parts) = (true, bytes, parts);
                held.used = clock;
            },
        );
        news
    }

    /// A model is not in memory any more. False if it was not.
    pub(super) fn evicted(&mut self, model: ModelKey) -> bool {
        let Some(held) = self.models.get_mut(&model).filter(|held| held.resident) else { return false };
        if held.grants == 0 {
            self.remove(model);
        } else {
            // Whoever it is granted to may have it loaded again.
            held.resident = false;
        }
        true
    }

    fn remove(&mut self, model: ModelKey) {
        let Some(held) = self.models.remove(&model) else { return };
        self.given_up.retain(|other| *other != model);
        self.memory.remove(held.bytes, &held.parts, !held.is_evictable_now());
    }
}

impl Held {
    /// Not there yet, and granted to nobody.
    fn of(bytes: u64, parts: Parts, there_at_ns: u64) -> Self {
        Self { bytes, parts, resident: false, grants: 0, evictable: false, used: 0, there_at_ns }
    }

    fn size(&self) -> Size {
        Size { bytes: self.bytes, parts: self.parts.clone() }
    }

    fn own_bytes(&self) -> u64 {
        self.parts.own_bytes(self.bytes)
    }

    /// It could become a victim.
    fn is_candidate(&self) -> bool {
        self.resident && self.grants == 0 && !self.evictable
    }

    fn is_evictable_now(&self) -> bool {
        self.evictable && self.grants == 0
    }
}
