//! The models that one device holds or has promised to hold.
//!
//! ```text
//! capacity_bytes  >=  held_bytes                      -  evictable_bytes
//!                     resident, or granted and loading   resident, evictable, not granted
//! ```
//!
//! The invariant holds after every grant. Other changes preserve it: the end of a grant leaves its
//! models in memory or removes them from the sum, and an eviction removes its model from both sums.
//! Only a model larger than announced, or a device that shrinks, can break the invariant until
//! enough is evicted.

use super::DeviceView;
use crate::policy::OpenableModel;
use crate::view::ModelParts;
use crate::view::memory::{BYTES_MAX, CombinedModelSize, Holders, ModelSize};
use crate::view::models::Has;
use crate::{ModelKey, PartId};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;

/// A model that a device holds or has promised to hold.
#[derive(Debug)]
pub(super) struct HeldModel {
    bytes: u64,
    parts: ModelParts,
    resident: bool,
    /// Number of running invocations that may open the model.
    grants: u32,
    /// Whether one of the grants is that of a required copy.
    required: bool,
    /// The node may evict the model while no grant needs it.
    evictable: bool,
    used: u64,
    /// When a model that is not resident is expected to be loaded.
    there_at_ns: u64,
}

/// A candidate for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionCandidate {
    /// The model.
    pub model: ModelKey,
    /// Bytes freed by evicting this model alone: its size without the parts that it shares with
    /// other models.
    pub bytes: u64,
    /// The time of the last grant or load; higher is later. Models granted together have equal
    /// values.
    pub used: u64,
}

/// Memory needed to grant models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the demands that are neither resident nor loading.
    pub missing_bytes: u64,
    /// Bytes that must be freed beyond the models that are already evictable.
    pub over_bytes: u64,
}

