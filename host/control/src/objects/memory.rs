//! An in-memory cache of object bytes, so that frequent reads need no disk access.
//!
//! The cache takes a share of the *free* tensor memory ([`share_of_free_bytes`]) and shrinks early:
//! requests must not run out of memory because of it. Bytes that a call holds stay valid after
//! their eviction from the cache.

use super::ObjectError;
use super::borrowed::BorrowedBytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use tokio::sync::{Notify, OnceCell};
use weir_device::{Arena, Buffer, share_of_free_bytes};
use weir_storage::blobs::{BlobError, Blobs};
use weir_types::{ContentHash, Hasher, TenantId};

/// The number of bytes read from disk at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Cached bytes by their hash.
pub(super) struct ByteCache {
    arena: Arena,
    free_percent_max: u64,
    state: Mutex<ByteCacheState>,
    borrowed: BorrowedBytes,
    /// Notified when bytes are added.
    filled: Notify,
}

/// A caller that reads bytes, or waits for another caller's read.
struct Reading<'a> {
    memory: &'a ByteCache,
    digest: ContentHash,
    cell: Arc<OnceCell<Buffer>>,
}

#[derive(Default)]
struct ByteCacheState {
    kept: HashMap<ContentHash, CachedObject>,
    bytes: u64,
    /// Counts uses: the most recent use has the highest number.
    uses: u64,
    /// Reads in progress, shared by the callers that wait for them.
    reading: HashMap<ContentHash, Arc<OnceCell<Buffer>>>,
}

struct CachedObject {
    data: Buffer,
    used: u64,
}

impl ByteCache {
    /// Creates an empty cache in `arena`, limited to `free_percent_max` per cent of the arena's
    /// free memory.
    pub(super) fn new(arena: Arena, free_percent_max: u64) -> Self {
        let borrowed = BorrowedBytes::default();
        Self { arena, free_percent_max, state: Mutex::default(), borrowed, filled: Notify::new() }
    }

    /// Returns the `bytes` with this `digest` to a call of `tenant`, from memory or from their file.
    /// Also returns whether they were in memory.
    pub(super) async fn borrow(
        &self,
        tenant: &TenantId,
        digest: ContentHash,
        bytes: u64,
        blobs: &Blobs,
    ) -> Result<(Buffer, bool), ObjectError> {
        if let Some(held) = self.borrowed.find(tenant, digest) {
            return Ok((held, true));
        }
        let (data, was_in_memory) = self.get(tenant, digest, bytes, blobs).await?;
        Ok((self.borrowed.lend(tenant, digest, data, &self.arena)?, was_in_memory))
    }

    /// Returns bytes from the cache, or from their file, which is fetched if necessary. Concurrent
    /// callers share one read, which counts against the share of the tenant that began it.
    async fn get(
        &self,
        tenant: &TenantId,
        digest: ContentHash,
        bytes: u64,
        blobs: &Blobs,
    ) -> Result<(Buffer, bool), ObjectError> {
        let reading = {
            let mut state = self.state.lock();
            if let Some(data) = state.find(digest) {
                return Ok((data, true));
            }
            let cell = state.reading.entry(digest).or_default().clone();
            Reading { memory: self, digest, cell }
        };
        let read = reading.cell.get_or_try_init(async || {
            let _reservation = self.arena.tenant(tenant).reserve_share(bytes)?;
            let path = blobs.fetch(digest).await?;
            let arena = self.arena.clone();
            let reading = move || read(&path, digest, bytes, &arena);
            tokio::task::spawn_blocking(reading).await.map_err(|error| io(std::io::Error::other(error)))?
        });
        let data = read.await?.clone();
        self.keep(digest, data.clone());
        Ok((data, false))
    }

    /// Caches a copy of `data` if there is room. A copy, because `data` may be a slice of a much
    /// larger buffer.
    pub(super) fn keep_copy(&self, digest: ContentHash, data: &[u8]) {
        if let Ok(copy) = self.arena.copy_of(data) {
            self.keep(digest, copy);
        }
    }

    /// Caches `data` if there is room.
    fn keep(&self, digest: ContentHash, data: Buffer) {
        let bytes = data.len() as u64;
        let mut state = self.state.lock();
        if state.find(digest).is_some() || bytes > self.share(&state) {
            return;
        }
        state.bytes += bytes;
        let used = state.uses;
        state.kept.insert(digest, CachedObject { data, used });
        let share_bytes = self.share(&state);
        drop(state.shrink(share_bytes));
        self.filled.notify_one();
    }

