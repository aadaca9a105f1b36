//! The room that a device has once it gives up some of its models.

use super::DeviceView;
use crate::policy::Demand;
use crate::{ModelKey, PartId};
use smallvec::SmallVec;

/// Freeing that is made by giving up one candidate after the other. What several of them have in common is free once the last of those goes.
#[derive(Debug, Clone)]
pub struct Freeing<'a> {
    device: &'a DeviceView,
    /// Parts of what the room is made for: they stay whoever goes.
    kept: SmallVec<[PartId; 4]>,
    /// How many of those that have a part have gone.
    gone: SmallVec<[(PartId, u32); 4]>,
    bytes: u64,
}

impl<'a> Freeing<'a> {
    /// None yet, for `demands`.
    #[must_use]
    pub fn new(device: &'a DeviceView, demands: &[Demand]) -> Self {
        let kept = device.own(demands).flat_map(|demand| demand.parts.iter()).map(|part| part.id).collect();
        Self { device, kept, gone: SmallVec::new(), bytes: 0 }
    }

    /// What has been made.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Give up a candidate.
    pub fn give_up(&mut self, model: ModelKey) {
        let Some((own_bytes, parts)) = self.device.size_of(model) else { return };
        self.bytes = self.bytes.saturating_add(own_bytes);
        for part in parts.iter().filter(|part| !self.kept.contains(&part.id)) {
            let at = self.gone.iter().position(|(gone, _)| *gone == part.id).unwrap_or_else(|| {
                self.gone.push((part.id, 0));
                self.gone.len() - 1
            });
            self.gone[at].1 += 1;
            let holders = self.device.holders(part.id);
            if self.gone[at].1 == holders.firm {
                self.bytes = self.bytes.saturating_add(holders.bytes);
            }
        }
    }

    /// Whether what is freed by several may be more than what is freed by each.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.device.is_shared()
    }
}
