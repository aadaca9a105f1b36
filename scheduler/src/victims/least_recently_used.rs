//! Evicts the least recently used model.

use super::{VictimPolicy, Victims};
use crate::{DeviceKey, EvictionCandidate, Freeing, ModelKey, View};
use smallvec::SmallVec;

/// Evicts by the time of the last grant or load, oldest first. Models granted together are ordered
/// by key.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastRecentlyUsed;

impl VictimPolicy for LeastRecentlyUsed {
    fn choose(
        &self,
        _now_ns: u64,
        view: &View,
        device: DeviceKey,
        bytes: u64,
        mut freeing: Freeing<'_>,
        keep: &dyn Fn(ModelKey) -> bool,
    ) -> Option<Victims> {
        let candidates = view.device(device)?.candidates();
        let mut candidates: SmallVec<[EvictionCandidate; 16]> =
            candidates.filter(|candidate| !keep(candidate.model)).collect();
        candidates.sort_unstable_by_key(|candidate| (candidate.used, candidate.model));
        let mut victims = Victims::default();
        for candidate in candidates {
            if freeing.bytes() >= bytes {
                break;
            }
            freeing.give_up(candidate.model);
            victims.models.push(candidate.model);
        }
        (freeing.bytes() >= bytes).then_some(victims)
    }
}
