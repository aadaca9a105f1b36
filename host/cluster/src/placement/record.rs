//! Records the events and actions of the node's schedulers for replay, in one file per scheduler.

use super::Placements;
use parking_lot::Mutex;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

/// The interval at which records are appended to their file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// The destination of records.
pub(super) struct RecordSink {
    path: PathBuf,
    unwritten: Mutex<Unwritten>,
}

#[derive(Default)]
struct Unwritten {
    /// The number of schedulers that have ended.
    ended: u32,
    /// The last lines of ended schedulers, by scheduler number.
    last: Vec<(u32, Vec<u8>)>,
}

impl RecordSink {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, unwritten: Mutex::default() }
    }

    /// Records that a scheduler has ended, with its last lines.
    pub(super) fn end(&self, lines: Vec<u8>) {
        let mut unwritten = self.unwritten.lock();
        let number = unwritten.ended;
        unwritten.last.push((number, lines));
        unwritten.ended += 1;
    }

    /// Appends all pending lines to their files, with `lines` of the current scheduler.
    pub(super) async fn write(&self, lines: Vec<u8>) {
        let mut all = {
            let mut unwritten = self.unwritten.lock();
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
            Ok(Err(error)) => tracing::warn!(%error, "the scheduler's record has a gap from this point"),
            Err(error) => tracing::error!(%error, "writing the scheduler's record failed"),
        }
    }
}

/// Appends records to their files periodically, until the placements are dropped.
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
