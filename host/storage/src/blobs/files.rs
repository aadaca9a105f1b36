//! Atomic and durable files: after a crash, a file is either complete or absent.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;
use weir_types::{ContentHash, Hasher};

/// The name prefix of unfinished files.
pub const STAGED_PREFIX: &str = ".staged-";
/// The precision of the time of a blob's last request.
const ASKED_EVERY: Duration = Duration::from_secs(60);

/// Removes the partial files of an interrupted run from `folder`. Blocks.
pub fn remove_staged(folder: &Path) -> std::io::Result<()> {
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

/// Creates `folder` and its missing parents durably. Blocks.
pub fn create_folder(folder: &Path) -> std::io::Result<()> {
    let missing: Vec<_> =
        folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    std::fs::create_dir_all(folder)?;
    missing.into_iter().try_for_each(sync_entry)
}

/// Creates `folder` durably, so that only its owner has access, and its missing parents. Blocks.
pub fn create_private_folder(folder: &Path) -> std::io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        create_folder(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    sync_entry(folder)
}

/// Whether the file at `path` exists and matches its digest. Blocks.
pub fn is_intact(path: &Path, digest: ContentHash) -> std::io::Result<bool> {
    match File::open(path) {
        Ok(mut file) => Ok(hash_file(&mut file)? == digest),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Hashes the rest of `file`. Blocks.
pub fn hash_file(file: &mut File) -> std::io::Result<ContentHash> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(len) => hasher.update(&buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Renames `staged` to its final name: after a crash, the file is either complete or absent.
/// Blocks.
pub fn persist(staged: NamedTempFile, path: &Path) -> std::io::Result<()> {
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    sync_entry(path)
}

/// Makes the name of `path` durable by syncing its folder. Blocks.
pub fn sync_entry(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// Whether a blob exists at `path`. Records the request. Blocks.
pub(super) fn is_there(path: &Path) -> std::io::Result<bool> {
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        about => about?,
    };
    let now = SystemTime::now();
    if now.duration_since(about.modified()?).is_ok_and(|age| age > ASKED_EVERY) {
        // A failure only affects the order of eviction.
        let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(now));
    }
    Ok(true)
}
