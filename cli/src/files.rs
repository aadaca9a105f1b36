//! Atomic file writes.

use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Writes a file atomically: an interrupt or a full disk leaves the old contents.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Default permissions instead of a temporary file's; the umask applies.
    let ordinary = std::fs::Permissions::from_mode(0o666);
    let mut file =
        tempfile::Builder::new().permissions(ordinary).tempfile_in(folder).with_context(context)?;
    file.write_all(bytes).with_context(context)?;
    file.persist(path).with_context(context)?;
    Ok(())
}
