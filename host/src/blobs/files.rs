//! Files that are there whole or not at all, also after a crash.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;
use weir_types::{ContentHash, Hasher};

/// What the names of unfinished files start with.
pub(crate) const STAGED_PREFIX: &str = ".staged-";
/// How exactly it is known when a blob was asked for last.
const ASKED_EVERY: Duration = Duration::from_secs(60);

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

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// Whether a blob is at `path`. It counts as asked for now. Blocks.
pub(super) fn is_there(path: &Path) -> std::io::Result<bool> {
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
