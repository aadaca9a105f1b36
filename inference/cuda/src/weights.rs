//! Weights of a model on a device, which may still be in transfer.

mod files;
use files::WeightFile;

use crate::ahead::AheadThread;
use crate::device::Gpu;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use weir_device::cuda::{CopySource, PinnedCache, Span, TensorGuard, TensorKey, TransferError, Wanted};
use weir_graph::{ModelWeight, OnnxModel, WeightData};
use weir_inference::{IntegrityCheck, IntegrityError, MappedFile};
use weir_types::ContentHash;

/// Approximate size in bytes of a transfer group. Runs can wait for each group separately.
const GROUP_BYTES: usize = 8 << 20;

/// Approximate size in bytes of the first group, for which the first run waits before its first
/// launch. Each following group is twice as large as the one before, up to [`GROUP_BYTES`].
const FIRST_GROUP_BYTES: usize = 1 << 20;

/// Weights of a model in device memory.
pub struct Weights {
    /// Tensors by weight index.
    tensors: Vec<TensorGuard>,
    /// Whether all weights are known to have arrived.
    are_there: AtomicBool,
    /// Verification of the file hashes. `None` if no weight came from a file.
    check: Option<IntegrityCheck>,
    /// Weights from files that were missing in the pinned cache, kept until [`Self::pin`].
    unpinned: Mutex<Vec<(ContentHash, Bytes)>>,
    lookups: PinnedLookups,
    /// Reads the files ahead of the transfer.
    _read_ahead: Option<AheadThread>,
}

/// Bytes of the weights that a load copied to the device, by their place in host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinnedLookups {
    /// Bytes of the weights in the pinned cache.
    pub(crate) hit_bytes: u64,
    /// Bytes of the other weights in files.
    pub(crate) miss_bytes: u64,
}

/// Weight files of one load.
#[derive(Default)]
struct WeightFiles {
    /// Files to verify.
    mapped: Vec<(ContentHash, Arc<MappedFile>)>,
    /// Weights that were missing in the pinned cache.
    unpinned: Vec<(ContentHash, Bytes)>,
    /// Files that the transfer reads, in its order.
    transferred: Vec<Arc<MappedFile>>,
    /// Lookups of weights that the device lacks.
    lookups: PinnedLookups,
}

/// Mapped weight file, shared by the transfer and the verification.
struct Mapped(Arc<MappedFile>);

