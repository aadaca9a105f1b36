//! Files named by the hash of their contents, whole or not there at all. In a cluster they are what this node has of a store that all
//! nodes share: a blob is in that store before anything refers to it, and is fetched once by each node that wants it.

mod garbage;
mod in_use;
mod shared;

pub(crate) use garbage::Collected;
pub(crate) use in_use::{Hold, InUse};
pub(crate) use shared::SharedBlobs;

use bytes::Bytes;
use futures::future::{BoxFuture, Shared, WeakShared};
use futures::{FutureExt, Stream, StreamExt};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;
use weir_types::{ContentHash, Hasher};

/// A folder of blobs. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    folder: PathBuf,
    in_use: InUse,
    shared: Option<SharedBlobs>,
    /// The blobs that are being fetched.
    fetching: Arc<Mutex<HashMap<ContentHash, WeakShared<Fetching>>>>,
}

type Fetching = BoxFuture<'static, Result<(), BlobError>>;

/// Why a blob was not kept, or cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum BlobError {
    #[error("its file {0} is missing")]
    Missing(ContentHash),
    #[error("the store of blobs has something else under the name of {0}")]
    Damaged(ContentHash),
    #[error("the store of blobs is out of reach: {0}")]
    OutOfReach(Arc<object_store::Error>),
    #[error(transparent)]
    Io(Arc<std::io::Error>),
}

impl From<std::io::Error> for BlobError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<object_store::Error> for BlobError {
    fn from(error: object_store::Error) -> Self {
        Self::OutOfReach(Arc::new(error))
    }
}

