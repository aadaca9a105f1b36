//! File upload with a progress bar.

use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reader for a file that advances a progress bar. At the end of the file the bar becomes a spinner
/// with the text `then`.
pub(crate) struct UploadReader {
    file: io::Take<File>,
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
        let bar = output.bytes_bar(what, meta.len());
        // Send no more than the announced length, even if the file grows.
        Ok(Self {
            file: file.take(meta.len()),
            length_bytes: meta.len(),
            bar,
            then: Some(then.to_owned()),
            output,
        })
    }

    /// The file's length.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bar.inc(count as u64);
        if self.file.limit() == 0
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
