//! Identity of a folder of stored files, which the datastore records too.
//!
//! A node must not serve a folder with the datastore of another folder, or with an empty datastore
//! that replaces a lost one, because the node would treat all files as unused. At the first start,
//! the folder gets a random identity in a marker file, and the datastore gets the same identity.
//! Later starts compare the two. The marker is written before the record, so that two nodes that
//! start at once both find the marker of the first.

use crate::blobs::{STAGED_PREFIX, create_folder, persist};
use bytes::Bytes;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_datastore::{Commit, Compare, Datastore, Key, KeyError, Transaction};
use weir_types::ContentHash;

/// Name of the marker file.
pub(crate) const MARKER: &str = "identity";
/// Longest wait for the record of a node that starts at the same time, and interval of looks for it.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(2);
const RECORD_POLL: Duration = Duration::from_millis(50);
/// Key of the record in the datastore.
const KEY: &str = "identity";

/// The reason why a folder and a datastore do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The datastore records the identity of a folder, and this folder has none.
    #[error(
        "{folder} has no file {MARKER:?}, but the registry refers to files in such a folder: mount or bring back the folder, or start with --init to use this one"
    )]
    NoMarker {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder belongs to another datastore.
    #[error(
        "{folder} belongs to another registry (its identity is {marker}, and the registry's is {recorded}): bring back the registry or the folder, or delete {folder}/{MARKER} to use the registry with these files"
    )]
    OtherRegistry {
        /// The folder.
        folder: PathBuf,
        /// The identity in the folder's marker.
        marker: String,
        /// The identity in the datastore.
        recorded: String,
    },
    /// The folder has files, and the datastore has no record of it.
    #[error(
        "{folder} has files, but the registry has never been used with it: bring back the registry of these files, or delete {folder}/{MARKER} to use the registry with them"
    )]
    UnknownFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The marker cannot be read or written.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Path of the marker.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The record has no valid key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The treatment of a folder without a marker whose datastore records an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerPolicy {
    /// The folder gets the marker: the datastore is part of it, or the operator has asked for it.
    Mark,
    /// The folder is refused: it may be an empty mount point.
    Refuse,
}

/// Compares the identity of `folder` with that in `datastore`, and creates both at the first start.
/// Returns the identity.
pub async fn check_identity(
    datastore: &dyn Datastore,
    folder: &Path,
    unmarked: MarkerPolicy,
) -> Result<String, IdentityError> {
    let key = Key::new(KEY)?;
    let mut recorded = read_record(datastore, &key).await?;
    let found = {
        let folder = folder.to_owned();
        blocking(folder.clone(), move || Ok((read_marker(&folder)?, holds_files(&folder)?))).await?
    };
    // Another node may have written the marker, and be about to write the record.
    let began = tokio::time::Instant::now();
    while recorded.is_none() && matches!(found, (Some(_), true)) && began.elapsed() < RECORD_WAIT_MAX {
        tokio::time::sleep(RECORD_POLL).await;
        recorded = read_record(datastore, &key).await?;
    }
    let new = format!("{:032x}", rand::random::<u128>());
    let marker = match (found, recorded) {
        ((Some(marker), _), Some(recorded)) if marker == recorded => return Ok(marker),
        ((Some(marker), _), Some(recorded)) => {
            return Err(IdentityError::OtherRegistry { folder: folder.to_owned(), marker, recorded });
        }
        ((None, _), Some(_)) if unmarked == MarkerPolicy::Refuse => {
            return Err(IdentityError::NoMarker { folder: folder.to_owned() });
        }
        ((Some(_), true), None) => return Err(IdentityError::UnknownFolder { folder: folder.to_owned() }),
        ((Some(marker), false), None) => marker,
        ((None, _), recorded) => write_new_marker(folder, recorded.unwrap_or(new)).await?,
    };
    let record = Transaction::new()
        .when(Compare::Absent(key.clone()))
        .put(key.clone(), Bytes::from(marker.clone().into_bytes()));
    if let Commit::Done(_) = datastore.commit(record).await? {
        return Ok(marker);
    }
    let recorded = read_record(datastore, &key).await?.unwrap_or_default();
    if marker == recorded {
        return Ok(marker);
    }
    Err(IdentityError::OtherRegistry { folder: folder.to_owned(), marker, recorded })
}

/// Whether `key` is that of the identity, which belongs to one folder and datastore.
#[must_use]
pub fn is_identity(key: &Key) -> bool {
    key.as_str() == KEY
}

