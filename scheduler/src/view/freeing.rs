//! The memory that a device frees by evicting some of its models.

use super::DeviceView;
use crate::policy::OpenableModel;
use crate::{ModelKey, PartId};
use smallvec::SmallVec;

/// Accumulates the bytes freed by evicting one candidate after the other. A part shared by several
/// models is freed with the last of them.
#[derive(Debug, Clone)]
pub struct Freeing<'a> {
    device: &'a DeviceView,
    /// Parts of the models that the room is made for: they stay resident.
    kept: SmallVec<[PartId; 4]>,
    /// Number of evicted holders by part.
    gone: SmallVec<[(PartId, u32); 4]>,
    bytes: u64,
}

impl<'a> Freeing<'a> {
    /// Creates an empty accumulator for making room for `demands`.
    #[must_use]
    pub fn new(device: &'a DeviceView, demands: &[OpenableModel]) -> Self {
        let kept = device.own(demands).flat_map(|demand| demand.parts.iter()).map(|part| part.id).collect();
        Self { device, kept, gone: SmallVec::new(), bytes: 0 }
    }

    /// Bytes freed so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a candidate to the evicted models.
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

    /// Whether evicting several models may free more than the sum of evicting each.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.device.is_shared()
    }
}
