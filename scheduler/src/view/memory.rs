//! Byte accounting of a device's memory. A part shared by several models is stored once and counts
//! once (the Tetris paper, section 4: tensors shared by content).

use crate::policy::OpenableModel;
use crate::{Part, PartId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Upper bound on the size of a device or model, 256 TiB, so that sums stay far from overflow.
pub(super) const BYTES_MAX: u64 = 1 << 48;

/// Maximum number of parts per model; the rest counts as the model's own bytes.
const PARTS_MAX: usize = 16;

/// The parts of a model that other models may share. Most models have none, which costs no
/// allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelParts(Option<Arc<[Part]>>);

impl ModelParts {
    /// The parts of a model of `bytes` in total. Parts that exceed `bytes` are invalid and ignored.
    #[must_use]
    pub fn new(bytes: u64, parts: &[Part]) -> Self {
        let mut known: SmallVec<[Part; PARTS_MAX]> =
            parts.iter().filter(|part| part.bytes > 0).take(PARTS_MAX).copied().collect();
        known.sort_unstable();
        known.dedup_by_key(|part| part.id);
        let sum = known.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        Self((!known.is_empty() && sum <= bytes.min(BYTES_MAX)).then(|| Arc::from(&known[..])))
    }

    /// Iterates over the parts, each once.
    pub fn iter(&self) -> impl Iterator<Item = Part> {
        self.0.iter().flat_map(|parts| parts.iter().copied())
    }

    /// Whether there are no parts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes of the model outside its parts.
    pub(crate) fn own_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.iter().map(|part| part.bytes).sum())
    }
}

/// Size of a model, and the parts of it that other models may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelSize {
    pub(crate) bytes: u64,
    pub(crate) parts: ModelParts,
}

impl ModelSize {
    /// The size given in a demand.
    pub(crate) fn for_demand(demand: &OpenableModel) -> Self {
        Self { bytes: demand.bytes, parts: demand.parts.clone() }
    }
}

/// Sum of the sizes of several models, in which a shared part counts once.
#[derive(Debug, Clone, Default)]
pub(crate) struct CombinedModelSize {
    bytes: u64,
    counted: SmallVec<[PartId; 4]>,
}

