//! The node's side of [`Action::Start`](crate::Action::Start)'s `evict`: what a device may give up at this moment.

use std::collections::HashMap;
use weir_types::{InvocationId, ModelId};

/// What one device may give up, kept by the driver: told of every start and end on the device, it answers each load with the victims.
///
/// A model stays on the list until it is granted again or gone, since several loads may rely on it. The scheduler keeps the same list,
/// and sees to it that after giving up all of it, everything granted fits.
#[derive(Debug, Default)]
pub struct Evictable {
    /// First to go first.
    allowed: Vec<ModelId>,
    grants: HashMap<InvocationId, Vec<ModelId>>,
    granted: HashMap<ModelId, u32>,
}

impl Evictable {
    /// Nothing granted, nothing to give up.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An invocation starts: `models` are granted to it, and `evict` may go.
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

    /// An invocation uses one more model than it was granted here, if it was granted any.
    pub fn add(&mut self, invocation: InvocationId, model: ModelId) {
        let models = self.grants.entry(invocation).or_default();
        if !models.contains(&model) {
            self.allowed.retain(|allowed| *allowed != model);
            *self.granted.entry(model.clone()).or_default() += 1;
            models.push(model);
        }
    }

    /// These may go too, whoever runs.
    pub fn allow(&mut self, evict: Vec<ModelId>) {
        for model in evict {
            if !self.allowed.contains(&model) {
                self.allowed.push(model);
            }
        }
    }

    /// Those of `resident` that no invocation here was granted, and that nobody has allowed to go.
    #[must_use]
    pub fn unneeded<'a>(&self, resident: impl IntoIterator<Item = &'a ModelId>) -> Vec<ModelId> {
        let is_unneeded =
            |model: &&ModelId| !self.granted.contains_key(*model) && !self.allowed.contains(*model);
        resident.into_iter().filter(is_unneeded).cloned().collect()
    }

    /// Whether something may go as soon as those who hold it are done.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.allowed.iter().any(|model| self.granted.contains_key(model))
    }

    /// An invocation is over.
    pub fn finish(&mut self, invocation: InvocationId) {
        if let Some(models) = self.grants.remove(&invocation) {
            self.release(models);
        }
    }

    /// A model is not in memory any more.
    pub fn evicted(&mut self, model: &ModelId) {
        self.allowed.retain(|allowed| allowed != model);
    }

    /// The models that a load may evict now, first to go first.
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
    fn what_nobody_was_granted_and_nobody_has_allowed_is_unneeded() {
        let (used, allowed, idle) = (model("used"), model("allowed"), model("idle"));
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
    fn what_an_invocation_uses_besides_stays_until_it_is_over() {
        let (granted, beside) = (model("granted"), model("beside"));
        let mut evictable = Evictable::new();
        evictable.start(InvocationId(1), vec![granted.clone()], vec![beside.clone()]);
        assert_eq!(evictable.victims(), std::slice::from_ref(&beside));
        for invocation in [1, 1, 2] {
            // Also of an invocation that was granted nothing here.
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
