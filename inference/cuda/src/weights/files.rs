//! Weight files of a load: opened by several threads, because a model can have hundreds of them.

use super::WeightsError;
use std::iter::once;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{available_parallelism, scope};
use weir_device::cuda::{PinnedCache, PinnedSlice};
use weir_graph::{ModelWeight, WeightData};
use weir_inference::MappedFile;
use weir_types::ContentHash;

/// Maximum number of threads that open the files of a load, including the calling thread.
const THREADS_MAX: usize = 8;

/// Minimum number of files for each thread: to open them takes several times as long as to start a
/// thread.
const FILES_PER_THREAD: usize = 24;

/// Mapped file of a weight.
pub(super) struct WeightFile {
    pub(super) hash: ContentHash,
    pub(super) file: Arc<MappedFile>,
    /// Copy in the pinned cache, which is transferred instead of the file.
    pub(super) copy: Option<Arc<PinnedSlice>>,
}

/// Opens the files of `weights` in `blobs`, in their order. `None` stands for a weight without a
/// file. No file is read.
pub(super) fn open(
    weights: &[&ModelWeight],
    blobs: &Path,
    pinned: &PinnedCache,
) -> Result<Vec<Option<WeightFile>>, WeightsError> {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = (weights.len() / FILES_PER_THREAD).clamp(1, THREADS_MAX.min(cores));
    let of_part = |part: &[&ModelWeight]| -> Result<Vec<Option<WeightFile>>, WeightsError> {
        part.iter().map(|weight| open_one(weight, blobs, pinned)).collect()
    };
    let mut parts = weights.chunks(weights.len().div_ceil(threads).max(1));
    let first = parts.next().unwrap_or_default();
    let opened = scope(|scope| {
        let rest: Vec<_> = parts.map(|part| scope.spawn(move || of_part(part))).collect();
        let first = of_part(first);
        let rest = rest.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        once(first).chain(rest).collect::<Result<Vec<_>, _>>()
    });
    Ok(opened?.into_iter().flatten().collect())
}

fn open_one(
    weight: &ModelWeight,
    blobs: &Path,
    pinned: &PinnedCache,
) -> Result<Option<WeightFile>, WeightsError> {
    let WeightData::Elsewhere(hash) = &weight.data else { return Ok(None) };
    let path = blobs.join(hash.to_string());
    let copy = pinned.get(hash);
    let file = MappedFile::unread(&path).map_err(|source| WeightsError::File { hash: *hash, source })?;
    Ok(Some(WeightFile { hash: *hash, file: Arc::new(file), copy }))
}
