//! Fetches blobs from the shared store: once each, verified, and within the cache's size limit.

use super::files::{blocking, is_there};
use super::{BlobError, Blobs, Fetching, PutError, SharedBlobs, shared};
use futures::FutureExt;
use futures::future::{Shared, WeakShared};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use weir_types::ContentHash;

/// A full cache frees this part of its limit, and what exceeds the limit.
const SPARE_PART: u64 = 16;

impl Blobs {
    /// Returns the path of a blob, which is fetched if it is not local. Concurrent callers share
    /// one fetch.
    pub async fn fetch(&self, digest: ContentHash) -> Result<PathBuf, BlobError> {
        let path = self.path(digest);
        let blobs = self.clone();
        let found = path.clone();
        if blocking(move || Ok(is_there(&found)? || blobs.is_local(digest)?)).await? {
            return Ok(path);
        }
        let Some(shared) = &self.shared else { return Err(BlobError::Missing(digest)) };
        self.flight(shared, digest).await?;
        Ok(path)
    }

    fn flight(&self, shared: &SharedBlobs, digest: ContentHash) -> Shared<Fetching> {
        let mut fetching = self.fetching.lock();
        // Fetches without waiting callers are over.
        fetching.retain(|_, flight| flight.upgrade().is_some());
        if let Some(flight) = fetching.get(&digest).and_then(WeakShared::upgrade) {
            return flight;
        }
        let blobs = self.clone();
        let shared = shared.clone();
        let flight = async move { blobs.receive(&shared, digest).await }.boxed().shared();
        fetching.extend(flight.downgrade().map(|weak| (digest, weak)));
        flight
    }

    async fn receive(&self, shared: &SharedBlobs, digest: ContentHash) -> Result<(), BlobError> {
        let found = match shared.get(digest).await {
            Err(object_store::Error::NotFound { .. }) => return Err(BlobError::Missing(digest)),
            found => found?,
        };
        let bytes = found.meta.size;
        let pieces = std::pin::pin!(shared::pieces(found));
        let staged = match self.stage_accepted(pieces, bytes).await {
            Ok(staged) => staged,
            Err(PutError::TooLarge { .. }) => return Err(BlobError::Damaged(digest)),
            Err(PutError::Source(why)) => {
                let source = why.into();
                return Err(object_store::Error::Generic { store: "blobs", source }.into());
            }
            Err(PutError::DiskFull(full)) => return Err(full.into()),
            Err(PutError::Io(error)) => return Err(error.into()),
        };
        if staged.digest != digest {
            return Err(BlobError::Damaged(digest));
        }
        let hold = self.keep_here(staged).await?;
        if self.kept_bytes.load(Ordering::Relaxed) >= self.full_at_bytes.load(Ordering::Relaxed) {
            self.trim(shared.cache_bytes_max()).await?;
        }
        drop(hold);
        tracing::debug!(%digest, bytes, "fetched a blob");
        Ok(())
    }

    /// Whether `bytes` of blobs can be fetched before they are needed: within `cache_percent_max`
    /// percent of the local copies' limit, and with `free_bytes_min` bytes of the disk left above the
    /// minimum of free space. Without a shared store there is nothing to fetch.
    pub async fn has_room_ahead(&self, bytes: u64, cache_percent_max: u8, free_bytes_min: u64) -> bool {
        let Some(shared) = &self.shared else { return false };
        let limit = u128::from(shared.cache_bytes_max()) * u128::from(cache_percent_max) / 100;
        let folder = self.folder.clone();
        let in_cache = blocking(move || {
            let about = std::fs::read_dir(&folder)?.filter_map(|entry| entry.ok()?.metadata().ok());
            Ok(about.filter(std::fs::Metadata::is_file).map(|about| u128::from(about.len())).sum::<u128>())
        });
        let fits = in_cache.await.is_ok_and(|in_cache| in_cache + u128::from(bytes) <= limit);
        fits && self.check_room(bytes.saturating_add(free_bytes_min)).await.is_ok()
    }

    /// Removes the least recently requested blobs until the rest takes at most `bytes_max`. Removed
    /// blobs can be fetched again. Reads the whole folder, so a fetch that leaves room below the
    /// limit does without.
    async fn trim(&self, bytes_max: u64) -> std::io::Result<()> {
        let folder = self.folder.clone();
        let full_at_bytes = self.full_at_bytes.clone();
        // Blobs that are kept from now on count, whether or not the folder shows them.
        let kept_bytes = self.kept_bytes.load(Ordering::Relaxed);
        let sweep = self.in_use.sweep(HashSet::new);
        blocking(move || {
            let mut blobs = Vec::new();
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let digest: Option<ContentHash> =
                    entry.file_name().to_str().and_then(|name| name.parse().ok());
                // A blob that was removed meanwhile takes no room.
                let (Some(digest), Ok(about)) = (digest, entry.metadata()) else { continue };
                blobs.push((about.modified()?, about.len(), digest, entry.path()));
            }
            blobs.sort_unstable();
            let mut bytes: u64 = blobs.iter().map(|(_, bytes, ..)| bytes).sum();
            // A full cache makes room for more than one blob, so that it is not read for each of
            // them.
            let keep_bytes = if bytes > bytes_max { bytes_max - bytes_max / SPARE_PART } else { bytes };
            for (_, blob_bytes, digest, path) in blobs {
                if bytes <= keep_bytes {
                    break;
                }
                // A mapped file stays readable for its users.
                sweep.remove(digest, || {
                    bytes -= blob_bytes;
                    std::fs::remove_file(path)
                })?;
            }
            let room_bytes = bytes_max.saturating_sub(bytes);
            full_at_bytes.store(kept_bytes.saturating_add(room_bytes), Ordering::Relaxed);
            Ok(())
        })
        .await
    }
}
