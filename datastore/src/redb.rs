//! Embedded backend and default: one local file, through the `redb` crate.
//!
//! A commit is durable when its call returns. A single task writes, with group commit: commands
//! that arrive during a write form the next batch, which is one transaction of the file and one
//! sync. Reads see the latest durable state. All calls into redb run on tokio's blocking threads.
//!
//! redb refuses all further operations on a file after a failed write, such as one on a full disk.
//! The store therefore opens the file again after a failure, and tries a write every second until
//! writes succeed ([`reopen`]).

mod batch;
mod reopen;
mod tables;

use crate::lease::{Deadlines, check_time_to_live};
use crate::watch::Hub;
use crate::{
    Commit, Datastore, Entry, Error, Key, Lease, LeaseId, Listing, Prefix, Result, Revision, Snapshot,
    StoreHealth, Transaction, Watch,
};
use async_trait::async_trait;
use batch::WriterCommand;
use parking_lot::{Mutex, MutexGuard, RwLock};
use reopen::{Opener, Opening, RETRY_EVERY};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tables::ReadSnapshot;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::warn;

/// Largest number of commands queued for the writer; further callers wait for a place.
const COMMAND_QUEUE_LEN_MAX: usize = 256;

/// Largest number of commands in a batch.
const BATCH_LEN_MAX: usize = 64;

/// Size of redb's page cache.
const CACHE_BYTES_MAX: usize = 16 << 20;

/// A [`Datastore`] in a file.
///
/// The file is locked while it is open. Dropping the store unlocks the file once active calls have
/// finished; [`Datastore::close`] waits for them.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<RedbShared>,
    commands: mpsc::Sender<WriterCommand>,
    expiry: JoinHandle<()>,
}

#[derive(Debug)]
struct RedbShared {
    path: PathBuf,
    opener: Opener,
    /// `None` once closed, and while the file cannot be opened again after a failed write. Locked
    /// on blocking threads only.
    file: RwLock<Option<redb::Database>>,
    closed: AtomicBool,
    /// The failure of the last write; `None` while writes succeed.
    failure: Mutex<Option<Error>>,
    failed_writes: AtomicU64,
    deadlines: Deadlines,
    hub: Mutex<Hub>,
}

