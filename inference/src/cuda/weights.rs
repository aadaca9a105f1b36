//! A model's weights on a device: there, or on their way.

use super::device::Gpu;
use crate::integrity::{Check, Unsound};
use crate::mapping::Mapping;
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use weir_device::cuda::{PinnedCache, Source, Span, Tensor, TensorKey, TransferError, Wanted};
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
    /// Whether what was brought is what was pushed; none where nothing came from files.
    check: Option<Check>,
    /// Weights from files that the pinned cache did not have, until it is offered them.
    unpinned: Mutex<Vec<(ContentHash, Bytes)>>,
}

/// The files of the weights of one load.
#[derive(Default)]
struct Files {
    /// To be checked.
    mapped: Vec<(ContentHash, Arc<Mapping>)>,
    /// Those that the pinned cache did not have.
    unpinned: Vec<(ContentHash, Bytes)>,
}

/// A weight's file, for who sends it and who checks it.
struct Mapped(Arc<Mapping>);

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
    Unsound(#[from] Unsound),
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl Weights {
    /// Hold every weight. Those that are not there are on their way when it returns, in the order in which runs read them, from the files named by
    /// hash in `blobs`; and whether those files are what was pushed begins to be found out.
    pub(super) fn load(gpu: &Gpu, model: &Model, blobs: &Path) -> Result<Self, WeightsError> {
        let order = model.weights_by_use();
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        let mut group_bytes = GROUP_BYTES;
        let mut files = Files::default();
        for weight in order.iter().filter_map(|index| model.weights().get(*index as usize)) {
            let source = files.source(weight, blobs, &gpu.pinned)?;
            if group_bytes >= GROUP_BYTES {
                groups.push(Vec::new());
                group_bytes = 0;
            }
            group_bytes = group_bytes.saturating_add(source.bytes().len());
            let key = TensorKey { hash: weight.hash(), layout: 0 };
            let wanted = Wanted { key, source };
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
        let check = Some(gpu.verified.check(files.mapped)?);
        Ok(Self { tensors, are_there: AtomicBool::new(false), check, unpinned: Mutex::new(files.unpinned) })
    }

    /// Of a graph that has none.
    pub(super) fn none() -> Self {
        let (tensors, unpinned) = (Vec::new(), Mutex::default());
        Self { tensors, are_there: AtomicBool::new(true), check: None, unpinned }
    }

    /// Wait until all are there.
    pub(super) fn wait(&self) -> Result<(), TransferError> {
        self.tensors.iter().try_for_each(Tensor::wait)?;
        self.are_there.store(true, Ordering::Release);
        Ok(())
    }

    /// Wait until it is known whether they are what was pushed. Asked before anything that was made of them is given to anybody. Weights that are not are no
    /// good for other models either.
    pub(super) fn verify(&self) -> Result<(), Unsound> {
        let found = self.check.as_ref().map_or(Ok(()), Check::wait);
        if found.is_err() {
            self.tensors.iter().for_each(Tensor::condemn);
        }
        found
    }

    /// Have the pinned cache copy what it does not have, so that the next load comes from there. Once the weights are there and [verified](Self::verify).
    pub(super) fn pin(&self, cache: &PinnedCache) {
        cache.offer(std::mem::take(&mut *self.unpinned.lock().unwrap_or_else(PoisonError::into_inner)));
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

    /// Whether all are there, and it is known whether they are what was pushed. An error says that some never will be there.
    pub(super) fn are_usable(&self) -> Result<bool, TransferError> {
        Ok(self.are_there()? && self.check.as_ref().is_none_or(Check::has_ended))
    }

    /// Since when all are there and [verified](Self::verify), which is waited for; none while they are on their way.
    pub(super) fn usable_since(&self) -> Option<Instant> {
        let arrived: Option<Vec<_>> = self.tensors.iter().map(Tensor::arrived_at).collect();
        arrived?.into_iter().chain(self.check.as_ref().map(Check::ended_at)).max()
    }

    /// How long all of them are together.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.span().bytes()).sum()
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

impl Files {
    /// Where the bytes of a weight come from: the model, the pinned cache, or a file, which is read as it is sent. Files are checked in any case: the device may
    /// have the weight already, from a load that is not checked yet.
    fn source(
        &mut self,
        weight: &Weight,
        blobs: &Path,
        pinned: &PinnedCache,
    ) -> Result<Source, WeightsError> {
        let source = match &weight.data {
            WeightData::Bytes(bytes) => Source::Pageable(bytes.clone()),
            WeightData::Elsewhere(hash) => {
                let (path, copy) = (blobs.join(hash.to_string()), pinned.get(hash));
                let file = if copy.is_some() { Mapping::unread(&path) } else { Mapping::ahead(&path) };
                let file = Arc::new(file.map_err(|source| WeightsError::File { hash: *hash, source })?);
                self.mapped.push((*hash, Arc::clone(&file)));
                copy.map_or_else(|| self.unpinned(*hash, file), Source::Pinned)
            }
        };
        let (found, expected) = (source.bytes().len(), weight.bytes());
        if found != expected {
            return Err(WeightsError::Length { name: weight.name.clone(), found, expected });
        }
        Ok(source)
    }

    fn unpinned(&mut self, hash: ContentHash, file: Arc<Mapping>) -> Source {
        let bytes = Bytes::from_owner(Mapped(file));
        self.unpinned.push((hash, bytes.clone()));
        Source::Pageable(bytes)
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
