//! A file on its way to the node.

use crate::error::Problem;
use crate::output::Output;
use anyhow::Result;
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file and moves a progress bar; once the file is through, says what the node is busy with.
pub(crate) struct Upload {
    file: io::Take<File>,
    length_bytes: u64,
    bar: ProgressBar,
    then: Option<String>,
    output: Output,
}

impl Upload {
    /// Open `path`. `what` is shown while it is sent, `then` until the answer comes.
    pub(crate) fn open(path: &Path, output: Output, what: &str, then: &str) -> Result<Self> {
        let unreadable = |error| Problem::new(format!("cannot read {}", path.display())).because(error);
        let file = File::open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(Problem::new(format!("{} is not a file", path.display())).into());
        }
        let bar = output.bytes_bar(what, meta.len());
        // No more than was announced, should the file grow meanwhile.
        Ok(Self {
            file: file.take(meta.len()),
            length_bytes: meta.len(),
            bar,
            then: Some(then.to_owned()),
            output,
        })
    }

    /// How long the file is.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
}

impl Read for Upload {
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

impl Drop for Upload {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
