//! Garbage collection of the shared blob store.
//!
//! A blob is removed in two steps, each a grace period long; the grace period must be longer than
//! any deployment takes. First, an unreferenced blob is set aside. Second, a blob that has been
//! aside for the whole period, and is still unreferenced then, is removed. A blob that is needed
//! again meanwhile is brought back: by a node that fetches it, or by the next collection.
//!
//! This is safe for deployments on other nodes. Suppose a deployment finds a blob in the store,
//! relies on it, and commits its record after the blob was set aside: it commits within the grace
//! period, so the collection that would remove the blob reads the record first. Two nodes that
//! collect at once do not harm each other. The time at which a blob was set aside is part of its
//! name there, by the clock of the node that set it aside.

use super::Blobs;
use super::shared::SharedBlobs;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{Error, ObjectMeta, ObjectStoreExt};
use std::collections::HashSet;
use std::time::{Duration, SystemTime};
use weir_types::ContentHash;

/// The folder of blobs that were set aside.
const ASIDE: &str = "aside";

/// The result of one collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// The number of unwanted blobs that were set aside.
    pub set_aside: usize,
    /// The number of blobs that were aside and are wanted again.
    pub brought_back: usize,
    /// The number of blobs that were removed after the grace period.
    pub removed: usize,
}

impl Blobs {
    /// Collects garbage in the shared store. `wanted` has all blobs that records refer to, read
    /// just before.
    pub async fn collect(&self, wanted: &HashSet<ContentHash>, grace: Duration) -> Result<Collected, Error> {
        match &self.shared {
            Some(shared) => shared.collect(wanted, SystemTime::now(), grace).await,
            None => Ok(Collected::default()),
        }
    }
}

impl SharedBlobs {
    async fn collect(
        &self,
        wanted: &HashSet<ContentHash>,
        now: SystemTime,
        grace: Duration,
    ) -> Result<Collected, Error> {
        self.check_folder().await?;
        let mut collected = Collected::default();
        let is_old = |since: SystemTime| now.duration_since(since).is_ok_and(|age| age >= grace);
        for Aside { path, digest, since } in self.aside().await? {
            if wanted.contains(&digest) {
                self.bring_back(&path, digest).await?;
                collected.brought_back += 1;
            } else if is_old(since) {
                gone_is_fine(self.store.delete(&path).await)?;
                collected.removed += 1;
            }
        }
        for ObjectMeta { location, last_modified, .. } in
            self.store.list_with_delimiter(Some(&self.folder)).await?.objects
        {
            let digest: Option<ContentHash> = location.filename().and_then(|name| name.parse().ok());
            let Some(digest) = digest.filter(|digest| !wanted.contains(digest)) else { continue };
            if is_old(last_modified.into()) {
                self.set_aside(&location, digest, now).await?;
                collected.set_aside += 1;
            }
        }
        Ok(collected)
    }

    /// Brings back a blob that was set aside. Returns false if it was not aside.
    pub(super) async fn recover(&self, digest: ContentHash) -> Result<bool, Error> {
        let mut places = self.store.list(Some(&self.aside_folder().join(digest.to_string())));
        let Some(place) = places.try_next().await? else { return Ok(false) };
        self.bring_back(&place.location, digest).await?;
        Ok(true)
    }

    async fn set_aside(&self, from: &ObjectPath, digest: ContentHash, now: SystemTime) -> Result<(), Error> {
        let now_ms = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let to = self.aside_folder().join(digest.to_string()).join(now_ms.to_string());
        gone_is_fine(self.store.copy(from, &to).await)?;
        gone_is_fine(self.store.delete(from).await)
    }

    async fn bring_back(&self, from: &ObjectPath, digest: ContentHash) -> Result<(), Error> {
        // If it was uploaded again meanwhile, the contents are the same.
        gone_is_fine(self.store.copy(from, &self.path(digest)).await)?;
        gone_is_fine(self.store.delete(from).await)
    }

    /// The digests of all blobs that are aside.
    pub(super) async fn aside_digests(&self) -> Result<Vec<ContentHash>, Error> {
        Ok(self.aside().await?.into_iter().map(|aside| aside.digest).collect())
    }