impl RedbStore {
    /// Opens the store in the file `path`, and creates the file if it does not exist; its folder
    /// must exist. Fails with [`Error::InUse`] if another process has the file open, and with
    /// [`Error::Corrupted`] if the file is damaged.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let opener = {
            let path = path.clone();
            Opener::new(move |opening| open_file(&path, opening))
        };
        Self::start(path, opener).await
    }

    async fn start(path: PathBuf, opener: Opener) -> Result<Self> {
        let opening = {
            let path = path.clone();
            let opener = opener.clone();
            tokio::task::spawn_blocking(move || {
                let file = opener.open(Opening::First)?;
                let start = tables::prepare(&file, &path)?;
                Ok((file, start))
            })
        };
        // Some kinds of damage make redb panic instead of returning an error.
        let (file, start) = opening.await.unwrap_or_else(|panicked| {
            Err(Error::Corrupted { path: path.clone(), source: Arc::new(panicked) })
        })?;
        let shared = Arc::new(RedbShared {
            path,
            opener,
            file: RwLock::new(Some(file)),
            closed: AtomicBool::new(false),
            failure: Mutex::default(),
            failed_writes: AtomicU64::new(0),
            deadlines: Deadlines::default(),
            hub: Mutex::new(Hub::new(start.revision)),
        });
        // Full time to live: holders could not keep leases alive while the store was closed.
        start.leases.into_iter().for_each(|lease| shared.deadlines.insert(lease));
        let (commands, queue) = mpsc::channel(COMMAND_QUEUE_LEN_MAX);
        // The writer ends when all senders are dropped: the store's, and that of the expiry task,
        // which ends with the store.
        tokio::spawn(write(shared.clone(), queue));
        let expiry = tokio::spawn(expire(shared.clone(), commands.clone()));
        Ok(Self { shared, commands, expiry })
    }

    /// Runs `read` on the latest durable state.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadSnapshot) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let file = shared.file.read();
            let file = file.as_ref().ok_or_else(|| shared.why_no_file())?;
            ReadSnapshot::new(file)
                .and_then(|snapshot| read(&snapshot))
                .map_err(|source| failure(&shared.path, "read", source))
        });
        reading.await.unwrap_or_else(|panicked| Err(self.shared.panicked(panicked)))
    }

    /// Sends a command to the writer and waits until the command is durable.
    async fn write<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> WriterCommand) -> Result<T> {
        send(&self.commands, command).await
    }

    fn check_open(&self) -> Result<()> {
        if self.shared.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

#[async_trait]
impl Datastore for RedbStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>> {
        let key = key.clone();
        self.read(move |snapshot| snapshot.get(&key)).await
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        let prefix = prefix.clone();
        let after = after.cloned();
        self.read(move |snapshot| snapshot.list(&prefix, after.as_ref(), limit)).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let shared = self.shared.clone();
        let taking = tokio::task::spawn_blocking(move || {
            let taken = {
                let file = shared.file.read();
                let file = file.as_ref().ok_or_else(|| shared.why_no_file())?;
                ReadSnapshot::new(file).and_then(|tables| Ok((tables.revision()?, tables)))
            };
            let (revision, tables) = taken.map_err(|source| failure(&shared.path, "read", source))?;
            let path = shared.path.clone();
            Ok(Arc::new(RedbSnapshot { path, revision, tables: Arc::new(tables) }) as Arc<dyn Snapshot>)
        });
        taking.await.unwrap_or_else(|panicked| Err(self.shared.panicked(panicked)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit> {
        transaction.check()?;
        self.write(|reply| WriterCommand::Commit { transaction, reply }).await
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease> {
        check_time_to_live(time_to_live)?;
        self.write(|reply| WriterCommand::Grant { time_to_live, reply }).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        self.check_open()?;
        self.shared.deadlines.renew(lease).ok_or(Error::LeaseNotFound(lease))
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.write(|reply| WriterCommand::End { lease, reply }).await
    }

    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> Result<Watch> {
        self.check_open()?;
        Ok(self.shared.hub().watch(prefix, after))
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            failed_writes: self.shared.failed_writes.load(Ordering::Relaxed),
            failure: self.shared.failure(),
        }
    }

    async fn close(&self) {
        self.expiry.abort();
        self.shared.closed.store(true, Ordering::Release);
        let shared = self.shared.clone();
        // Waits for the active batch and reads; later commands find no file.
        let closing = tokio::task::spawn_blocking(move || {
            drop(shared.file.write().take());
        });
        if let Err(error) = closing.await {
            warn!(%error, "closing the store failed");
        }
        self.shared.hub().close();
    }
}

impl RedbShared {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock()
    }

    /// The error of a read that has panicked.
    fn panicked(&self, panicked: tokio::task::JoinError) -> Error {
        Error::Storage { path: self.path.clone(), doing: "read", source: Arc::new(panicked) }
    }
}

/// A read transaction of the file, which grows meanwhile instead of reusing the space of old entries.
struct RedbSnapshot {
    path: PathBuf,
    revision: Revision,
    tables: Arc<ReadSnapshot>,
}

impl std::fmt::Debug for RedbSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbSnapshot").field("revision", &self.revision).finish_non_exhaustive()
    }
}

#[async_trait]
impl Snapshot for RedbSnapshot {
    fn revision(&self) -> Revision {
        self.revision
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        let tables = self.tables.clone();
        let prefix = prefix.clone();
        let after = after.cloned();
        let reading = tokio::task::spawn_blocking(move || tables.list(&prefix, after.as_ref(), limit));
        match reading.await {
            Ok(listing) => listing.map_err(|source| failure(&self.path, "read", source)),
            Err(panicked) => {
                Err(Error::Storage { path: self.path.clone(), doing: "read", source: Arc::new(panicked) })
            }
        }
    }
}

