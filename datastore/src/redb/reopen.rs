//! Opens the file again after a failed write, until writes succeed.
//!
//! After a failed commit, the file may hold the commit or not. The file that is opened again
//! decides: if its revision differs from the last published one, the watches end as lagged, and
//! their readers read the whole store again.

use super::RedbShared;
use super::tables::{self, OpenedState};
use crate::watch::Hub;
use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{info, warn};

/// Interval of writes that find out whether the store can write again.
pub(super) const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The reason for opening the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// The start of the store.
    First,
    /// After a failed write. A file that is missing by now is not created.
    Again,
}

type OpenFile = dyn Fn(Opening) -> Result<redb::Database> + Send + Sync;

/// Opens the file of a store.
#[derive(Clone)]
pub(super) struct Opener(Arc<OpenFile>);

impl Opener {
    pub(super) fn new(open: impl Fn(Opening) -> Result<redb::Database> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(super) fn open(&self, opening: Opening) -> Result<redb::Database> {
        (self.0)(opening)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

impl RedbShared {
    /// The failure of the last write, if it failed.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// The error of an operation while no file is open.
    pub(super) fn why_no_file(&self) -> Error {
        if self.closed.load(Ordering::Acquire) {
            Error::Closed
        } else {
            self.failure().unwrap_or(Error::Closed)
        }
    }

    /// Notes that a write succeeded.
    pub(super) fn note_success(&self) {
        let failure = self.failure.lock().take();
        if failure.is_some() {
            info!(path = %self.path.display(), "the store can write again");
        }
    }

    /// Notes that a write failed, and closes the file, which redb refuses to use from now on.
    pub(super) fn note_failure(&self, error: &Error) {
        self.failed_writes.fetch_add(1, Ordering::Relaxed);
        let before = self.failure.lock().replace(error.clone());
        if before.is_none() {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            warn!(%error, cause, "a write of the store failed, trying again until writes succeed");
        }
        drop(self.file.write().take());
    }

    /// Opens the file unless it is open. Blocks.
    pub(super) fn ensure_open(&self) -> Result<()> {
        if self.file.read().is_some() {
            return Ok(());
        }
        let mut file = self.file.write();
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let opened = self.opener.open(Opening::Again)?;
        let start = tables::prepare(&opened, &self.path)?;
        self.adopt(&start);
        *file = Some(opened);
        Ok(())
    }

    /// Updates leases and watches to the state of the file.
    fn adopt(&self, start: &OpenedState) {
        self.deadlines.adopt(&start.leases);
        let mut hub = self.hub();
        if hub.newest() != start.revision {
            hub.lag_all();
            *hub = Hub::new(start.revision);
        }
    }
}
