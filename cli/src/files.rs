//! Writing files so that nobody ever sees half of one.

use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Write a file all at once: an interrupt or a full disk leaves what was there before.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Readable as any file that is made the ordinary way; the umask takes away what the user does not want.
    let ordinary = std::fs::Permissions::from_mode(0o666);
    let mut file =
        tempfile::Builder::new().permissions(ordinary).tempfile_in(folder).with_context(context)?;
    file.write_all(bytes).with_context(context)?;
    file.persist(path).with_context(context)?;
    Ok(())
}
