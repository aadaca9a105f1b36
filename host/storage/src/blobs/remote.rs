//! Files below a prefix of a bucket, which are read and never written.

use super::SharedBlobs;
use super::shared::{SharedBlobsError, answer, pieces};
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, ObjectMeta, ObjectStore};
use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

/// Files below a prefix of a bucket of an S3-compatible store.
#[derive(Debug)]
pub struct RemoteFolder {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    address: String,
}

/// A file of a [`RemoteFolder`], as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path below the folder, with slashes.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// Time of the last write.
    pub modified: SystemTime,
    /// Differs after each write: the `ETag`, or the time and the size if the store lists no tags.
    pub tag: String,
    /// The `ETag`, if the store lists it.
    e_tag: Option<String>,
    location: ObjectPath,
}

/// The reason why a folder was not listed, or a file not read.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A request failed.
    #[error("cannot read {0}")]
    Store(String, #[source] object_store::Error),
    /// The folder has too many files.
    #[error("{0} has more than {1} objects; use a longer prefix")]
    TooMany(String, usize),
    /// The file was written or removed after it was listed.
    #[error("{0} has changed since it was listed")]
    Changed(String),
    /// The caller stopped the read.
    #[error("stopped")]
    Stopped,
    /// A write to the local file failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl RemoteFolder {
    /// Opens `s3://BUCKET[/PREFIX]`. Endpoint and credentials come from the `AWS_*` environment
    /// variables, as for blobs. Sends no request yet.
    pub fn open(address: &str) -> Result<Self, SharedBlobsError> {
        if !address.starts_with("s3://") {
            return Err(SharedBlobsError::Address(address.to_owned()));
        }
        let SharedBlobs { store, folder, .. } = SharedBlobs::open(address, 0)?;
        Ok(Self { store, prefix: folder, address: address.trim_end_matches('/').to_owned() })
    }

    /// The address, without a slash at its end.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Lists all files, sorted by path.
    pub async fn list(&self, files_max: usize) -> Result<Vec<RemoteFile>, RemoteError> {
        let failed = |error| RemoteError::Store(self.address.clone(), error);
        let mut files = Vec::new();
        let mut objects = self.store.list(Some(&self.prefix));
        while let Some(object) = answer(objects.try_next()).await.map_err(failed)? {
            if files.len() == files_max {
                return Err(RemoteError::TooMany(self.address.clone(), files_max));
            }
            files.extend(self.listed(object));
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(files)
    }

    fn listed(&self, object: ObjectMeta) -> Option<RemoteFile> {
        let parts: Vec<_> = object.location.prefix_match(&self.prefix)?.collect();
        let path = parts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("/");
        let ObjectMeta { size: bytes, last_modified, e_tag, .. } = object.clone();
        let tag = e_tag.clone().unwrap_or_else(|| format!("{} {bytes}", last_modified.timestamp_micros()));
        let location = object.location;
        (!path.is_empty()).then(|| RemoteFile {
            path,
            bytes,
            modified: last_modified.into(),
            tag,
            e_tag,
            location,
        })
    }

    /// Writes the contents of a listed file to `to`, until `is_stopped`.
    pub async fn read(
        &self,
        file: &RemoteFile,
        to: &mut impl Write,
        is_stopped: impl Fn() -> bool,
    ) -> Result<(), RemoteError> {
        let name = || format!("{}/{}", self.address, file.path);
        let failed = |error| match error {
            object_store::Error::NotFound { .. } | object_store::Error::Precondition { .. } => {
                RemoteError::Changed(name())
            }
            error => RemoteError::Store(name(), error),
        };
        let options = GetOptions { if_match: file.e_tag.clone(), ..GetOptions::default() };
        let found = answer(self.store.get_opts(&file.location, options)).await.map_err(failed)?;
        // The precondition holds already. Without a tag, the time has the precision of a header.
        let seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_same = file.e_tag.is_some()
            || seconds(found.meta.last_modified.into()).abs_diff(seconds(file.modified)) <= 1;
        if found.meta.size != file.bytes || !is_same {
            return Err(RemoteError::Changed(name()));
        }
        let mut pieces = std::pin::pin!(pieces(found));
        while let Some(piece) = pieces.try_next().await.map_err(failed)? {
            if is_stopped() {
                return Err(RemoteError::Stopped);
            }
            to.write_all(&piece)?;
        }
        Ok(())
    }
}
