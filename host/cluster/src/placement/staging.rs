//! Where this node would load models from, as reported to the placer.

use super::Placements;
use super::state::PlacementState;
use crate::wire::{NodeEvent, STAGED_PER_MESSAGE, StagedModel};
use std::collections::BTreeMap;
use weir_scheduler::StorageTier;
use weir_types::ModelId;

/// The limit of models that are reported. Further models count as unreported.
const REPORTED_MAX: usize = 16_384;

/// A change of a tier's share that is reported: one part in this many of the model.
const CHANGE_PART: u64 = 16;

/// The models whose files are elsewhere than in the node's origin, as reported last.
pub(super) struct StagingTable {
    origin: StorageTier,
    staged: BTreeMap<ModelId, Vec<(StorageTier, u64)>>,
}

impl StagingTable {
    pub(super) fn new(origin: StorageTier) -> Self {
        Self { origin, staged: BTreeMap::new() }
    }

    /// The tier of the models that are not in the table.
    pub(super) fn origin(&self) -> StorageTier {
        self.origin
    }

    /// All models in the table.
    pub(super) fn all(&self) -> Vec<StagedModel> {
        let staged = |(model, bytes): (&ModelId, &Vec<_>)| StagedModel {
            model: model.clone(),
            bytes: bytes.clone(),
            moved: None,
        };
        self.staged.iter().map(staged).collect()
    }

    /// Records the tiers of a model's files. Returns the report for the scheduler, if they have
    /// changed notably or were transferred.
    fn set(&mut self, mut now: StagedModel) -> Option<StagedModel> {
        now.bytes.retain(|(_, bytes)| *bytes > 0);
        if now.bytes.iter().all(|(tier, _)| *tier == self.origin) {
            now.bytes.clear();
        }
        let before = self.staged.get(&now.model).map(Vec::as_slice).unwrap_or_default();
        let is_full = before.is_empty() && self.staged.len() >= REPORTED_MAX;
        if (is_full || !differ(before, &now.bytes)) && now.moved.is_none() {
            return None;
        }
        if now.bytes.is_empty() || is_full {
            now.bytes.clear();
            self.staged.remove(&now.model);
        } else {
            self.staged.insert(now.model.clone(), now.bytes.clone());
        }
        Some(now)
    }
}

/// Whether the shares of the tiers differ notably.
fn differ(before: &[(StorageTier, u64)], now: &[(StorageTier, u64)]) -> bool {
    let sum =
        |staged: &[(StorageTier, u64)]| staged.iter().map(|(_, bytes)| u128::from(*bytes)).sum::<u128>();
    let sum_before = sum(before);
    let sum_now = sum(now);
    if sum_before == 0 || sum_now == 0 {
        return sum_before != sum_now;
    }
    let of = |staged: &[(StorageTier, u64)], tier| {
        let bytes = staged.iter().filter(|(other, _)| *other == tier).map(|(_, bytes)| u128::from(*bytes));
        bytes.sum::<u128>()
    };
    // Shares are compared without division.
    StorageTier::ALL.into_iter().any(|tier| {
        let share_before = of(before, tier) * sum_now;
        let share_now = of(now, tier) * sum_before;
        share_before.abs_diff(share_now) * u128::from(CHANGE_PART) > sum_before * sum_now
    })
}

impl Placements {
    /// Reports the tiers of models' files to the scheduler: models whose tiers have changed, and all
    /// transfers.
    pub fn staged(&self, models: Vec<StagedModel>) {
        let mut state = self.state.lock();
        self.stage_all(&mut state, models);
    }

    pub(super) fn stage_all(&self, state: &mut PlacementState, models: Vec<StagedModel>) {
        let news: Vec<_> = models.into_iter().filter_map(|staged| state.staging.set(staged)).collect();
        for models in news.chunks(STAGED_PER_MESSAGE) {
            self.tell(state, NodeEvent::Staged { models: models.to_vec() });
        }
    }

    /// The models whose files are elsewhere than in the node's origin, as reported last.
    pub fn staged_models(&self) -> Vec<StagedModel> {
        self.state.lock().staging.all()
    }

    /// The tier from which this node would load models that it has not reported.
    pub fn origin(&self) -> StorageTier {
        self.state.lock().staging.origin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_scheduler::MeasuredTransfer;
    use weir_types::{Name, TenantId, Version};

    fn staged(name: &str, bytes: &[(StorageTier, u64)]) -> StagedModel {
        let name = Name::new(name).unwrap();
        let model = ModelId { tenant: TenantId::default(), name, version: Version(1) };
        StagedModel { model, bytes: bytes.to_vec(), moved: None }
    }

    #[test]
    fn only_changes_are_reported() {
        let mut table = StagingTable::new(StorageTier::ObjectStore);
        let far = staged("a", &[(StorageTier::ObjectStore, 100)]);
        assert_eq!(table.set(far.clone()), None, "it is where models are unless reported");
        let near = staged("a", &[(StorageTier::Memory, 100), (StorageTier::Disk, 0)]);
        assert_eq!(table.set(near.clone()), Some(staged("a", &[(StorageTier::Memory, 100)])));
        assert_eq!(table.set(near), None);
        assert_eq!(
            table.set(staged("a", &[(StorageTier::Memory, 95), (StorageTier::Disk, 5)])),
            None,
            "a small change"
        );
        assert_eq!(table.set(staged("a", &[(StorageTier::Memory, 190)])), None, "the same shares");
        let mixed = staged("a", &[(StorageTier::Memory, 60), (StorageTier::Disk, 40)]);
        assert_eq!(table.set(mixed.clone()), Some(mixed.clone()));
        assert_eq!(table.all(), [mixed]);
        assert_eq!(table.set(far), Some(staged("a", &[])));
        assert_eq!(table.all(), []);
    }

    #[test]
    fn every_transfer_is_reported() {
        let mut table = StagingTable::new(StorageTier::ObjectStore);
        let moved = Some(MeasuredTransfer { from: StorageTier::ObjectStore, bytes: 7, time_ns: 1 });
        let fetched = StagedModel { moved, ..staged("a", &[(StorageTier::Memory, 7)]) };
        for _ in 0..2 {
            assert_eq!(table.set(fetched.clone()), Some(fetched.clone()));
        }
    }

    #[test]
    fn table_is_bounded() {
        let mut table = StagingTable::new(StorageTier::ObjectStore);
        let near = |number: usize| staged(&format!("m{number}"), &[(StorageTier::Disk, 1)]);
        for number in 0..REPORTED_MAX {
            assert!(table.set(near(number)).is_some());
        }
        assert_eq!(table.set(near(REPORTED_MAX)), None);
        assert_eq!(table.all().len(), REPORTED_MAX);
    }
}
