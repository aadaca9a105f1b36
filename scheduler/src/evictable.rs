//! The node's side of [`Action::Start`](crate::Action::Start)'s `evict`: the models that a device
//! may evict now.

use std::collections::{BTreeSet, HashMap};
use weir_types::{InvocationId, ModelId};

/// The eviction list of one device. The driver reports every start and end on the device, and asks
/// the list for victims before each load.
///
/// A model stays on the list until it is granted again or evicted, since several loads may rely on
/// it. The scheduler keeps the same list and guarantees that everything granted fits once the whole
/// list is evicted.
#[derive(Debug, Default)]
pub struct Evictable {
    /// In order of eviction.
    allowed: Vec<ModelId>,
    grants: HashMap<InvocationId, Vec<ModelId>>,
    /// Number of invocations that hold a grant of a model, and one more if the model is required.
    granted: HashMap<ModelId, u32>,
    required: BTreeSet<ModelId>,
}

impl Evictable {
    /// Creates an empty list without grants.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts an invocation: grants `models` to it, and allows `evict` to be evicted.
    pub fn start(&mut self, invocation: InvocationId, models: Vec<ModelId>, evict: Vec<ModelId>) {
        self.allowed.retain(|model| !models.contains(model));
        self.allow(evict);
        for model in &models {
            *self.granted.entry(model.clone()).or_default() += 1;
        }
        if let Some(before) = self.grants.insert(invocation, models) {
            self.release(before);
        }
    }

    /// Grants one more model to an invocation, whether or not it holds other grants here.
    pub fn add(&mut self, invocation: InvocationId, model: ModelId) {
        let models = self.grants.entry(invocation).or_default();
        if !models.contains(&model) {
            self.allowed.retain(|allowed| *allowed != model);
            *self.granted.entry(model.clone()).or_default() += 1;
            models.push(model);
        }
    }

    /// Keeps a model until [`release_required`](Self::release_required), and allows `evict` to be
    /// evicted.
    pub fn require(&mut self, model: ModelId, evict: Vec<ModelId>) {
        self.allow(evict);
        self.allowed.retain(|allowed| *allowed != model);
        if self.required.insert(model.clone()) {
            *self.granted.entry(model).or_default() += 1;
        }
    }

    /// Keeps a required model no longer. Returns false if it was not required.
    pub fn release_required(&mut self, model: &ModelId) -> bool {
        let Some(model) = self.required.take(model) else { return false };
        self.release(vec![model]);
        true
    }

    /// Whether a model is required.
    #[must_use]
    pub fn is_required(&self, model: &ModelId) -> bool {
        self.required.contains(model)
    }

    /// The required models.
    pub fn required(&self) -> impl Iterator<Item = &ModelId> {
        self.required.iter()
    }

    /// Allows more models to be evicted, independent of any invocation. Required models stay.
    pub fn allow(&mut self, evict: Vec<ModelId>) {
        for model in evict {
            if !self.allowed.contains(&model) && !self.required.contains(&model) {
                self.allowed.push(model);
            }
        }
    }

    /// The models of `resident` that are neither granted nor on the eviction list.
    #[must_use]
    pub fn unneeded<'a>(&self, resident: impl IntoIterator<Item = &'a ModelId>) -> Vec<ModelId> {
        let is_unneeded =
            |model: &&ModelId| !self.granted.contains_key(*model) && !self.allowed.contains(*model);
        resident.into_iter().filter(is_unneeded).cloned().collect()
    }

    /// Whether an invocation holds a grant of a model, or the model is required.
    #[must_use]
    pub fn is_granted(&self, model: &ModelId) -> bool {
        self.granted.contains_key(model)
    }

    /// Whether a model on the list is still granted, so that its eviction has to wait.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.allowed.iter().any(|model| self.granted.contains_key(model))
    }

    /// Ends an invocation and releases its grants.
    pub fn finish(&mut self, invocation: InvocationId) {
        if let Some(models) = self.grants.remove(&invocation) {
            self.release(models);
        }
    }

    /// Removes a model that is no longer in memory.
    pub fn evicted(&mut self, model: &ModelId) {
        self.allowed.retain(|allowed| allowed != model);
    }

    /// The models that a load may evict now, in order of eviction.
    #[must_use]
    pub fn victims(&self) -> Vec<ModelId> {
        self.allowed.iter().filter(|model| !self.granted.contains_key(*model)).cloned().collect()
    }

    fn release(&mut self, models: Vec<ModelId>) {
        for model in models {
            if let Some(count) = self.granted.get_mut(&model) {
                *count -= 1;
                if *count == 0 {
                    self.granted.remove(&model);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    fn model(name: &str) -> ModelId {
        ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) }
    }

    #[test]
    fn unneeded_excludes_granted_and_evictable_models() {
        let used = model("used");
        let allowed = model("allowed");
        let idle = model("idle");
        let resident = [used.clone(), allowed.clone(), idle.clone()];
        let mut evictable = Evictable::new();
        evictable.start(InvocationId(1), vec![used.clone()], vec![allowed.clone()]);
        assert_eq!(evictable.unneeded(&resident), std::slice::from_ref(&idle));
        evictable.allow(vec![idle.clone()]);
        assert_eq!(evictable.unneeded(&resident), []);
        assert_eq!(evictable.victims(), [allowed, idle]);
        evictable.finish(InvocationId(1));
        assert_eq!(evictable.unneeded(&resident), [used]);
    }

    #[test]
    fn required_models_are_kept_until_they_are_released() {
        let required = model("required");
        let victim = model("victim");
        let mut evictable = Evictable::new();
        evictable.allow(vec![required.clone()]);
        evictable.require(required.clone(), vec![victim.clone()]);
        evictable.require(required.clone(), vec![]);
        assert_eq!(evictable.victims(), std::slice::from_ref(&victim));
        assert_eq!(evictable.unneeded([&required]), []);
        assert!(evictable.is_granted(&required));
        // Nothing allows its eviction, so no load waits for it.
        evictable.start(InvocationId(2), vec![], vec![required.clone()]);
        assert!(!evictable.is_held_up());
        evictable.finish(InvocationId(2));
        // The end of a call does not end the requirement.
        evictable.start(InvocationId(1), vec![required.clone()], vec![]);
        evictable.finish(InvocationId(1));
        assert!(evictable.is_granted(&required));
        assert!(evictable.release_required(&required) && !evictable.release_required(&required));
        assert_eq!(evictable.unneeded([&required]), std::slice::from_ref(&required));
    }

    #[test]
    fn added_models_are_kept_until_their_invocations_end() {
        let granted = model("granted");
        let beside = model("beside");
        let mut evictable = Evictable::new();
        evictable.start(InvocationId(1), vec![granted.clone()], vec![beside.clone()]);
        assert_eq!(evictable.victims(), std::slice::from_ref(&beside));
        for invocation in [1, 1, 2] {
            // Invocation 2 has no other grant here.
            evictable.add(InvocationId(invocation), beside.clone());
            evictable.allow(vec![beside.clone()]);
            assert_eq!((evictable.victims(), evictable.is_held_up()), (vec![], true));
        }
        evictable.finish(InvocationId(1));
        assert_eq!(evictable.victims(), []);
        evictable.finish(InvocationId(2));
        assert_eq!((evictable.victims(), evictable.is_held_up()), (vec![beside], false));
    }
}
