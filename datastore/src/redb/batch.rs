//! Group commit: many commands in one transaction of the file, with one sync.

use super::tables::{ENTRIES, LEASED, LEASES, LEASES_GRANTED, META, PROBES, REVISION, entry, number};
use super::{RedbShared, failure};
use crate::{Change, Commit, Error, Key, Lease, LeaseId, Result, Revision, Transaction, WatchEvent, Write};
use redb::{ReadableMultimapTable, ReadableTable, WriteTransaction};
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;

/// A command to the writer.
pub(super) enum WriterCommand {
    /// A transaction that passed its checks.
    Commit { transaction: Transaction, reply: oneshot::Sender<Result<Commit>> },
    /// Grants a lease.
    Grant { time_to_live: Duration, reply: oneshot::Sender<Result<Lease>> },
    /// Ends a lease and deletes the entries attached to it.
    End { lease: LeaseId, reply: oneshot::Sender<Result<()>> },
}

/// Result of a command, sent once the batch is durable.
enum BatchReply {
    Commit(oneshot::Sender<Result<Commit>>, Result<Commit>),
    Grant(oneshot::Sender<Result<Lease>>, Result<Lease>),
    End(oneshot::Sender<Result<()>>, LeaseId, Result<()>),
}

/// Applies `commands` in order and answers them. After a failure, opens the file again first, and
/// writes even if no command does, to find out whether writes succeed again. Blocks.
pub(super) fn write(shared: &RedbShared, commands: Vec<WriterCommand>) {
    if let Err(error) = shared.ensure_open() {
        if !matches!(error, Error::Closed) {
            shared.note_failure(&error);
        }
        return commands.into_iter().for_each(|command| command.fail(&error));
    }
    let (answers, outcome) = apply(shared, commands);
    let failed = match outcome {
        Ok(AppliedBatch { changes, wrote }) => {
            if wrote {
                shared.note_success();
            }
            let mut hub = shared.hub();
            changes.into_iter().for_each(|change| hub.publish(change));
            None
        }
        Err(Error::Closed) => Some(Error::Closed),
        Err(error) => {
            shared.note_failure(&error);
            // So that reads continue; if this fails, the next write tries again.
            if let Err(error) = shared.ensure_open() {
                tracing::debug!(%error, "the store cannot be opened again yet");
            }
            Some(error)
        }
    };
    answers.into_iter().for_each(|answer| answer.give(shared, failed.as_ref()));
}

/// A batch that is durable.
struct AppliedBatch {
    changes: Vec<Change>,
    wrote: bool,
}

/// Runs `commands` as one transaction of the file.
fn apply(shared: &RedbShared, commands: Vec<WriterCommand>) -> (Vec<BatchReply>, Result<AppliedBatch>) {
    let unanswered = |commands: Vec<WriterCommand>| {
        commands.into_iter().map(WriterCommand::into_answer).collect::<Vec<_>>()
    };
    let file = shared.file.read();
    let Some(file) = file.as_ref() else { return (unanswered(commands), Err(Error::Closed)) };
    // The default durability waits for the sync.
    let transaction = match file.begin_write() {
        Ok(transaction) => transaction,
        Err(source) => {
            let error = failure(&shared.path, "begin to write", source.into());
            return (unanswered(commands), Err(error));
        }
    };
    let mut batch = WriteBatch { transaction, changes: Vec::new(), wrote: false, failed: None };
    let mut answers = Vec::with_capacity(commands.len());
    for command in commands {
        answers.push(batch.run(command, &shared.path));
    }
    if shared.failure().is_some() {
        let probed = batch.probe().map(Ok);
        let _ = batch.note(probed, &shared.path);
    }
    let WriteBatch { transaction, changes, wrote, failed } = batch;
    // A batch without a write needs no sync. A failed batch is rolled back: no command was answered
    // yet.
    let ended = match &failed {
        None if wrote => transaction.commit().map_err(redb::Error::from),
        _ => transaction.abort().map_err(redb::Error::from),
    };
    let outcome = match (failed, ended) {
        (Some(error), _) => Err(error),
        (None, Err(source)) => Err(failure(&shared.path, "write", source)),
        (None, Ok(())) => Ok(AppliedBatch { changes, wrote }),
    };
    (answers, outcome)
}

