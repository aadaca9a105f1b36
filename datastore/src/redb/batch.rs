//! Writing: many commands, one transaction of the file, one wait for the disk.

use super::tables::{ENTRIES, LEASED, LEASES, LEASES_GRANTED, META, REVISION, entry, number};
use super::{Shared, failure};
use crate::{Change, Commit, Error, Event, Key, Lease, LeaseId, Result, Revision, Transaction, Write};
use redb::{ReadableMultimapTable, ReadableTable, WriteTransaction};
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::sync::oneshot;

/// What a store is asked to write.
pub(super) enum Command {
    /// A transaction, already checked.
    Commit { transaction: Transaction, reply: oneshot::Sender<Result<Commit>> },
    /// A new lease.
    Grant { time_to_live: Duration, reply: oneshot::Sender<Result<Lease>> },
    /// The end of a lease, and of all that was written under it.
    End { lease: LeaseId, reply: oneshot::Sender<Result<()>> },
}

/// The answer to a command, to be given once everything is on disk.
enum Answer {
    Commit(oneshot::Sender<Result<Commit>>, Result<Commit>),
    Grant(oneshot::Sender<Result<Lease>>, Result<Lease>),
    End(oneshot::Sender<Result<()>>, LeaseId, Result<()>),
}

/// Write `commands`, in order, and answer them. Blocks.
pub(super) fn write(shared: &Shared, commands: Vec<Command>) {
    let file = shared.file.read().unwrap_or_else(PoisonError::into_inner);
    let Some(file) = file.as_ref() else {
        return commands.into_iter().for_each(|command| command.fail(&Error::Closed));
    };
    // Its default durability waits for the disk.
    let transaction = match file.begin_write() {
        Ok(transaction) => transaction,
        Err(source) => {
            let error = failure(&shared.path, "begin to write", source.into());
            return commands.into_iter().for_each(|command| command.fail(&error));
        }
    };
    let mut batch = Batch { transaction, changes: Vec::new(), wrote: false, failed: None };
    let answers: Vec<_> = commands.into_iter().map(|command| batch.run(command, &shared.path)).collect();
    let Batch { transaction, changes, wrote, mut failed } = batch;
    // Without a write there is nothing to wait for. With a failure nothing may stay: no command was answered yet.
    let ended = match &failed {
        None if wrote => transaction.commit().map_err(redb::Error::from),
        _ => transaction.abort().map_err(redb::Error::from),
    };
    if let Err(source) = ended {
        failed.get_or_insert_with(|| failure(&shared.path, "write", source));
    }
    if failed.is_none() {
        let mut hub = shared.hub();
        changes.into_iter().for_each(|change| hub.publish(change));
    }
    answers.into_iter().for_each(|answer| answer.give(shared, failed.as_ref()));
}

struct Batch {
    transaction: WriteTransaction,
    /// What watches are to be told.
    changes: Vec<Change>,
    /// Whether there is anything to bring to disk.
    wrote: bool,
    /// The first failure of the file. It spoils the whole batch.
    failed: Option<Error>,
}

impl Batch {
    /// Do one command.
    fn run(&mut self, command: Command, path: &Path) -> Answer {
        match command {
            Command::Commit { transaction, reply } => {
                let outcome = self.commit(&transaction);
                Answer::Commit(reply, self.note(outcome, path))
            }
            Command::Grant { time_to_live, reply } => {
                let outcome = self.grant(time_to_live).map(Ok);
                Answer::Grant(reply, self.note(outcome, path))
            }
            Command::End { lease, reply } => {
                let outcome = self.end(lease);
                Answer::End(reply, lease, self.note(outcome, path))
            }
        }
    }