    /// All blobs that are aside.
    async fn aside(&self) -> Result<Vec<Aside>, Error> {
        let folder = self.aside_folder();
        let found: Vec<ObjectMeta> = self.store.list(Some(&folder)).try_collect().await?;
        let aside = |object: ObjectMeta| {
            let mut parts: Vec<_> =
                object.location.prefix_match(&folder)?.map(|part| part.as_ref().to_owned()).collect();
            let since_ms = parts.pop()?.parse().ok()?;
            let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since_ms))?;
            Some(Aside { digest: parts.pop()?.parse().ok()?, since, path: object.location })
        };
        Ok(found.into_iter().filter_map(aside).collect())
    }

    fn aside_folder(&self) -> ObjectPath {
        self.folder.clone().join(ASIDE)
    }
}

/// A blob that is aside.
struct Aside {
    path: ObjectPath,
    digest: ContentHash,
    since: SystemTime,
}

/// Ignores a missing object, since another node may have removed it first.
fn gone_is_fine(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const GRACE: Duration = Duration::from_secs(3_600);

    struct Store {
        folder: tempfile::TempDir,
        shared: SharedBlobs,
    }

    impl Store {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let address = format!("file://{}", folder.path().display());
            let shared = SharedBlobs::open(&address, 1 << 20).unwrap().folder("blobs");
            Self { folder, shared }
        }

        async fn put(&self, text: &str) -> ContentHash {
            let file = self.folder.path().join("upload");
            let digest = ContentHash::from_content(text.as_bytes());
            std::fs::write(&file, text).unwrap();
            self.shared.put(digest, &file).await.unwrap();
            digest
        }

        /// A collection at `periods` grace periods from now: [set aside, brought back, removed].
        async fn look(&self, wanted: &[ContentHash], periods: u32) -> [usize; 3] {
            let wanted = wanted.iter().copied().collect();
            let now = SystemTime::now() + GRACE * periods;
            let Collected { set_aside, brought_back, removed } =
                self.shared.collect(&wanted, now, GRACE).await.unwrap();
            [set_aside, brought_back, removed]
        }

        fn is_there(&self, digest: ContentHash) -> bool {
            self.folder.path().join("blobs").join(digest.to_string()).exists()
        }

        fn files(&self) -> usize {
            fn count(folder: &Path) -> usize {
                let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
                entries.map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
            }
            count(&self.folder.path().join("blobs"))
        }
    }

    #[tokio::test]
    async fn unreferenced_blob_is_removed_after_two_grace_periods() {
        let store = Store::new();
        let kept = store.put("kept").await;
        let garbage = store.put("garbage").await;
        assert_eq!(store.look(&[kept], 0).await, [0, 0, 0], "it may be of a deploy under way");
        assert_eq!(store.look(&[kept], 1).await, [1, 0, 0]);
        assert!(store.is_there(kept) && !store.is_there(garbage));
        assert_eq!(store.look(&[kept], 1).await, [0, 0, 0]);
        assert_eq!(store.look(&[kept], 2).await, [0, 0, 1]);
        assert_eq!((store.files(), store.is_there(kept)), (1, true));
    }

    /// Simulates a deployment on another node that found the blob before it was set aside.
    #[tokio::test]
    async fn needed_blob_is_brought_back_by_fetch_or_collection() {
        let store = Store::new();
        let one = store.put("one").await;
        let other = store.put("other").await;
        assert_eq!(store.look(&[], 1).await, [2, 0, 0]);
        assert!(store.shared.get(one).await.is_ok(), "a node that fetches it finds it");
        assert!(store.is_there(one) && !store.is_there(other));
        assert_eq!(store.look(&[one, other], 9).await, [0, 1, 0]);
        assert!(store.is_there(one) && store.is_there(other) && store.files() == 2);
        // Uploaded again while it was aside, it exists once in the end.
        assert_eq!(store.look(&[one], 1).await[0], 1);
        store.put("other").await;
        assert_eq!(store.look(&[one, other], 1).await, [0, 1, 0]);
        assert_eq!((store.files(), store.is_there(other)), (2, true));
    }

    #[tokio::test]
    async fn damaged_shared_blob_is_replaced() {
        let store = Store::new();
        let digest = store.put("right").await;
        let path = store.folder.path().join("blobs").join(digest.to_string());
        for wrong in ["wrong", "short", "too long"] {
            // Before this node has seen the blob, and after.
            std::fs::write(&path, wrong).unwrap();
            store.put("right").await;
            assert_eq!(std::fs::read(&path).unwrap(), b"right");
            store.put("right").await;
        }
    }
}
