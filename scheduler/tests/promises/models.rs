//! The models, and their shared parts.

use std::collections::HashSet;
use weir_scheduler::{Part, PartId};
use weir_types::{ModelId, Name, TenantId, Version};

/// Sizes by model. The last is larger than any device.
pub(super) const SIZES: [u64; 8] = [4, 5, 3, 5, 1, 2, 0, 13];
/// Shared parts by model, as (id, bytes).
pub(super) const PARTS: [&[(u64, u64)]; 8] =
    [&[], &[(1, 3)], &[(2, 2)], &[(1, 3), (2, 2)], &[], &[(2, 2)], &[], &[(1, 3)]];

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn model(index: usize) -> ModelId {
    ModelId { tenant: TenantId::default(), name: name(&format!("m{index}")), version: Version(1) }
}

pub(super) fn index(of: &ModelId) -> usize {
    of.name.as_str()[1..].parse().unwrap()
}

pub(super) fn parts(index: usize) -> Vec<Part> {
    PARTS[index].iter().map(|(id, bytes)| Part { id: PartId(*id), bytes: *bytes }).collect()
}

/// Bytes of models together, in which shared parts count once.
pub(super) fn together_bytes<'a>(models: impl IntoIterator<Item = &'a ModelId>) -> u64 {
    let models: HashSet<usize> = models.into_iter().map(index).collect();
    let shared: HashSet<(u64, u64)> = models.iter().flat_map(|model| PARTS[*model]).copied().collect();
    let sum = |parts: &mut dyn Iterator<Item = &(u64, u64)>| parts.map(|(_, bytes)| bytes).sum::<u64>();
    let own: u64 = models.iter().map(|model| SIZES[*model] - sum(&mut PARTS[*model].iter())).sum();
    own + sum(&mut shared.iter())
}
