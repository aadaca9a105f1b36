//! A model's weights on a device.

use super::device::Gpu;
use crate::mapping::Mapping;
use bytes::Bytes;
use std::io;
use std::path::Path;
use weir_device::cuda::{Source, Span, Tensor, TensorKey, TransferError, Wanted};
use weir_graph::{Model, WeightData};
use weir_types::ContentHash;

/// Weights are brought in groups of about so many bytes, which can be waited for one by one.
const GROUP_BYTES: usize = 8 << 20;

/// The weights of a model, held on the device.
pub(super) struct Weights(Vec<Tensor>);

/// Why weights are not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum WeightsError {
    #[error("weight file {hash}: {source}")]
    File { hash: ContentHash, source: io::Error },
    #[error("weight {name:?} has {found} bytes in its file, not {expected}")]
    Length { name: String, found: usize, expected: usize },
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl Weights {
    /// Hold every weight, bringing those that are not there from the files named by hash in `blobs`. All are there when it returns.
    pub(super) fn load(gpu: &Gpu, model: &Model, blobs: &Path) -> Result<Self, WeightsError> {
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        let mut group_bytes = GROUP_BYTES;
        for weight in model.weights() {
            let bytes = match &weight.data {
                WeightData::Bytes(bytes) => bytes.clone(),
                WeightData::Elsewhere(hash) => {
                    let file = Mapping::of(&blobs.join(hash.to_string()));
                    Bytes::from_owner(file.map_err(|source| WeightsError::File { hash: *hash, source })?)
                }
            };
            if bytes.len() != weight.bytes() {
                let (name, expected) = (weight.name.clone(), weight.bytes());
                return Err(WeightsError::Length { name, found: bytes.len(), expected });
            }
            if group_bytes >= GROUP_BYTES {
                groups.push(Vec::new());
                group_bytes = 0;
            }
            group_bytes = group_bytes.saturating_add(bytes.len());
            let key = TensorKey { hash: weight.hash(), layout: 0 };
            groups
                .last_mut()
                .into_iter()
                .for_each(|group| group.push(Wanted { key, source: Source::Pageable(bytes.clone()) }));
        }
        let weights = Self(gpu.tensors.acquire(groups)?.into_iter().flatten().collect());
        weights.0.iter().try_for_each(Tensor::wait)?;
        Ok(weights)
    }

    /// Of a graph that has none.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Where the weight of that index is.
    pub(super) fn span(&self, index: u32) -> Option<Span> {
        self.0.get(index as usize).map(Tensor::span)
    }
}
