//! Device memory of models, alone and together: parts that several models share count once.

use std::collections::HashMap;
use std::sync::Arc;
use weir_types::ContentHash;

/// Device memory of one model. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    own_bytes: u64,
    parts: Arc<[(SharedPart, u64)]>,
}

/// A part that models can share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedPart {
    /// Hash of the weights.
    pub hash: ContentHash,
    /// The models that share the packed copy of the weights; `None`: the raw weights, which all
    /// models share.
    pub family: Option<u64>,
}

impl Footprint {
    /// A model that shares nothing with other models.
    #[must_use]
    pub fn own(bytes: u64) -> Self {
        Self { own_bytes: bytes, parts: Arc::from([]) }
    }

    /// A model with `own_bytes` of unshared memory, and with `parts` that other models can share.
    #[must_use]
    pub fn new(own_bytes: u64, parts: impl IntoIterator<Item = (SharedPart, u64)>) -> Self {
        Self { own_bytes, parts: parts.into_iter().collect() }
    }

    /// The same footprint, with own bytes added until the total is at least `bytes`.
    #[must_use]
    pub fn at_least(mut self, bytes: u64) -> Self {
        self.own_bytes = self.own_bytes.saturating_add(bytes.saturating_sub(self.total_bytes()));
        self
    }

    /// Memory that no other model can share.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// Parts that other models can share, with their bytes.
    #[must_use]
    pub fn parts(&self) -> &[(SharedPart, u64)] {
        &self.parts
    }

    /// Memory that the model takes alone, when no part of it is loaded.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().fold(self.own_bytes, |total, (_, bytes)| total.saturating_add(*bytes))
    }
}

/// Memory that a set of models takes together.
#[derive(Debug, Clone, Default)]
pub(crate) struct CombinedSize {
    bytes: u64,
    parts: HashMap<SharedPart, PartHolders>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PartHolders {
    bytes: u64,
    holders: usize,
}

impl CombinedSize {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Additional memory that one more model would take.
    pub(crate) fn missing_bytes(&self, footprint: &Footprint) -> u64 {
        let parts = footprint.parts.iter();
        let missing = |(part, bytes): &(SharedPart, u64)| bytes.saturating_sub(self.held_bytes(part));
        parts.map(missing).fold(footprint.own_bytes, u64::saturating_add)
    }

    fn held_bytes(&self, part: &SharedPart) -> u64 {
        self.parts.get(part).map_or(0, |shared| shared.bytes)
    }

    pub(crate) fn add(&mut self, footprint: &Footprint) {
        self.bytes = self.bytes.saturating_add(footprint.own_bytes);
        for (part, bytes) in footprint.parts.iter() {
            let shared = self.parts.entry(*part).or_default();
            shared.holders += 1;
            // Estimates of one part may differ from model to model.
            self.bytes = self.bytes.saturating_add(bytes.saturating_sub(shared.bytes));
            shared.bytes = shared.bytes.max(*bytes);
        }
    }

    /// Removes a model that was added.
    pub(crate) fn remove(&mut self, footprint: &Footprint) {
        self.bytes = self.bytes.saturating_sub(footprint.own_bytes);
        for (part, _) in footprint.parts.iter() {
            let Some(shared) = self.parts.get_mut(part) else { continue };
            shared.holders -= 1;
            if shared.holders == 0 {
                self.bytes = self.bytes.saturating_sub(shared.bytes);
                self.parts.remove(part);
            }
        }
    }
}

impl<'a> FromIterator<&'a Footprint> for CombinedSize {
    fn from_iter<All: IntoIterator<Item = &'a Footprint>>(all: All) -> Self {
        let mut together = Self::default();
        all.into_iter().for_each(|footprint| together.add(footprint));
        together
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Parts have one size each, as weights do.
    fn part(number: u8) -> (SharedPart, u64) {
        (SharedPart { hash: ContentHash::from_content(&[number]), family: None }, u64::from(number) * 10)
    }

    fn footprints() -> impl Strategy<Value = Vec<Footprint>> {
        let parts = prop::collection::btree_set(0..20_u8, 0..10);
        let footprint =
            (0..100_u64, parts).prop_map(|(own, parts)| Footprint::new(own, parts.into_iter().map(part)));
        prop::collection::vec(footprint, 1..12)
    }

    /// Reference implementation.
    fn union(all: &[&Footprint]) -> u64 {
        let parts: BTreeMap<SharedPart, u64> =
            all.iter().flat_map(|footprint| footprint.parts.iter().copied()).collect();
        all.iter().map(|footprint| footprint.own_bytes).sum::<u64>() + parts.values().sum::<u64>()
    }

    proptest! {
        #[test]
        fn shared_parts_count_once_after_adds_and_removes(all in footprints(), gone in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            let mut together: CombinedSize = all.iter().collect();
            prop_assert_eq!(together.bytes(), union(&all.iter().collect::<Vec<_>>()));
            let gone: BTreeSet<_> = gone.iter().map(|index| index.index(all.len())).collect();
            gone.iter().for_each(|place| together.remove(&all[*place]));
            let left: Vec<_> = all.iter().enumerate().filter(|(place, _)| !gone.contains(place)).map(|(_, one)| one).collect();
            prop_assert_eq!(together.bytes(), union(&left));
            for one in &all {
                let with: Vec<_> = left.iter().copied().chain([one]).collect();
                prop_assert_eq!(together.missing_bytes(one), union(&with) - union(&left));
            }
        }
    }

    #[test]
    fn measured_excess_over_estimate_becomes_own_bytes() {
        let estimate = Footprint::new(5, [part(1), part(2)]);
        assert_eq!((estimate.total_bytes(), estimate.clone().at_least(20)), (35, estimate.clone()));
        assert_eq!(estimate.clone().at_least(40), Footprint::new(10, [part(1), part(2)]));
        assert_eq!(Footprint::own(u64::MAX).at_least(7).total_bytes(), u64::MAX);
    }
}
