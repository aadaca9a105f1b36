//! Local blobs that no record referred to at the start of the node.
//!
//! The registry may have been restored from an older copy, or begun empty. Its newer copy can be
//! brought back within the grace period: a blob that is needed again returns to its place.

use super::Sweep;
use super::files::create_folder;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weir_types::ContentHash;

/// Name of the folder of blobs that were set aside, in the parent of the blob folders.
const ASIDE: &str = "aside";
/// The time after which a blob that was set aside is removed.
const GRACE: Duration = Duration::from_secs(24 * 3_600);

/// Moves a blob aside. Blocks.
pub(super) fn set_aside(folder: &Path, digest: ContentHash) -> io::Result<()> {
    let from = folder.join(digest.to_string());
    create_folder(&aside(folder))?;
    // The modification time records when the blob was set aside.
    File::options().append(true).open(&from)?.set_modified(SystemTime::now())?;
    std::fs::rename(from, place(folder, digest))
}

/// Moves a blob back to its place. Returns false if it was not aside. Blocks.
pub(super) fn bring_back(folder: &Path, digest: ContentHash) -> io::Result<bool> {
    match std::fs::rename(place(folder, digest), folder.join(digest.to_string())) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        moved => moved.map(|()| true),
    }
}

/// Brings back the blobs that `sweep` spares, and removes the others after the grace period. Blocks.
pub(super) fn tidy(folder: &Path, sweep: &Sweep) -> io::Result<()> {
    let entries = match std::fs::read_dir(aside(folder)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let mut is_spared = true;
        sweep.remove(digest, || {
            is_spared = false;
            Ok(())
        })?;
        if is_spared {
            bring_back(folder, digest)?;
            continue;
        }
        let since = entry.metadata()?.modified()?;
        if SystemTime::now().duration_since(since).is_ok_and(|age| age >= GRACE) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The folder for blobs of `folder` that are set aside.
fn aside(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default();
    folder.with_file_name(ASIDE).join(name)
}

fn place(folder: &Path, digest: ContentHash) -> PathBuf {
    aside(folder).join(digest.to_string())
}
