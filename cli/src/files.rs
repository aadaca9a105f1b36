//! Reads of small files, reads that can be stopped, and atomic writes.

use anyhow::{Context as _, Result};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads a file of at most `bytes_max` bytes.
pub(crate) fn read_small(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| cannot_read(path, &error))?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| cannot_read(path, &error))?;
    if bytes.len() > bytes_max {
        return Err(format!("{} has more than {bytes_max} bytes", path.display()));
    }
    Ok(bytes)
}

pub(crate) fn cannot_read(path: &Path, error: &dyn Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// A reader that fails once a flag is set.
pub(crate) struct Stoppable<R> {
    source: R,
    stop: Arc<AtomicBool>,
}

impl<R: Read> Stoppable<R> {
    pub(crate) fn new(source: R, stop: Arc<AtomicBool>) -> Self {
        Self { source, stop }
    }
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            // Readers repeat a read that was interrupted.
            return Err(io::Error::other("stopped"));
        }
        self.source.read(buffer)
    }
}

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