/// Whether `folder` has a marker or stored files, in its subfolders. Blocks.
pub fn is_used(folder: &Path) -> io::Result<bool> {
    Ok(read_marker(folder)?.is_some() || holds_files(folder)?)
}

/// Removes the marker of `folder`, so that the next start gives it the identity of its datastore.
/// Blocks.
pub fn forget_identity(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The identity in the marker of `folder`, if it has one. Blocks.
pub(crate) fn read_marker(folder: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(folder.join(MARKER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read?.trim().to_owned())),
    }
}

async fn read_record(datastore: &dyn Datastore, key: &Key) -> Result<Option<String>, IdentityError> {
    let record = datastore.get(key).await?;
    Ok(record.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
}

/// Writes the marker, unless another node was first. Returns the marker that the folder has.
async fn write_new_marker(folder: &Path, identity: String) -> Result<String, IdentityError> {
    let folder = folder.to_owned();
    let path = folder.join(MARKER);
    blocking(path.clone(), move || {
        create_folder(&folder)?;
        let mut staged = tempfile::Builder::new().prefix(STAGED_PREFIX).tempfile_in(&folder)?;
        writeln!(staged, "{identity}")?;
        if let Some(marker) = read_marker(&folder)? {
            return Ok(marker);
        }
        persist(staged, &path)?;
        Ok(read_marker(&folder)?.unwrap_or(identity))
    })
    .await
}

/// Whether a subfolder of `folder` has a file that is named by a hash.
fn holds_files(folder: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && std::fs::read_dir(entry.path())?.flatten().any(|file| is_hash(&file.file_name()))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_hash(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.parse::<ContentHash>().is_ok())
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, IdentityError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
    done.flatten().map_err(|source| IdentityError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_datastore::MemoryStore;

    fn put_file(folder: &Path) {
        std::fs::create_dir_all(folder.join("components")).unwrap();
        std::fs::write(folder.join("components").join(ContentHash::from_content(b"x").to_string()), "x")
            .unwrap();
    }

    #[tokio::test]
    async fn folder_and_datastore_get_one_identity_at_the_first_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        put_file(folder.path());
        let first = check_identity(&store, folder.path(), MarkerPolicy::Refuse).await.unwrap();
        assert_eq!(first.len(), 32);
        for _ in 0..2 {
            assert_eq!(check_identity(&store, folder.path(), MarkerPolicy::Refuse).await.unwrap(), first);
        }
    }

    #[tokio::test]
    async fn nodes_that_start_at_once_agree() {
        let folder = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        let check = || check_identity(&store, folder.path(), MarkerPolicy::Refuse);
        // The second node finds the marker, and no record yet.
        let written = write_new_marker(folder.path(), "a".repeat(32)).await.unwrap();
        assert_eq!(write_new_marker(folder.path(), "b".repeat(32)).await.unwrap(), written);
        assert_eq!(check().await.unwrap(), written);
        assert_eq!(check().await.unwrap(), written);
    }

    #[tokio::test]
    async fn empty_folder_of_a_used_datastore_is_refused_unless_marked_on_purpose() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        let identity = check_identity(&store, folder.path(), MarkerPolicy::Refuse).await.unwrap();
        let error = check_identity(&store, other.path(), MarkerPolicy::Refuse).await.unwrap_err();
        assert!(matches!(error, IdentityError::NoMarker { .. }), "{error}");
        assert!(error.to_string().contains("--init"), "{error}");
        assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "a refused folder is changed");
        assert_eq!(check_identity(&store, other.path(), MarkerPolicy::Mark).await.unwrap(), identity);
        check_identity(&store, other.path(), MarkerPolicy::Refuse).await.unwrap();
    }

    #[tokio::test]
    async fn datastore_of_another_folder_or_an_empty_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        check_identity(&MemoryStore::new(), folder.path(), MarkerPolicy::Mark).await.unwrap();
        put_file(folder.path());
        let error = check_identity(&MemoryStore::new(), folder.path(), MarkerPolicy::Mark).await.unwrap_err();
        assert!(matches!(error, IdentityError::UnknownFolder { .. }), "{error}");
        let elsewhere = tempfile::tempdir().unwrap();
        let other = MemoryStore::new();
        check_identity(&other, elsewhere.path(), MarkerPolicy::Mark).await.unwrap();
        let error = check_identity(&other, folder.path(), MarkerPolicy::Mark).await.unwrap_err();
        assert!(matches!(error, IdentityError::OtherRegistry { .. }), "{error}");
        assert!(is_used(folder.path()).unwrap());
        forget_identity(folder.path()).unwrap();
        check_identity(&other, folder.path(), MarkerPolicy::Mark).await.unwrap();
    }
}