/// Reason why weights cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("weight file {hash}: {source}")]
    File {
        /// Name of the file.
        hash: ContentHash,
        /// The cause.
        source: io::Error,
    },
    /// A file has another length than its weight.
    #[error("weight {name:?} has {found} bytes in its file, not {expected}")]
    Length {
        /// Name of the weight.
        name: String,
        /// Length of the file in bytes.
        found: usize,
        /// Length of the weight in bytes.
        expected: usize,
    },
    /// The model lacks some of the weights.
    #[error("the weights are not those of the model")]
    Misfit,
    /// The files cannot be verified.
    #[error(transparent)]
    Integrity(#[from] IntegrityError),
    /// The device has no room, or is lost.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl Weights {
    /// Acquires every weight. Missing weights are transferred in the order in which runs read them,
    /// from the files named by hash in `blobs`. Also starts the verification of the files. Does not
    /// wait for either.
    pub fn load(gpu: &Gpu, model: &OnnxModel, blobs: &Path) -> Result<Self, WeightsError> {
        let order = model.weights_by_use();
        let weights = order.iter().map(|index| model.weights().get(*index as usize));
        let weights: Vec<&ModelWeight> = weights.collect::<Option<_>>().ok_or(WeightsError::Misfit)?;
        let opened = files::open(&weights, blobs, &gpu.pinned)?;
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        let mut group_bytes_max = FIRST_GROUP_BYTES;
        let mut group_bytes = group_bytes_max;
        let mut files = WeightFiles::default();
        let mut missing_bytes = 0_u64;
        for (weight, opened) in weights.into_iter().zip(opened) {
            let key = TensorKey { hash: weight.hash(), layout: 0 };
            let is_loaded = gpu.tensors.contains(&key);
            let source = files.source(weight, opened, is_loaded)?;
            if group_bytes >= group_bytes_max {
                if !groups.is_empty() {
                    group_bytes_max = (2 * group_bytes_max).min(GROUP_BYTES);
                }
                groups.push(Vec::new());
                group_bytes = 0;
            }
            group_bytes = group_bytes.saturating_add(source.bytes().len());
            missing_bytes += if is_loaded { 0 } else { source.bytes().len() as u64 };
            let wanted = Wanted { key, source };
            if let Some(group) = groups.last_mut() {
                group.push(wanted);
            }
        }
        gpu.make_room_for_weights(missing_bytes);
        let held = gpu.tensors.acquire(groups)?.into_iter().flatten();
        // The transfer starts first: to read ahead takes time even if the files are in the page
        // cache.
        let read_ahead = read_ahead(files.transferred);
        let mut by_index: Vec<_> = order.into_iter().zip(held).collect();
        by_index.sort_unstable_by_key(|(index, _)| *index);
        let tensors: Vec<_> = by_index.into_iter().map(|(_, tensor)| tensor).collect();
        if tensors.len() != model.weights().len() {
            return Err(WeightsError::Misfit);
        }
        let check = Some(gpu.verified.check(files.mapped)?);
        let are_there = AtomicBool::new(false);
        let unpinned = Mutex::new(files.unpinned);
        let lookups = files.lookups;
        Ok(Self { tensors, are_there, check, unpinned, lookups, _read_ahead: read_ahead })
    }

    /// Creates the weights of a graph without weights.
    pub fn none() -> Self {
        let tensors = Vec::new();
        let unpinned = Mutex::default();
        let are_there = AtomicBool::new(true);
        let lookups = PinnedLookups::default();
        Self { tensors, are_there, check: None, unpinned, lookups, _read_ahead: None }
    }

    /// Blocks until all weights have arrived.
    pub fn wait(&self) -> Result<(), TransferError> {
        self.tensors.iter().try_for_each(TensorGuard::wait)?;
        self.are_there.store(true, Ordering::Release);
        Ok(())
    }

    /// Blocks until the file hashes are verified. Call it before any result computed from the
    /// weights is returned. Weights that fail the verification are discarded for other models as
    /// well.
    pub(crate) fn verify(&self) -> Result<(), IntegrityError> {
        let found = self.check.as_ref().map_or(Ok(()), IntegrityCheck::wait);
        if found.is_err() {
            self.tensors.iter().for_each(TensorGuard::condemn);
        }
        found
    }

    /// Copies missing weights to the pinned cache, for the next load. Call it after the weights
    /// have arrived and are [verified](Self::verify).
    pub(crate) fn pin(&self, cache: &PinnedCache) {
        cache.offer(std::mem::take(&mut *self.unpinned.lock()));
    }

    /// Returns whether all weights have arrived. Returns an error if a weight can never arrive.
    pub(crate) fn are_there(&self) -> Result<bool, TransferError> {
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

    /// Returns whether all weights have arrived and the verification has ended. Returns an error if
    /// a weight can never arrive.
    pub(crate) fn are_usable(&self) -> Result<bool, TransferError> {
        Ok(self.are_there()? && self.check.as_ref().is_none_or(IntegrityCheck::has_ended))
    }

    /// Returns the time when all weights had arrived and were [verified](Self::verify). Waits for
    /// the verification. Returns `None` while weights are in transfer.
    pub(crate) fn usable_since(&self) -> Option<Instant> {
        let arrived: Option<Vec<_>> = self.tensors.iter().map(TensorGuard::arrived_at).collect();
        arrived?.into_iter().chain(self.check.as_ref().map(IntegrityCheck::ended_at)).max()
    }

    /// Returns the use of the pinned cache by the load.
    pub(crate) fn lookups(&self) -> PinnedLookups {
        self.lookups
    }

    /// Returns the total size of the weights in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.span().bytes()).sum()
    }

    /// Returns the weight with this index.
    pub(crate) fn tensor(&self, index: u32) -> Option<&TensorGuard> {
        self.tensors.get(index as usize)
    }

    /// Returns the device memory of the weight with this index.
    pub(crate) fn span(&self, index: u32) -> Option<Span> {
        self.tensor(index).map(TensorGuard::span)
    }
}

impl WeightFiles {
    /// Returns the source of a weight's bytes: the model, the pinned cache, or a file that is read
    /// during the transfer. Weights that the device already has are not counted as lookups.
    ///
    /// Every file is verified, even if the device already has the weight, because that weight may
    /// come from a load whose verification has not ended.
    fn source(
        &mut self,
        weight: &ModelWeight,
        opened: Option<WeightFile>,
        is_loaded: bool,
    ) -> Result<CopySource, WeightsError> {
        let source = match (&weight.data, opened) {
            (WeightData::Bytes(bytes), _) => CopySource::Pageable(bytes.clone()),
            (WeightData::Elsewhere(_), None) => return Err(WeightsError::Misfit),
            (WeightData::Elsewhere(_), Some(WeightFile { hash, file, copy })) => {
                self.mapped.push((hash, file.clone()));
                if !is_loaded {
                    let PinnedLookups { hit_bytes, miss_bytes } = &mut self.lookups;
                    *(if copy.is_some() { hit_bytes } else { miss_bytes }) += weight.bytes() as u64;
                }
                if !is_loaded && copy.is_none() {
                    self.transferred.push(file.clone());
                }
                copy.map_or_else(|| self.unpinned(hash, file), CopySource::Pinned)
            }
        };
        let found = source.bytes().len();
        let expected = weight.bytes();
        if found != expected {
            return Err(WeightsError::Length { name: weight.name.clone(), found, expected });
        }
        Ok(source)
    }

    fn unpinned(&mut self, hash: ContentHash, file: Arc<MappedFile>) -> CopySource {
        let bytes = Bytes::from_owner(Mapped(file));
        self.unpinned.push((hash, bytes.clone()));
        CopySource::Pageable(bytes)
    }
}

/// Starts reading files in their order, in the background.
fn read_ahead(files: Vec<Arc<MappedFile>>) -> Option<AheadThread> {
    if files.is_empty() {
        return None;
    }
    let mut files = files.into_iter();
    let step = move || {
        files.next().is_some_and(|file| {
            file.read_ahead();
            true
        })
    };
    AheadThread::start("weir-read-ahead", step)
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