/// Writes queued commands in batches. After a failure, also writes an empty batch now and then,
/// which finds out whether writes succeed again.
async fn write(shared: Arc<RedbShared>, mut queue: mpsc::Receiver<WriterCommand>) {
    let mut commands = Vec::with_capacity(BATCH_LEN_MAX);
    loop {
        let receiving = queue.recv_many(&mut commands, BATCH_LEN_MAX);
        let received = match shared.failure() {
            None => receiving.await,
            Some(_) => match tokio::time::timeout(RETRY_EVERY, receiving).await {
                Ok(received) => received,
                Err(_) if shared.closed.load(Ordering::Acquire) => continue,
                Err(_) => usize::MAX,
            },
        };
        if received == 0 {
            return;
        }
        let batch = std::mem::take(&mut commands);
        let shared = shared.clone();
        // If the batch panics, its replies are dropped, which the receivers treat as a failure.
        if let Err(error) = tokio::task::spawn_blocking(move || batch::write(&shared, batch)).await {
            warn!(%error, "write batch failed");
        }
    }
}

/// Ends expired leases. Runs until it is aborted or the store is closed.
async fn expire(shared: Arc<RedbShared>, commands: mpsc::Sender<WriterCommand>) {
    loop {
        for lease in shared.deadlines.expired().await {
            match send(&commands, |reply| WriterCommand::End { lease: lease.id, reply }).await {
                Ok(()) | Err(Error::LeaseNotFound(_)) => {}
                Err(Error::Closed) => return,
                Err(error) => {
                    warn!(%error, lease = %lease.id, "ending an expired lease failed, retrying");
                    shared.deadlines.retry(lease);
                }
            }
        }
    }
}

async fn send<T>(
    commands: &mpsc::Sender<WriterCommand>,
    command: impl FnOnce(oneshot::Sender<Result<T>>) -> WriterCommand,
) -> Result<T> {
    let (reply, answer) = oneshot::channel();
    commands.send(command(reply)).await.map_err(|_| Error::Closed)?;
    // A dropped reply means that the batch panicked: the outcome is unknown.
    answer.await.unwrap_or_else(|dropped| Err(Error::Unavailable { source: Arc::new(dropped) }))
}

/// Opens the file. Creates a missing file only at the first opening, and makes the directory entry
/// durable.
fn open_file(path: &Path, opening: Opening) -> Result<redb::Database> {
    let mut builder = redb::Database::builder();
    builder.set_cache_size(CACHE_BYTES_MAX);
    let opened = match opening {
        Opening::First => {
            // redb treats an empty file as a new one. Only its owner may read it.
            let created = std::fs::File::options().create(true).append(true).mode(0o600).open(path);
            created.map_err(|source| failure(path, "open", redb::Error::Io(source)))?;
            builder.create(path)
        }
        Opening::Again => builder.open(path),
    };
    let file = opened.map_err(|error| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => Error::InUse { path: path.to_owned() },
        other => failure(path, "open", other.into()),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| failure(path, "open", redb::Error::Io(source)))?;
    Ok(file)
}

/// Maps an error of redb.
fn failure(path: &Path, doing: &'static str, source: redb::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, QuotaExceeded, StorageFull, UnexpectedEof};
    let path = path.to_owned();
    match &source {
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) | redb::Error::RepairAborted => {
            Error::Corrupted { path, source: Arc::new(source) }
        }
        redb::Error::Io(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => {
            Error::Corrupted { path, source: Arc::new(source) }
        }
        redb::Error::Io(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            Error::DiskFull { path, source: Arc::new(source) }
        }
        _ => Error::Storage { path, doing, source: Arc::new(source) },
    }
}

#[cfg(test)]
mod tests;