impl CombinedModelSize {
    /// Adds a model.
    pub(crate) fn add(&mut self, ModelSize { bytes, parts }: &ModelSize) {
        self.bytes = self.bytes.saturating_add(parts.own_bytes(*bytes));
        for part in parts.iter() {
            if !self.counted.contains(&part.id) {
                self.counted.push(part.id);
                self.bytes = self.bytes.saturating_add(part.bytes);
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes that models take together in an otherwise empty memory.
pub(crate) fn together_bytes<'a>(demands: impl IntoIterator<Item = &'a OpenableModel>) -> u64 {
    let mut together = CombinedModelSize::default();
    demands.into_iter().for_each(|demand| together.add(&ModelSize::for_demand(demand)));
    together.bytes()
}

/// Bytes held, and how many of them are evictable.
#[derive(Debug, Default)]
pub(super) struct MemoryUse {
    held_bytes: u64,
    evictable_bytes: u64,
    parts: BTreeMap<PartId, Holders>,
}

/// Number of models that contain a part.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Holders {
    /// Size reported by the first of these models.
    pub(super) bytes: u64,
    pub(super) all: u32,
    /// Number of these models that are not evictable.
    pub(super) firm: u32,
}

impl MemoryUse {
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes freed by evicting every evictable model.
    pub(super) fn evictable_bytes(&self) -> u64 {
        self.evictable_bytes
    }

    /// Bytes that are not evictable.
    pub(super) fn firm_bytes(&self) -> u64 {
        self.held_bytes.saturating_sub(self.evictable_bytes)
    }

    /// The holders of a part.
    pub(super) fn holders(&self, part: PartId) -> Holders {
        self.parts.get(&part).copied().unwrap_or_default()
    }

    /// Whether any model has parts.
    pub(super) fn is_shared(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Adds a model that is not evictable (`firm`) or evictable.
    pub(super) fn add(&mut self, bytes: u64, parts: &ModelParts, firm: bool) {
        let own_bytes = parts.own_bytes(bytes);
        self.held_bytes = self.held_bytes.saturating_add(own_bytes);
        if !firm {
            self.evictable_bytes = self.evictable_bytes.saturating_add(own_bytes);
        }
        for part in parts.iter() {
            let holders = self.parts.entry(part.id).or_insert(Holders { bytes: part.bytes, all: 0, firm: 0 });
            if holders.all == 0 {
                self.held_bytes = self.held_bytes.saturating_add(holders.bytes);
                self.evictable_bytes = self.evictable_bytes.saturating_add(holders.bytes);
            }
            if firm && holders.firm == 0 {
                self.evictable_bytes -= holders.bytes;
            }
            holders.all += 1;
            holders.firm += u32::from(firm);
        }
    }

    /// Removes a model that was added with the same arguments.
    pub(super) fn remove(&mut self, bytes: u64, parts: &ModelParts, firm: bool) {
        let own_bytes = parts.own_bytes(bytes);
        self.held_bytes = self.held_bytes.saturating_sub(own_bytes);
        if !firm {
            self.evictable_bytes = self.evictable_bytes.saturating_sub(own_bytes);
        }
        for part in parts.iter() {
            let Some(holders) = self.parts.get_mut(&part.id) else { continue };
            holders.all -= 1;
            holders.firm -= u32::from(firm);
            if firm && holders.firm == 0 {
                self.evictable_bytes = self.evictable_bytes.saturating_add(holders.bytes);
            }
            if holders.all == 0 {
                self.held_bytes = self.held_bytes.saturating_sub(holders.bytes);
                self.evictable_bytes = self.evictable_bytes.saturating_sub(holders.bytes);
                self.parts.remove(&part.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Each part has a fixed size, as weights do.
    fn part(id: u64) -> Part {
        Part { id: PartId(id), bytes: id * 10 + 1 }
    }

    fn model() -> impl Strategy<Value = (u64, ModelParts)> {
        (0..100_u64, prop::collection::btree_set(0..8_u64, 0..5)).prop_map(|(own_bytes, parts)| {
            let parts: Vec<Part> = parts.into_iter().map(part).collect();
            let bytes = own_bytes + parts.iter().map(|part| part.bytes).sum::<u64>();
            (bytes, ModelParts::new(bytes, &parts))
        })
    }

    /// The union computed without counters.
    fn union<'a>(models: impl Iterator<Item = &'a (u64, ModelParts)> + Clone) -> u64 {
        let parts: BTreeSet<Part> = models.clone().flat_map(|(_, parts)| parts.iter()).collect();
        let own: u64 = models.map(|(bytes, parts)| parts.own_bytes(*bytes)).sum();
        own + parts.iter().map(|part| part.bytes).sum::<u64>()
    }

    proptest! {
        #[test]
        fn shared_parts_count_once_in_any_order_of_changes(
            all in prop::collection::vec((model(), any::<bool>()), 1..12),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 0..40),
        ) {
            let mut memory = MemoryUse::default();
            let mut states: Vec<Option<bool>> = all.iter().map(|(_, firm)| Some(*firm)).collect();
            for ((bytes, parts), firm) in &all {
                memory.add(*bytes, parts, *firm);
            }
            for (at, step) in steps {
                let at = at.index(all.len());
                let (bytes, parts) = &all[at].0;
                if let Some(firm) = states[at].take() {
                    memory.remove(*bytes, parts, firm);
                }
                if step < 2 {
                    memory.add(*bytes, parts, step == 1);
                    states[at] = Some(step == 1);
                }
                let held = |wanted: &dyn Fn(bool) -> bool| {
                    let models = all.iter().zip(&states).filter(|(_, state)| state.is_some_and(wanted));
                    union(models.map(|((model, _), _)| model).collect::<Vec<_>>().into_iter())
                };
                prop_assert_eq!(memory.held_bytes(), held(&|_| true));
                prop_assert_eq!(memory.firm_bytes(), held(&|firm| firm));
            }
        }
    }

    #[test]
    fn invalid_parts_are_ignored() {
        let some = Part { id: PartId(1), bytes: 6 };
        let other = Part { id: PartId(2), bytes: 6 };
        assert!(ModelParts::new(10, &[some, other]).is_empty());
        assert!(ModelParts::new(10, &[Part { id: PartId(1), bytes: 0 }]).is_empty());
        assert!(ModelParts::new(u64::MAX, &[some, Part { id: PartId(2), bytes: u64::MAX }]).is_empty());
        assert_eq!(ModelParts::new(10, &[some, some]).iter().collect::<Vec<_>>(), [some]);
        assert_eq!(ModelParts::new(10, &[some]).own_bytes(10), 4);
    }
}