struct WriteBatch {
    transaction: WriteTransaction,
    /// Changes to publish to watches.
    changes: Vec<Change>,
    /// Whether the batch wrote anything.
    wrote: bool,
    /// The first failure of the file. It fails the whole batch.
    failed: Option<Error>,
}

impl WriteBatch {
    /// Applies one command.
    fn run(&mut self, command: WriterCommand, path: &Path) -> BatchReply {
        match command {
            WriterCommand::Commit { transaction, reply } => {
                let outcome = self.commit(&transaction);
                BatchReply::Commit(reply, self.note(outcome, path))
            }
            WriterCommand::Grant { time_to_live, reply } => {
                let outcome = self.grant(time_to_live).map(Ok);
                BatchReply::Grant(reply, self.note(outcome, path))
            }
            WriterCommand::End { lease, reply } => {
                let outcome = self.end(lease);
                BatchReply::End(reply, lease, self.note(outcome, path))
            }
        }
    }

    /// Records a failure of the file, which fails the whole batch. A rejection concerns only its
    /// own command.
    fn note<T>(&mut self, outcome: Result<Result<T>, redb::Error>, path: &Path) -> Result<T> {
        outcome.unwrap_or_else(|source| {
            Err(self.failed.get_or_insert_with(|| failure(path, "write", source)).clone())
        })
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Result<Commit>, redb::Error> {
        // All checks come before the transaction's first write, so that a rejected transaction
        // leaves the rest of the batch intact.
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

    /// Writes a value that differs from the stored one, so that the commit needs the disk.
    fn probe(&mut self) -> Result<(), redb::Error> {
        self.wrote = true;
        let mut meta = self.transaction.open_table(META)?;
        let probes = number(&meta, PROBES)? + 1;
        meta.insert(PROBES, probes)?;
        Ok(())
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

    /// Applies `writes` as one revision, if they change anything. Returns the resulting revision.
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

    fn write_one(&self, write: &Write, revision: Revision) -> Result<Option<WatchEvent>, redb::Error> {
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
                Ok(old.map(|_| WatchEvent::Delete(key.clone())))
            }
            Write::Put { key, value, lease } => {
                let created_at = old.map_or(revision, |old| old.created_at);
                let row = (created_at.0, revision.0, lease.map_or(0, |lease| lease.0), &**value);
                entries.insert(key.as_str(), row)?;
                if let Some(lease) = lease {
                    leased.insert(lease.0, key.as_str())?;
                }
                let key = key.clone();
                let value = value.clone();
                Ok(Some(WatchEvent::Put(crate::Entry {
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

impl WriterCommand {
    /// The answer of a command that was not applied, because the whole batch failed.
    fn into_answer(self) -> BatchReply {
        match self {
            Self::Commit { reply, .. } => BatchReply::Commit(reply, Err(Error::Closed)),
            Self::Grant { reply, .. } => BatchReply::Grant(reply, Err(Error::Closed)),
            Self::End { lease, reply } => BatchReply::End(reply, lease, Err(Error::Closed)),
        }
    }

    /// Answers the command with `error`. The caller may have stopped waiting.
    fn fail(self, error: &Error) {
        match self {
            Self::Commit { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Grant { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::End { reply, .. } => drop(reply.send(Err(error.clone()))),
        }
    }
}

impl BatchReply {
    /// Sends the answer, or the failure of the whole batch. The caller may have stopped waiting.
    fn give(self, shared: &RedbShared, failed: Option<&Error>) {
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