impl DeviceView {
    /// Bytes of models in memory, and of models granted and loading; shared parts count once.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.memory.held_bytes()
    }

    /// The part of [`held_bytes`](Self::held_bytes) that is evictable and not granted.
    #[must_use]
    pub fn evictable_bytes(&self) -> u64 {
        self.memory.evictable_bytes()
    }

    /// Whether a model is in memory, or granted and loading, and was not given up.
    #[must_use]
    pub fn holds(&self, model: ModelKey) -> bool {
        self.models.get(&model).is_some_and(|held| !held.is_evictable_now())
    }

    /// The models for which [`holds`](Self::holds) is true.
    pub fn held(&self) -> impl Iterator<Item = ModelKey> {
        self.models.iter().filter(|(_, held)| !held.is_evictable_now()).map(|(model, _)| *model)
    }

    /// Whether the demands that run here fit into the memory beside the required copies.
    #[must_use]
    pub fn is_large_enough(&self, demands: &[OpenableModel]) -> bool {
        let is_demanded = |model: ModelKey| demands.iter().any(|demand| demand.model == model);
        let mut together = self.required_size(is_demanded);
        self.own(demands).for_each(|demand| together.add(&ModelSize::for_demand(demand)));
        together.bytes() <= self.spec.capacity_bytes
    }

    /// Bytes of the required copies with one more; shared parts count once.
    pub(crate) fn required_bytes_with(&self, demand: &OpenableModel) -> u64 {
        let mut together = self.required_size(|model| model == demand.model);
        together.add(&ModelSize::for_demand(demand));
        together.bytes()
    }

    /// Bytes of memory that required copies leave to other models.
    pub(crate) fn room_beside_required(&self) -> u64 {
        self.spec.capacity_bytes.saturating_sub(self.required_bytes())
    }

    /// Bytes of the required copies; shared parts count once.
    pub(crate) fn required_bytes(&self) -> u64 {
        self.required_size(|_| false).bytes()
    }

    /// The size of the required copies, except those for which `is_excluded` is true.
    fn required_size(&self, is_excluded: impl Fn(ModelKey) -> bool) -> CombinedModelSize {
        let mut together = CombinedModelSize::default();
        if self.required == 0 {
            return together;
        }
        let required = self.models.iter().filter(|(model, held)| held.required && !is_excluded(**model));
        required.for_each(|(_, held)| together.add(&held.size()));
        together
    }

    /// Requires a copy of a model, which is promised like a granted one.
    pub(in crate::view) fn require(&mut self, demand: &OpenableModel, there_at_ns: u64, clock: u64) {
        self.promise(demand, there_at_ns, clock);
        self.copies_there_at_ns = there_at_ns;
        if let Some(held) = self.models.get_mut(&demand.model) {
            self.required += u32::from(!held.required);
            held.required = true;
        }
    }

    /// Requires a copy no longer; its grant stays.
    pub(in crate::view) fn require_no_more(&mut self, model: ModelKey) {
        if let Some(held) = self.models.get_mut(&model).filter(|held| held.required) {
            held.required = false;
            self.required -= 1;
        }
    }

    /// When the required copies are expected to be loaded.
    pub(in crate::view) fn copies_there_at_ns(&self) -> u64 {
        self.copies_there_at_ns
    }

    /// The models granted to running invocations or required, with their sizes, and whether each is
    /// required.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (ModelKey, ModelSize, bool)> {
        let granted = self.models.iter().filter(|(_, held)| held.grants > 0);
        granted.map(|(model, held)| (*model, held.size(), held.required))
    }

    /// Whether a model is in memory and was not given up.
    pub(in crate::view) fn has_loaded(&self, model: ModelKey) -> bool {
        self.models.get(&model).is_some_and(|held| held.resident && !held.is_evictable_now())
    }

    /// The size of a model for which [`holds`](Self::holds) is true, and the time at which its load
    /// ends: 0 if the model is resident.
    pub(crate) fn place_of(&self, model: ModelKey) -> Option<(ModelSize, u64)> {
        let held = self.models.get(&model).filter(|held| !held.is_evictable_now())?;
        Some((held.size(), if held.resident { 0 } else { held.there_at_ns }))
    }

    /// The models in memory that are neither granted nor given up, by key.
    pub fn candidates(&self) -> impl Iterator<Item = EvictionCandidate> {
        let free = self.models.iter().filter(|(_, held)| held.is_candidate());
        free.map(|(model, held)| self.as_candidate(*model, held))
    }

    /// One of the [`candidates`](Self::candidates).
    #[must_use]
    pub fn candidate(&self, model: ModelKey) -> Option<EvictionCandidate> {
        let held = self.models.get(&model).filter(|held| held.is_candidate())?;
        Some(self.as_candidate(model, held))
    }

    fn as_candidate(&self, model: ModelKey, held: &HeldModel) -> EvictionCandidate {
        let only_its = held.parts.iter().filter(|part| self.memory.holders(part.id).firm == 1);
        let bytes = only_its.fold(held.own_bytes(), |sum, part| sum.saturating_add(part.bytes));
        EvictionCandidate { model, bytes, used: held.used }
    }

    /// The size of a held model outside its parts, and its parts.
    pub(in crate::view) fn size_of(&self, model: ModelKey) -> Option<(u64, &ModelParts)> {
        self.models.get(&model).map(|held| (held.own_bytes(), &held.parts))
    }

    /// The holders of a part.
    pub(in crate::view) fn holders(&self, part: PartId) -> Holders {
        self.memory.holders(part)
    }

    /// Whether any model here has parts.
    pub(in crate::view) fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    /// Bytes of a model of `bytes` in total that no other model here shares.
    pub(in crate::view) fn missing_bytes(&self, model: ModelKey, bytes: u64, parts: &ModelParts) -> u64 {
        let own = u32::from(self.models.contains_key(&model));
        let missing = parts.iter().filter(|part| self.memory.holders(part.id).all <= own);
        missing.fold(parts.own_bytes(bytes), |sum, part| sum.saturating_add(part.bytes))
    }

    /// Memory needed to grant `demands`.
    #[must_use]
    pub fn need(&self, demands: &[OpenableModel]) -> Need {
        let mut missing_bytes = 0_u64;
        let mut firm_bytes = self.memory.firm_bytes();
        let mut counted = SmallVec::<[PartId; 8]>::new();
        for demand in self.own(demands) {
            let held = self.models.get(&demand.model);
            // Granting an evictable model takes it off the list of evictable models.
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

    /// All models with an entry here, given up or not.
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

    /// Grants a model to one more invocation.
    pub(in crate::view) fn promise(&mut self, demand: &OpenableModel, there_at_ns: u64, clock: u64) {
        self.given_up.retain(|model| *model != demand.model);
        let bytes = demand.bytes.min(BYTES_MAX);
        self.alter(
            demand.model,
            || HeldModel::new(bytes, demand.parts.clone(), there_at_ns),
            |held| {
                held.evictable = false;
                held.grants += 1;
                held.used = clock;
            },
        );
    }

    /// Ends one grant of a model.
    pub(in crate::view) fn keep_promise(&mut self, model: ModelKey) {
        let Some(held) = self.models.get_mut(&model) else { return };
        held.grants = held.grants.saturating_sub(1);
        if held.grants == 0 && !held.resident {
            self.remove(model);
        }
    }

    /// Makes a model evictable. Returns false if it is not resident, is granted, or is evictable
    /// already.
    pub(in crate::view) fn allow(&mut self, model: ModelKey) -> bool {
        let Some(held) = self.models.get_mut(&model).filter(|held| held.is_candidate()) else { return false };
        self.memory.remove(held.bytes, &held.parts, true);
        held.evictable = true;
        self.memory.add(held.bytes, &held.parts, false);
        true
    }

    /// Changes the entry of a model, or inserts `new` if there is none, and updates the sums.
    fn alter(
        &mut self,
        model: ModelKey,
        new: impl FnOnce() -> HeldModel,
        change: impl FnOnce(&mut HeldModel),
    ) {
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

    /// Gives up a model whose memory counts against its tenant elsewhere. The node learns of it
    /// with the next start here, since it needs no room before that.
    pub(in crate::view) fn give_up(&mut self, model: ModelKey) {
        if self.allow(model) {
            self.given_up.push(model);
        }
    }

    /// Takes the models given up since the last start here.
    pub(in crate::view) fn take_given_up(&mut self) -> Vec<ModelKey> {
        std::mem::take(&mut self.given_up)
    }

    /// Records a loaded model. Returns false if it was already loaded with this size.
    pub(in crate::view) fn loaded(
        &mut self,
        model: ModelKey,
        bytes: u64,
        parts: ModelParts,
        clock: u64,
    ) -> bool {
        let mut news = false;
        self.alter(
            model,
            || HeldModel::new(0, ModelParts::default(), 0),
            |held| {
                let bytes = bytes.min(BYTES_MAX);
                news = (held.resident, held.bytes, &held.parts) != (true, bytes, &parts);
                held.resident = true;
                held.bytes = bytes;
                held.parts = parts;
                held.used = clock;
            },
        );
        news
    }

    /// Records an evicted model. Returns false if it was not in memory.
    pub(in crate::view) fn evicted(&mut self, model: ModelKey) -> bool {
        let Some(held) = self.models.get_mut(&model).filter(|held| held.resident) else { return false };
        if held.grants == 0 {
            self.remove(model);
        } else {
            // A running invocation that holds a grant may load it again.
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

impl HeldModel {
    /// A model that is neither resident nor granted.
    fn new(bytes: u64, parts: ModelParts, there_at_ns: u64) -> Self {
        Self {
            bytes,
            parts,
            resident: false,
            grants: 0,
            required: false,
            evictable: false,
            used: 0,
            there_at_ns,
        }
    }

    fn size(&self) -> ModelSize {
        ModelSize { bytes: self.bytes, parts: self.parts.clone() }
    }

    fn own_bytes(&self) -> u64 {
        self.parts.own_bytes(self.bytes)
    }

    /// Whether the model may become a victim.
    fn is_candidate(&self) -> bool {
        self.resident && self.grants == 0 && !self.evictable
    }

    fn is_evictable_now(&self) -> bool {
        self.evictable && self.grants == 0
    }
}