    /// Keep a failure of the file for the others; a refusal is the command's own.
    fn note<T>(&mut self, outcome: Result<Result<T>, redb::Error>, path: &Path) -> Result<T> {
        outcome.unwrap_or_else(|source| {
            Err(self.failed.get_or_insert_with(|| failure(path, "write", source)).clone())
        })
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Result<Commit>, redb::Error> {
        // Everything that can refuse the transaction comes before its first write: others in the batch go on.
        {
            let entries = self.transaction.open_table(ENTRIES)?;
            for compare in &transaction.compares {
                if !compare.holds(entry(&entries, compare.key())?.as_ref()) {
                    return Ok(Ok(Commit::Conflict));
                }
            }
            let leases = self.transaction.open_table(LEASES)?;
            for write in &transaction.writes {
                if let Write::Put { lease: Some(lease), .. } = write
                    && leases.get(lease.0)?.is_none()
                {
                    return Ok(Err(Error::LeaseNotFound(*lease)));
                }
            }
        }
        self.write(&transaction.writes).map(|revision| Ok(Commit::Done(revision)))
    }

    fn grant(&mut self, time_to_live: Duration) -> Result<Lease, redb::Error> {
        self.wrote = true;
        let mut meta = self.transaction.open_table(META)?;
        let id = number(&meta, LEASES_GRANTED)? + 1;
        meta.insert(LEASES_GRANTED, id)?;
        let lease = Lease::new(LeaseId(id), time_to_live);
        let time_to_live_ms = u64::try_from(lease.time_to_live.as_millis()).unwrap_or(u64::MAX);
        self.transaction.open_table(LEASES)?.insert(id, time_to_live_ms)?;
        Ok(lease)
    }

    fn end(&mut self, lease: LeaseId) -> Result<Result<()>, redb::Error> {
        if self.transaction.open_table(LEASES)?.remove(lease.0)?.is_none() {
            return Ok(Err(Error::LeaseNotFound(lease)));
        }
        self.wrote = true;
        let keys = {
            let leased = self.transaction.open_multimap_table(LEASED)?;
            let keys = leased.get(lease.0)?.map(|key| Ok(Write::Delete(Key::trusted(key?.value()))));
            keys.collect::<Result<Vec<_>, redb::StorageError>>()?
        };
        self.write(&keys)?;
        Ok(Ok(()))
    }

    /// Do `writes` as one revision, if they do anything. Returns the revision after them.
    fn write(&mut self, writes: &[Write]) -> Result<Revision, redb::Error> {
        let mut meta = self.transaction.open_table(META)?;
        let now = Revision(number(&meta, REVISION)?);
        let revision = now.next();
        let mut events = Vec::with_capacity(writes.len());
        for write in writes {
            events.extend(self.write_one(write, revision)?);
        }
        if events.is_empty() {
            return Ok(now);
        }
        meta.insert(REVISION, revision.0)?;
        self.wrote = true;
        self.changes.push(Change { revision, events });
        Ok(revision)
    }

    fn write_one(&self, write: &Write, revision: Revision) -> Result<Option<Event>, redb::Error> {
        let mut entries = self.transaction.open_table(ENTRIES)?;
        let mut leased = self.transaction.open_multimap_table(LEASED)?;
        let key = write.key();
        let old = entry(&entries, key)?;
        if let Some(lease) = old.as_ref().and_then(|old| old.lease) {
            leased.remove(lease.0, key.as_str())?;
        }
        match write {
            Write::Delete(key) => {
                entries.remove(key.as_str())?;
                Ok(old.map(|_| Event::Delete(key.clone())))
            }
            Write::Put { key, value, lease } => {
                let created_at = old.map_or(revision, |old| old.created_at);
                let row = (created_at.0, revision.0, lease.map_or(0, |lease| lease.0), &**value);
                entries.insert(key.as_str(), row)?;
                if let Some(lease) = lease {
                    leased.insert(lease.0, key.as_str())?;
                }
                let (key, value) = (key.clone(), value.clone());
                Ok(Some(Event::Put(crate::Entry {
                    key,
                    value,
                    created_at,
                    modified_at: revision,
                    lease: *lease,
                })))
            }
        }
    }
}

impl Command {
    /// Answer it with `error`. Whoever asked may be gone.
    fn fail(self, error: &Error) {
        match self {
            Self::Commit { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Grant { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::End { reply, .. } => drop(reply.send(Err(error.clone()))),
        }
    }
}

impl Answer {
    /// Give it, or the failure of the whole batch. Whoever asked may be gone.
    fn give(self, shared: &Shared, failed: Option<&Error>) {
        let failed = failed.cloned();
        match self {
            Self::Commit(reply, outcome) => drop(reply.send(failed.map_or(outcome, Err))),
            Self::Grant(reply, outcome) => {
                let outcome = failed.map_or(outcome, Err);
                if let Ok(lease) = &outcome {
                    shared.deadlines.insert(*lease);
                }
                drop(reply.send(outcome));
            }
            Self::End(reply, lease, outcome) => {
                let outcome = failed.map_or(outcome, Err);
                if outcome.is_ok() {
                    shared.deadlines.remove(lease);
                }
                drop(reply.send(outcome));
            }
        }
    }
}
