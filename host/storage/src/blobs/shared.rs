//! The shared blob store of a cluster's nodes: an S3-compatible store, or a shared folder.

use crate::identity::{MARKER, read_marker};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::AsyncWriteExt;
use weir_types::{ContentHash, Hasher};

/// The limit of blobs listed at once.
const LISTED_MAX: usize = 10_000;
/// Longest wait for the first bytes of a blob, with all retries, and for each further piece. A store
/// that accepts requests and does not answer must not hold calls for longer.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A store from which every node can fetch blobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SharedBlobs {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) folder: ObjectPath,
    cache_bytes_max: u64,
    /// Blobs that were read and verified, with the `ETag` that identifies the verified write.
    intact: Arc<Mutex<HashMap<ObjectPath, String>>>,
    /// The marker that the folder of a store in a folder must keep.
    marker: Option<Arc<FolderMarker>>,
}

/// A folder with the identity in its marker.
#[derive(Debug)]
struct FolderMarker {
    folder: PathBuf,
    identity: String,
}

/// The folder of the store is missing, or another folder is in its place.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} lacks the file {MARKER:?} of this cluster's blobs: mount the folder again, or bring it back",
    folder.display()
)]
struct MissingFolder {
    folder: PathBuf,
}

/// The limit of verified blobs remembered; beyond it, all are forgotten and verified again.
const INTACT_MAX: usize = 65_536;

