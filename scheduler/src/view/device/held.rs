//! What one device holds, and has promised to hold.
//!
//! ```text
//! capacity_bytes  >=  held_bytes                            -  evictable_bytes
//!                     in memory, or granted and on its way     in memory, may go, granted to nobody
//! ```
//!
//! This holds after every grant. What changes between grants keeps it: a grant that ends leaves its models in memory or takes them out
//! of the sum, and an eviction takes its model out of both sums. Only a model that turns out larger than it was said to be, or a device that turns out smaller,
//! can break it, until enough is evicted.

use super::DeviceView;
use crate::policy::Demand;
use crate::view::Parts;
use crate::view::memory::{BYTES_MAX, Holders, Size, together_bytes};
use crate::view::models::Has;
use crate::{ModelKey, PartId};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;

/// What a device holds, or has promised to hold.
#[derive(Debug)]
pub(super) struct Held {
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

    /// Whether those of `demands` that run here fit, with nothing else in memory.
    #[must_use]
    pub fn is_large_enough(&self, demands: &[Demand]) -> bool {
        together_bytes(self.own(demands)) <= self.spec.capacity_bytes
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
    pub(in crate::view) fn size_of(&self, model: ModelKey) -> Option<(u64, &Parts)> {
        self.models.get(&model).map(|held| (held.own_bytes(), &held.parts))
    }

    /// The models that have a part.
    pub(in crate::view) fn holders(&self, part: PartId) -> Holders {
        self.memory.holders(part)
    }

    /// Whether models here have anything in common with others.
    pub(in crate::view) fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    /// Of a model that takes `bytes`, what no other model has here.
    pub(in crate::view) fn missing_bytes(&self, model: ModelKey, bytes: u64, parts: &Parts) -> u64 {
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

    /// All models with a place here, given up or not.
    pub(in crate::view) fn all(&self) -> impl Iterator<Item = ModelKey> {
        self.models.keys().copied()
    }

    pub(in crate::view) fn has(&self, model: ModelKey) -> Has {
        let Some(held) = self.models.get(&model) else { return Has::default() };
        Has {
            place: true,
            bytes: held.bytes,
            holds: !held.is_evictable_now(),
            free_at_ns: self.free_at_ns(),
            parts: held.parts.clone(),
        }
    }

    /// Grant what is asked for to one more invocation.
    pub(in crate::view) fn promise(&mut self, demand: &Demand, there_at_ns: u64, clock: u64) {
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

    /// One that a model was granted to is over.
    pub(in crate::view) fn keep_promise(&mut self, model: ModelKey) {
        let Some(held) = self.models.get_mut(&model) else { return };
        held.grants = held.grants.saturating_sub(1);
        if held.grants == 0 && !held.resident {
            self.remove(model);
        }
    }

    /// A model may go. False if it is not there, granted, or may go already.
    pub(in crate::view) fn allow(&mut self, model: ModelKey) -> bool {
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
    pub(in crate::view) fn give_up(&mut self, model: ModelKey) {
        if self.allow(model) {
            self.given_up.push(model);
        }
    }

    /// What was given up since the last start here.
    pub(in crate::view) fn take_given_up(&mut self) -> Vec<ModelKey> {
        std::mem::take(&mut self.given_up)
    }

    /// A model is in memory. False if it was already, with this size.
    pub(in crate::view) fn loaded(&mut self, model: ModelKey, bytes: u64, parts: Parts, clock: u64) -> bool {
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
    pub(in crate::view) fn evicted(&mut self, model: ModelKey) -> bool {
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