/// Why bytes did not become a blob.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    #[error("more than {bytes_max} bytes")]
    TooLarge { bytes_max: u64 },
    #[error("the body ended early: {0}")]
    Source(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Bytes received in full but not yet kept: dropped, they are gone. No sweep touches what goes by their digest meanwhile.
pub(crate) struct Staged {
    file: NamedTempFile,
    pub(crate) digest: ContentHash,
    pub(crate) bytes: u64,
    hold: Hold,
}

impl Staged {
    /// Where the bytes are for now.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Blobs {
    /// Open the blobs in `folder`, making it if need be, and remove what an interrupted run left half-written. Blocks.
    pub(crate) fn open(folder: PathBuf, shared: Option<SharedBlobs>) -> std::io::Result<Self> {
        create_folder(&folder)?;
        remove_staged(&folder)?;
        Ok(Self { folder, in_use: InUse::default(), shared, fetching: Arc::default() })
    }

    /// Receive `source` into a file, hashing it on the way.
    pub(crate) async fn stage<S, E>(&self, mut source: S, bytes_max: u64) -> Result<Staged, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let folder = self.folder.clone();
        let mut writer = blocking(move || {
            let file = tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(folder)?;
            Ok(Staging { file, hasher: Hasher::default(), bytes: 0 })
        })
        .await?;
        // Pieces are gathered so that a large upload costs few trips to the blocking threads.
        let mut pieces = Vec::new();
        let mut pending_bytes = 0;
        while let Some(piece) = source.next().await {
            let piece = piece.map_err(|error| PutError::Source(error.to_string()))?;
            pending_bytes += piece.len() as u64;
            if writer.bytes + pending_bytes > bytes_max {
                return Err(PutError::TooLarge { bytes_max });
            }
            pieces.push(piece);
            if pending_bytes >= GATHER_BYTES {
                let pieces = std::mem::take(&mut pieces);
                pending_bytes = 0;
                writer = blocking(move || writer.append(&pieces)).await?;
            }
        }
        let in_use = self.in_use.clone();
        let staged = blocking(move || {
            let Staging { file, hasher, bytes } = writer.append(&pieces)?;
            let digest = hasher.finish();
            Ok(Staged { file, digest, bytes, hold: in_use.hold([digest]) })
        });
        Ok(staged.await?)
    }

    /// Make a staged blob durable under its digest, in the place of one that is damaged. To be held until a record refers to it.
    pub(crate) async fn keep(&self, staged: Staged) -> Result<Hold, BlobError> {
        let digest = staged.digest;
        let hold = self.keep_here(staged).await?;
        self.share([digest]).await?;
        Ok(hold)
    }

    async fn keep_here(&self, staged: Staged) -> std::io::Result<Hold> {
        let path = self.path(staged.digest);
        blocking(move || {
            if !is_intact(&path, staged.digest)? {
                persist(staged.file, &path)?;
            }
            Ok(staged.hold)
        })
        .await
    }

    /// Have other nodes find blobs that are here, if there are other nodes. Called before anything refers to them.
    pub(crate) async fn share(
        &self,
        digests: impl IntoIterator<Item = ContentHash>,
    ) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.put(digest, &self.path(digest)).await?;
        }
        Ok(())
    }

    /// Make sure that a blob is here, fetching it if need be: once, however many ask for it.
    pub(crate) async fn fetch(&self, digest: ContentHash) -> Result<PathBuf, BlobError> {
        let path = self.path(digest);
        let found = path.clone();
        if blocking(move || is_there(&found)).await? {
            return Ok(path);
        }
        let Some(shared) = &self.shared else { return Err(BlobError::Missing(digest)) };
        self.flight(shared, digest).await?;
        Ok(path)
    }

    fn flight(&self, shared: &SharedBlobs, digest: ContentHash) -> Shared<Fetching> {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody waits for any more are over.
        fetching.retain(|_, flight| flight.upgrade().is_some());
        if let Some(flight) = fetching.get(&digest).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (blobs, shared) = (self.clone(), shared.clone());
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
        let staged = match self.stage(found.into_stream(), bytes).await {
            Ok(staged) => staged,
            Err(PutError::TooLarge { .. }) => return Err(BlobError::Damaged(digest)),
            Err(PutError::Source(why)) => {
                let source = why.into();
                return Err(object_store::Error::Generic { store: "blobs", source }.into());
            }
            Err(PutError::Io(error)) => return Err(error.into()),
        };
        if staged.digest != digest {
            return Err(BlobError::Damaged(digest));
        }
        let hold = self.keep_here(staged).await?;
        self.trim(shared.cache_bytes_max()).await?;
        drop(hold);
        tracing::debug!(%digest, bytes, "fetched a blob");
        Ok(())
    }

    /// Remove those that nobody has asked for longest until the rest take `bytes_max` or less: they can be fetched again.
    async fn trim(&self, bytes_max: u64) -> std::io::Result<()> {
        let (folder, sweep) = (self.folder.clone(), self.in_use.sweep(HashSet::new));
        blocking(move || {
            let mut blobs = Vec::new();
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let digest: Option<ContentHash> =
                    entry.file_name().to_str().and_then(|name| name.parse().ok());
                // One that has gone meanwhile takes no room.
                let (Some(digest), Ok(about)) = (digest, entry.metadata()) else { continue };
                blobs.push((about.modified()?, about.len(), digest, entry.path()));
            }
            blobs.sort_unstable();
            let mut bytes: u64 = blobs.iter().map(|(_, bytes, ..)| bytes).sum();
            for (_, blob_bytes, digest, path) in blobs {
                if bytes <= bytes_max {
                    break;
                }
                // What is mapped stays readable for those who have it.
                sweep.remove(digest, || {
                    bytes -= blob_bytes;
                    std::fs::remove_file(path)
                })?;
            }
            Ok(())
        })
        .await
    }

    /// Have no node find these any more. What nodes keep of them is theirs to sweep.
    pub(crate) async fn remove_shared(
        &self,
        digests: impl IntoIterator<Item = ContentHash>,
    ) -> Result<(), BlobError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        for digest in digests {
            shared.delete(digest).await?;
        }
        Ok(())
    }

    /// Those that other nodes could find already before a time, up to a number.
    pub(crate) async fn shared_before(&self, time: SystemTime) -> Result<Vec<ContentHash>, BlobError> {
        match &self.shared {
            Some(shared) => Ok(shared.kept_before(time).await?),
            None => Ok(Vec::new()),
        }
    }

    /// Whether other nodes have a part in them.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Where the blob with this digest is, if it is here.
    pub(crate) fn path(&self, digest: ContentHash) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The folder they are in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Which digests sweeps have to leave alone.
    pub(crate) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// Remove every blob that is neither held nor `wanted`.
    pub(crate) async fn sweep(&self, wanted: impl FnOnce() -> HashSet<ContentHash>) -> std::io::Result<()> {
        let (folder, sweep) = (self.folder.clone(), self.in_use.sweep(wanted));
        blocking(move || {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                if let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                    sweep.remove(digest, || std::fs::remove_file(entry.path()))?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// What the names of unfinished files start with.
pub(crate) const STAGED_PREFIX: &str = ".staged-";
const GATHER_BYTES: u64 = 1 << 20;
/// How exactly it is known when a blob was asked for last.
const ASKED_EVERY: Duration = Duration::from_secs(60);

struct Staging {
    file: NamedTempFile,
    hasher: Hasher,
    bytes: u64,
}

impl Staging {
    fn append(mut self, pieces: &[Bytes]) -> std::io::Result<Self> {
        for piece in pieces {
            self.hasher.update(piece);
            self.file.write_all(piece)?;
            self.bytes += piece.len() as u64;
        }
        Ok(self)
    }
}

/// Remove what an interrupted run left half-written in `folder`. Blocks.
pub(crate) fn remove_staged(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(STAGED_PREFIX) {
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// Whether a blob is at `path`. It counts as asked for now. Blocks.
fn is_there(path: &Path) -> std::io::Result<bool> {
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        about => about?,
    };
    let now = SystemTime::now();
    if now.duration_since(about.modified()?).is_ok_and(|age| age > ASKED_EVERY) {
        // Only the order suffers where that cannot be written down.
        let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(now));
    }
    Ok(true)
}

/// Make `folder`, and those above it that are missing, so that a crash does not lose them. Blocks.
pub(crate) fn create_folder(folder: &Path) -> std::io::Result<()> {
    let missing: Vec<_> =
        folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    std::fs::create_dir_all(folder)?;
    missing.into_iter().try_for_each(sync_entry)
}

/// Whether the file at `path` is there and holds what its name says. Blocks.
pub(crate) fn is_intact(path: &Path, digest: ContentHash) -> std::io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let (mut hasher, mut buffer) = (Hasher::default(), vec![0; 256 << 10]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish() == digest),
            len => hasher.update(&buffer[..len]),
        }
    }
}

