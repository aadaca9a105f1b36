//! Uploads with a progress bar.

use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reader for an upload that advances a progress bar. At the end of the upload the bar becomes a
/// spinner with the text `then`.
pub(crate) struct UploadReader {
    source: io::Take<Box<dyn Read + Send>>,
    length_bytes: u64,
    bar: ProgressBar,
    then: Option<String>,
    output: OutputSettings,
}

impl UploadReader {
    /// Opens `path`. The bar shows `what` during the upload, then `then` until the response
    /// arrives.
    pub(crate) fn open(path: &Path, output: OutputSettings, what: &str, then: &str) -> Result<Self> {
        let unreadable = |error| Problem::new(format!("cannot read {}", path.display())).because(error);
        let file = File::open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(Problem::new(format!("{} is not a file", path.display())).into());
        }
        Ok(Self::new(Box::new(file), meta.len(), output, what, then))
    }

    /// Reads `length_bytes` bytes of `source`. The bar shows `what` during the upload, then `then`
    /// until the response arrives.
    pub(crate) fn new(
        source: Box<dyn Read + Send>,
        length_bytes: u64,
        output: OutputSettings,
        what: &str,
        then: &str,
    ) -> Self {
        let bar = output.bytes_bar(what, length_bytes);
        // Send no more than the announced length, even if a file grows.
        Self { source: source.take(length_bytes), length_bytes, bar, then: Some(then.to_owned()), output }
    }

    /// Length of the upload.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.bar.inc(count as u64);
        if self.source.limit() == 0
            && let Some(then) = self.then.take()
        {
            self.bar.finish_and_clear();
            self.bar = self.output.spinner(&then);
        }
        Ok(count)
    }
}

impl Drop for UploadReader {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
