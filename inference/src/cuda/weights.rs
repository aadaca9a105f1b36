//! A model's weights on a device: there, or on their way.

use super::device::Gpu;
use crate::mapping::Mapping;
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use weir_device::cuda::{Source, Span, Tensor, TensorKey, TransferError, Wanted};
use weir_graph::{Model, Weight, WeightData};
use weir_types::ContentHash;

/// Weights are brought in groups of about so many bytes, which can be waited for one by one.
const GROUP_BYTES: usize = 8 << 20;

/// The weights of a model, held on the device.
pub(super) struct Weights {
    /// By their indexes in the model.
    tensors: Vec<Tensor>,
    /// Whether all are known to be there.
    are_there: AtomicBool,
}

/// Why weights are not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum WeightsError {
    #[error("weight file {hash}: {source}")]
    File { hash: ContentHash, source: io::Error },
    #[error("weight {name:?} has {found} bytes in its file, not {expected}")]
    Length { name: String, found: usize, expected: usize },
    #[error("the weights are not those of the model")]
    Misfit,
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl Weights {
    /// Hold every weight. Those that are not there are on their way when it returns, in the order in which runs read them, from the files named by
    /// hash in `blobs`.
    pub(super) fn load(gpu: &Gpu, model: &Model, blobs: &Path) -> Result<Self, WeightsError> {
        let order = model.weights_by_use();
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        let mut group_bytes = GROUP_BYTES;
        for weight in order.iter().filter_map(|index| model.weights().get(*index as usize)) {
            let bytes = bytes(weight, blobs)?;
            if group_bytes >= GROUP_BYTES {
                groups.push(Vec::new());
                group_bytes = 0;
            }
            group_bytes = group_bytes.saturating_add(bytes.len());
            let key = TensorKey { hash: weight.hash(), layout: 0 };
            let wanted = Wanted { key, source: Source::Pageable(bytes) };
            if let Some(group) = groups.last_mut() {
                group.push(wanted);
            }
        }
        let held = gpu.tensors.acquire(groups)?.into_iter().flatten();
        let mut by_index: Vec<_> = order.into_iter().zip(held).collect();
        by_index.sort_unstable_by_key(|(index, _)| *index);
        let tensors: Vec<_> = by_index.into_iter().map(|(_, tensor)| tensor).collect();
        if tensors.len() != model.weights().len() {
            return Err(WeightsError::Misfit);
        }
        Ok(Self { tensors, are_there: AtomicBool::new(false) })
    }

    /// Of a graph that has none.
    pub(super) fn none() -> Self {
        Self { tensors: Vec::new(), are_there: AtomicBool::new(true) }
    }

    /// Wait until all are there.
    pub(super) fn wait(&self) -> Result<(), TransferError> {
        self.tensors.iter().try_for_each(Tensor::wait)?;
        self.are_there.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether all are there. An error says that some never will be.
    pub(super) fn are_there(&self) -> Result<bool, TransferError> {
        if self.are_there.load(Ordering::Acquire) {
            return Ok(true);
        }
        for tensor in &self.tensors {
            if !tensor.is_there()? {
                return Ok(false);
            }
        }
        self.are_there.store(true, Ordering::Release);
        Ok(true)
    }

    /// Since when all are there; none while they are on their way.
    pub(super) fn arrived_at(&self) -> Option<Instant> {
        let arrived: Option<Vec<_>> = self.tensors.iter().map(Tensor::arrived_at).collect();
        arrived?.into_iter().max()
    }

    /// The weight of that index.
    pub(super) fn tensor(&self, index: u32) -> Option<&Tensor> {
        self.tensors.get(index as usize)
    }

    /// Where the weight of that index is.
    pub(super) fn span(&self, index: u32) -> Option<Span> {
        self.tensor(index).map(Tensor::span)
    }
}

/// The bytes of a weight; those in a file are read as they are sent.
fn bytes(weight: &Weight, blobs: &Path) -> Result<Bytes, WeightsError> {
    let bytes = match &weight.data {
        WeightData::Bytes(bytes) => bytes.clone(),
        WeightData::Elsewhere(hash) => {
            let file = Mapping::ahead(&blobs.join(hash.to_string()));
            Bytes::from_owner(file.map_err(|source| WeightsError::File { hash: *hash, source })?)
        }
    };
    if bytes.len() != weight.bytes() {
        let (name, expected) = (weight.name.clone(), weight.bytes());
        return Err(WeightsError::Length { name, found: bytes.len(), expected });
    }
    Ok(bytes)
}