    /// Waits until the cache is not empty.
    pub(super) async fn filled(&self) {
        while self.bytes() == 0 {
            self.filled.notified().await;
        }
    }

    /// Shrinks the cache to its current share of the free memory, least recently used bytes first.
    /// To be called often.
    pub(super) fn relieve(&self) {
        let gone = {
            let mut state = self.state.lock();
            let share_bytes = self.share(&state);
            state.shrink(share_bytes)
        };
        drop(gone);
    }

    /// The number of cached bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    #[cfg(test)]
    pub(super) fn is_reading_nothing(&self) -> bool {
        self.state.lock().reading.is_empty()
    }

    /// The current size limit.
    fn share(&self, state: &ByteCacheState) -> u64 {
        let arena = &self.arena;
        share_of_free_bytes(arena.bytes_max(), arena.used_bytes(), state.bytes, self.free_percent_max)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // Waiting callers keep the cell; later callers find the bytes in the cache, or read them
        // again.
        let mut state = self.memory.state.lock();
        if state.reading.get(&self.digest).is_some_and(|reading| Arc::ptr_eq(reading, &self.cell)) {
            state.reading.remove(&self.digest);
        }
    }
}

impl ByteCacheState {
    fn find(&mut self, digest: ContentHash) -> Option<Buffer> {
        self.uses += 1;
        let kept = self.kept.get_mut(&digest)?;
        kept.used = self.uses;
        Some(kept.data.clone())
    }

    /// Removes entries until `bytes_max` is met.
    fn shrink(&mut self, bytes_max: u64) -> Vec<CachedObject> {
        let mut gone = Vec::new();
        while self.bytes > bytes_max {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(digest, _)| *digest);
            let Some(kept) = oldest.and_then(|digest| self.kept.remove(&digest)) else { break };
            self.bytes -= kept.data.len() as u64;
            gone.push(kept);
        }
        gone
    }
}

/// Reads a file of `bytes` and verifies its hash. Blocks.
fn read(
    path: &std::path::Path,
    digest: ContentHash,
    bytes: u64,
    arena: &Arena,
) -> Result<Buffer, ObjectError> {
    let damaged = || ObjectError::Blob(BlobError::Damaged(digest));
    let mut file = File::open(path).map_err(io)?;
    let len = usize::try_from(bytes).map_err(|_| damaged())?;
    let mut data = arena.buffer(len)?;
    let mut hasher = Hasher::default();
    for chunk in data.chunks_mut(CHUNK_BYTES) {
        file.read_exact(chunk).map_err(|_| damaged())?;
        hasher.update(chunk);
    }
    if hasher.finish() != digest || file.read(&mut [0]).map_err(io)? > 0 {
        return Err(damaged());
    }
    Ok(data.freeze())
}

fn io(error: std::io::Error) -> ObjectError {
    BlobError::from(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn digest(of: u8) -> ContentHash {
        ContentHash::from_content(&[of])
    }

    #[test]
    fn cache_keeps_to_its_share_of_free_memory() {
        let arena = Arena::new(1 << 20);
        let memory = ByteCache::new(arena.clone(), 50);
        let buffer = |kib: u64| arena.buffer((kib * KIB) as usize).unwrap().freeze();
        let is_here = |of: u8| memory.state.lock().kept.contains_key(&digest(of));
        for of in 0..3 {
            memory.keep(digest(of), buffer(128));
        }
        assert_eq!((memory.bytes(), is_here(0)), (384 * KIB, true));
        // The first is used again, so the second is evicted when two more are added.
        assert!(memory.state.lock().find(digest(0)).is_some());
        memory.keep(digest(3), buffer(128));
        memory.keep(digest(4), buffer(128));
        assert_eq!([0, 1, 2, 3, 4].map(is_here), [true, false, true, true, true]);
        // Other buffers take three quarters of the memory: half of the rest is an eighth.
        let needed = buffer(512);
        memory.relieve();
        assert_eq!(memory.bytes(), 256 * KIB, "half of what 512 KiB leave");
        let more = buffer(256);
        memory.relieve();
        assert_eq!(memory.bytes(), 128 * KIB, "half of what 768 KiB leave");
        drop((needed, more));
        memory.keep(digest(9), buffer(640));
        assert!(!is_here(9), "it is more than may be here at all");
        assert_eq!(memory.bytes(), 128 * KIB);
    }
}