/// Give `staged` its final name so that after a crash it is there whole or not at all. Blocks.
pub(crate) fn persist(staged: NamedTempFile, path: &Path) -> std::io::Result<()> {
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    sync_entry(path)
}

/// Make the name that `path` has durable, which is a matter of the folder it is in. Blocks.
pub(crate) fn sync_entry(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn body(pieces: &[&'static str]) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Unpin {
        stream::iter(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect::<Vec<_>>())
    }

    #[tokio::test]
    async fn a_blob_is_named_by_its_contents_and_leftovers_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().join("blobs"), None).unwrap();
        let staged = blobs.stage(body(&["he", "llo"]), 5).await.unwrap();
        assert_eq!(staged.digest, ContentHash::of(b"hello"));
        let path = blobs.path(staged.digest);
        let hold = blobs.keep(staged).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        blobs.sweep(HashSet::new).await.unwrap();
        assert!(path.exists(), "it is held");
        drop(hold);
        blobs.sweep(HashSet::new).await.unwrap();
        assert!(!path.exists());
        std::fs::write(folder.path().join("blobs/.staged-x"), b"half").unwrap();
        Blobs::open(folder.path().join("blobs"), None).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("blobs")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_damaged_blob_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_owned(), None).unwrap();
        let path = blobs.path(ContentHash::of(b"hello"));
        for damaged in [None, Some("hell"), Some("jello")] {
            if let Some(damaged) = damaged {
                std::fs::write(&path, damaged).unwrap();
            }
            let _hold = blobs.keep(blobs.stage(body(&["hello"]), 5).await.unwrap()).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"hello", "after {damaged:?}");
        }
    }

    /// As other nodes would have it: a store that has everything.
    fn shared(folder: &Path, cache_bytes_max: u64) -> SharedBlobs {
        SharedBlobs::open(&format!("file://{}", folder.display()), cache_bytes_max).unwrap().folder("blobs")
    }

    #[tokio::test]
    async fn a_blob_is_fetched_once_checked_and_given_up_for_newer_ones() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let blobs = |name: &str, cache_bytes_max| {
            Blobs::open(folder.path().join(name), Some(shared(&store, cache_bytes_max))).unwrap()
        };
        let (ours, theirs) = (blobs("ours", 100), blobs("theirs", 10));
        let mut digests = Vec::new();
        for text in ["first", "other", "third"] {
            digests.push(ContentHash::of(text.as_bytes()));
            drop(ours.keep(ours.stage(body(&[text]), 5).await.unwrap()).await.unwrap());
        }
        let [first, other, third] = digests[..] else { unreachable!("there are three") };
        let (one, same) = tokio::join!(theirs.fetch(first), theirs.fetch(first));
        assert_eq!(std::fs::read(one.unwrap()).unwrap(), b"first");
        assert_eq!(same.unwrap(), theirs.path(first));
        // Room for two: the one that was asked for longest ago goes.
        let long_ago = SystemTime::now() - Duration::from_secs(3_600);
        File::options().append(true).open(theirs.path(first)).unwrap().set_modified(long_ago).unwrap();
        theirs.fetch(other).await.unwrap();
        theirs.fetch(first).await.unwrap();
        let before = SystemTime::now() - Duration::from_secs(60);
        File::options().append(true).open(theirs.path(other)).unwrap().set_modified(before).unwrap();
        theirs.fetch(third).await.unwrap();
        assert_eq!([first, other, third].map(|digest| theirs.path(digest).exists()), [true, false, true]);
        // What comes back is what was kept, or nothing.
        std::fs::write(store.join("blobs").join(other.to_string()), "order").unwrap();
        assert!(matches!(theirs.fetch(other).await, Err(BlobError::Damaged(_))));
        let missing = ContentHash::of(b"missing");
        assert!(matches!(theirs.fetch(missing).await, Err(BlobError::Missing(_))));
    }

    #[tokio::test]
    async fn what_is_removed_from_the_shared_store_is_found_by_nobody_and_orphans_are_told_by_their_age() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let blobs = Blobs::open(folder.path().join("ours"), Some(shared(&store, 100))).unwrap();
        let [old, new] = ["old", "new"].map(|text| ContentHash::of(text.as_bytes()));
        for text in ["old", "new"] {
            drop(blobs.keep(blobs.stage(body(&[text]), 5).await.unwrap()).await.unwrap());
        }
        let hours = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3_600);
        let file = File::options().append(true).open(store.join("blobs").join(old.to_string())).unwrap();
        file.set_modified(hours(3)).unwrap();
        assert_eq!(blobs.shared_before(hours(2)).await.unwrap(), [old]);
        assert_eq!(blobs.shared_before(hours(4)).await.unwrap(), []);
        let missing = ContentHash::of(b"missing");
        blobs.remove_shared([old, missing]).await.unwrap();
        let theirs = Blobs::open(folder.path().join("theirs"), Some(shared(&store, 100))).unwrap();
        assert!(matches!(theirs.fetch(old).await, Err(BlobError::Missing(_))));
        theirs.fetch(new).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_too_large_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_owned(), None).unwrap();
        assert!(matches!(
            blobs.stage(body(&["hello", "!"]), 5).await,
            Err(PutError::TooLarge { bytes_max: 5 })
        ));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