/// The reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SharedBlobsError {
    #[error("{0:?} is not s3://BUCKET[/PREFIX] or file:///FOLDER")]
    Address(String),
    #[error(transparent)]
    Store(#[from] object_store::Error),
    #[error(transparent)]
    Folder(#[from] std::io::Error),
}

impl SharedBlobs {
    /// Opens the store at `address`: `s3://BUCKET[/PREFIX]`, whose endpoint and credentials come
    /// from the `AWS_*` environment variables, or `file:///FOLDER`, which must exist. Sends no
    /// request to the store yet. Blocks on the disk for a folder. `cache_bytes_max` bounds a node's
    /// local copies of each of the store's folders.
    pub fn open(address: &str, cache_bytes_max: u64) -> Result<Self, SharedBlobsError> {
        let wrong = || SharedBlobsError::Address(address.to_owned());
        match address.split_once("://").ok_or_else(wrong)? {
            ("file", folder) if folder.starts_with('/') => {
                let store = LocalFileSystem::new_with_prefix(folder)?.with_fsync(true);
                Ok(Self::new(Arc::new(store), ObjectPath::default(), cache_bytes_max))
            }
            ("s3", rest) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return Err(wrong());
                }
                let folder = ObjectPath::parse(prefix).map_err(|_| wrong())?;
                Ok(Self::new(s3::open(bucket)?, folder, cache_bytes_max))
            }
            _ => Err(wrong()),
        }
    }

    /// The folder of a store at `file:///FOLDER`; `None` for other addresses.
    pub fn local_folder(address: &str) -> Option<PathBuf> {
        address.strip_prefix("file://").filter(|folder| folder.starts_with('/')).map(PathBuf::from)
    }

    /// The URL of the S3-compatible server that `address` stands for, if the environment names one.
    pub fn endpoint(address: &str) -> Option<String> {
        address.starts_with("s3://").then(s3::endpoint).flatten()
    }

    fn new(store: Arc<dyn ObjectStore>, folder: ObjectPath, cache_bytes_max: u64) -> Self {
        Self { store, folder, cache_bytes_max, intact: Arc::default(), marker: None }
    }

    /// Refuses all changes while `folder`, in which the store is, has another marker than `identity`,
    /// as while its file system is not mounted.
    #[must_use]
    pub fn with_marker(self, folder: PathBuf, identity: String) -> Self {
        Self { marker: Some(Arc::new(FolderMarker { folder, identity })), ..self }
    }

    /// Fails if the folder of the store lacks its marker.
    pub(super) async fn check_folder(&self) -> Result<(), object_store::Error> {
        let Some(marker) = self.marker.clone() else { return Ok(()) };
        let failed = |source| object_store::Error::Generic { store: "blobs", source };
        answer(async {
            let is_in_place = tokio::task::spawn_blocking(move || match read_marker(&marker.folder)? {
                Some(found) if found == marker.identity => Ok(()),
                _ => Err(std::io::Error::other(MissingFolder { folder: marker.folder.clone() })),
            });
            let is_in_place = is_in_place.await.map_err(|error| failed(error.into()))?;
            is_in_place.map_err(|error| failed(error.into()))
        })
        .await
    }

    /// A subfolder of the store.
    pub fn folder(&self, name: &str) -> Self {
        Self { folder: self.folder.clone().join(name), ..self.clone() }
    }

    /// The limit of bytes of a folder that a node caches.
    pub(super) fn cache_bytes_max(&self) -> u64 {
        self.cache_bytes_max
    }

    /// Uploads the blob in `file`. Skips a blob that the store has already, and replaces one with
    /// wrong contents.
    pub(super) async fn put(&self, digest: ContentHash, file: &Path) -> Result<(), object_store::Error> {
        // A store in a folder would create missing folders.
        self.check_folder().await?;
        self.upload(digest, file).await?;
        // The folder may have vanished meanwhile.
        self.check_folder().await
    }

    async fn upload(&self, digest: ContentHash, file: &Path) -> Result<(), object_store::Error> {
        let path = self.path(digest);
        let io = |source: std::io::Error| object_store::Error::Generic {
            store: "blobs",
            source: Box::new(source),
        };
        let mut file = tokio::fs::File::open(file).await.map_err(io)?;
        let bytes = file.metadata().await.map_err(io)?.len();
        match answer(self.store.head(&path)).await {
            // A blob appears under its name only once it is complete.
            Ok(there) if there.size == bytes && self.is_intact(digest, &there).await? => return Ok(()),
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        // A large file is uploaded in parts; memory is bounded by a few of them.
        let mut writer = BufWriter::new(self.store.clone(), path);
        let sent = async {
            tokio::io::copy(&mut file, &mut writer).await?;
            writer.shutdown().await
        };
        match sent.await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Without this, the store would keep the uploaded parts and charge for them.
                let _ = writer.abort().await;
                Err(io(error))
            }
        }
    }

    /// Whether the blob described by `there` matches its digest. Reads the blob, unless this write
    /// of it was verified before.
    async fn is_intact(&self, digest: ContentHash, there: &ObjectMeta) -> Result<bool, object_store::Error> {
        let is_known = |intact: &HashMap<_, _>| {
            there.e_tag.is_some() && intact.get(&there.location) == there.e_tag.as_ref()
        };
        if is_known(&self.lock_intact()) {
            return Ok(true);
        }
        let found = match answer(self.store.get(&there.location)).await {
            // Removed meanwhile.
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            found => found?,
        };
        let written = found.meta.e_tag.clone();
        let mut hasher = Hasher::default();
        let mut pieces = std::pin::pin!(pieces(found));
        while let Some(piece) = pieces.try_next().await? {
            hasher.update(&piece);
        }
        let is_intact = hasher.finish() == digest;
        if let Some(written) = written.filter(|_| is_intact) {
            let mut intact = self.lock_intact();
            if intact.len() >= INTACT_MAX {
                intact.clear();
            }
            intact.insert(there.location.clone(), written);
        }
        Ok(is_intact)
    }

    fn lock_intact(&self) -> MutexGuard<'_, HashMap<ObjectPath, String>> {
        self.intact.lock()
    }

    /// The blob as a stream, with its size. Brings back a blob that was set aside.
    pub(super) async fn get(
        &self,
        digest: ContentHash,
    ) -> Result<object_store::GetResult, object_store::Error> {
        match answer(self.store.get(&self.path(digest))).await {
            Err(object_store::Error::NotFound { path, source }) => {
                self.check_folder().await?;
                if answer(self.recover(digest)).await? {
                    return answer(self.store.get(&self.path(digest))).await;
                }
                Err(object_store::Error::NotFound { path, source })
            }
            found => found,
        }
    }

    /// Deletes a blob. A missing blob is not an error.
    pub(super) async fn delete(&self, digest: ContentHash) -> Result<(), object_store::Error> {
        self.check_folder().await?;
        match self.store.delete(&self.path(digest)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    /// Blobs that were stored before `time`, up to [`LISTED_MAX`].
    pub(super) async fn kept_before(
        &self,
        time: SystemTime,
    ) -> Result<Vec<ContentHash>, object_store::Error> {
        self.check_folder().await?;
        let age = SystemTime::now().duration_since(time).unwrap_or_default();
        let before = |object: &ObjectMeta| {
            SystemTime::from(object.last_modified).elapsed().is_ok_and(|old| old >= age)
        };
        let digest = |object: ObjectMeta| -> Option<ContentHash> { object.location.filename()?.parse().ok() };
        let objects = self.store.list(Some(&self.folder));
        let old =
            objects.try_filter_map(async |object| Ok(if before(&object) { digest(object) } else { None }));
        old.take(LISTED_MAX).try_collect().await
    }

    /// All blobs, with those that are set aside.
    pub(super) async fn all(&self) -> Result<Vec<ContentHash>, object_store::Error> {
        self.check_folder().await?;
        // A blob that is set aside meanwhile moves from the first list to the second one.
        let mut digests = Vec::new();
        let mut objects = self.store.list(Some(&self.folder));
        while let Some(object) = answer(objects.try_next()).await? {
            let name = object.location.filename();
            let is_here = object.location.prefix_match(&self.folder).is_some_and(|parts| parts.count() == 1);
            digests.extend(name.filter(|_| is_here).and_then(|name| name.parse::<ContentHash>().ok()));
        }
        digests.extend(self.aside_digests().await?);
        Ok(digests)
    }

    pub(super) fn path(&self, digest: ContentHash) -> ObjectPath {
        self.folder.clone().join(digest.to_string())
    }
}

/// Waits for an answer of the store, for a limited time.
pub(super) async fn answer<T>(
    asking: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, object_store::Error> {
    tokio::time::timeout(SILENCE_MAX, asking).await.unwrap_or_else(|_| {
        let source = format!("it has not answered for {} s", SILENCE_MAX.as_secs()).into();
        Err(object_store::Error::Generic { store: "blobs", source })
    })
}

/// The contents of a blob. Fails if no piece arrives for too long.
pub(super) fn pieces(
    found: object_store::GetResult,
) -> impl Stream<Item = Result<Bytes, object_store::Error>> + Send {
    futures::stream::try_unfold(found.into_stream(), async |mut pieces| {
        let piece = answer(pieces.try_next()).await?;
        Ok::<_, object_store::Error>(piece.map(|piece| (piece, pieces)))
    })
}

mod s3 {
    use super::SharedBlobsError;
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
    use std::sync::Arc;
    use std::time::Duration;

    /// The time for retries of a failing request; after that, the caller gets the error.
    const RETRY_TIME_MAX: Duration = Duration::from_secs(10);
    const RETRIES_MAX: usize = 4;
    /// The time limits of one transfer, and of a pause within it.
    const TRANSFER_TIME_MAX: &str = "1day";
    const SILENCE_MAX: &str = "30s";

    pub(super) fn endpoint() -> Option<String> {
        AmazonS3Builder::from_env().get_config_value(&AmazonS3ConfigKey::Endpoint)
    }

    pub(super) fn open(bucket: &str) -> Result<Arc<dyn ObjectStore>, SharedBlobsError> {
        // Selects ring for TLS, as elsewhere in this program. Fails if a provider is already
        // installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry =
            RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_TIME_MAX, ..RetryConfig::default() };
        let client = AmazonS3ConfigKey::Client;
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry)
            // A transfer may take long, as long as data arrives.
            .with_config(client(ClientConfigKey::Timeout), TRANSFER_TIME_MAX)
            .with_config(client(ClientConfigKey::ReadTimeout), SILENCE_MAX)
            .build()?;
        Ok(Arc::new(store))
    }
}
