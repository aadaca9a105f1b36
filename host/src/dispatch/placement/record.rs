//! Writing down what the node's scheduler does, so that it can be played again: a file for each scheduler that it has had.

use super::Placements;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

/// How often what was written down is brought to its file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Where records go.
pub(super) struct Record {
    path: PathBuf,
    unwritten: Mutex<Unwritten>,
}

#[derive(Default)]
struct Unwritten {
    /// Schedulers that have come to their end.
    ended: u32,
    /// The last lines of theirs, by their number.
    last: Vec<(u32, Vec<u8>)>,
}

impl Record {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, unwritten: Mutex::default() }
    }

    /// A scheduler has come to its end, with these last lines.
    pub(super) fn end(&self, lines: Vec<u8>) {
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let number = unwritten.ended;
        unwritten.last.push((number, lines));
        unwritten.ended += 1;
    }

    /// Write what there is, with `lines` of the scheduler that there is now.
    pub(super) async fn write(&self, lines: Vec<u8>) {
        let mut all = {
            let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
            let mut all = std::mem::take(&mut unwritten.last);
            all.push((unwritten.ended, lines));
            all
        };
        all.retain(|(_, lines)| !lines.is_empty());
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            all.iter().try_for_each(|(number, lines)| append(&file(&path, *number), lines))
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the scheduler's record has a gap from here on"),
            Err(error) => tracing::error!(%error, "writing the scheduler's record failed"),
        }
    }
}

/// Bring what is written down to its files, for as long as there is anything.
pub(super) async fn keep(placements: Weak<Placements>) {
    loop {
        tokio::time::sleep(WRITE_EVERY).await;
        let Some(placements) = placements.upgrade() else { return };
        placements.write_record().await;
    }
}

fn file(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("-{}-{number}.jsonl", std::process::id()));
    name.into()
}

fn append(path: &Path, lines: &[u8]) -> std::io::Result<()> {
    std::fs::File::options().create(true).append(true).open(path)?.write_all(lines)
}
