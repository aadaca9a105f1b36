//! Layout of the file.

use super::failure;
use crate::{Entry, Error, Key, Lease, LeaseId, Listing, Prefix, Result, Revision};
use bytes::Bytes;
use redb::{
    Database, MultimapTableDefinition, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition,
};
use std::path::Path;
use std::time::Duration;

/// Creation revision, modification revision, lease ID or 0, value.
pub(super) type EntryRow = (u64, u64, u64, &'static [u8]);

/// Entries by key.
pub(super) const ENTRIES: TableDefinition<'static, &'static str, EntryRow> = TableDefinition::new("entries");

/// Times to live in milliseconds, by lease ID.
pub(super) const LEASES: TableDefinition<'static, u64, u64> = TableDefinition::new("leases");

/// Keys by lease ID.
pub(super) const LEASED: MultimapTableDefinition<'static, u64, &'static str> =
    MultimapTableDefinition::new("leased");

/// Counters of the store.
pub(super) const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");

/// [`META`] key of the layout version.
const FORMAT: &str = "format";
/// [`META`] key of the current revision.
pub(super) const REVISION: &str = "revision";
/// [`META`] key of the newest lease ID.
pub(super) const LEASES_GRANTED: &str = "leases-granted";
/// [`META`] key of the number of writes that found out whether the file can be written.
pub(super) const PROBES: &str = "probes";

/// Current layout version.
const FORMAT_NOW: u64 = 1;

/// State of a store at opening.
pub(super) struct OpenedState {
    pub(super) revision: Revision,
    pub(super) leases: Vec<Lease>,
}

/// Creates the tables of a new file, or checks the layout of an existing file.
pub(super) fn prepare(file: &Database, path: &Path) -> Result<OpenedState> {
    let (found, start) = prepare_tables(file).map_err(|source| failure(path, "read", source))?;
    if found != FORMAT_NOW {
        return Err(Error::OtherFormat { path: path.to_owned(), found, expected: FORMAT_NOW });
    }
    Ok(start)
}

/// The layout version of the file, and the state of the store.
fn prepare_tables(file: &Database) -> Result<(u64, OpenedState), redb::Error> {
    let nothing = OpenedState { revision: Revision(0), leases: Vec::new() };
    if file.begin_read()?.list_tables()?.next().is_none() {
        let transaction = file.begin_write()?;
        transaction.open_table(META)?.insert(FORMAT, FORMAT_NOW)?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(LEASES)?;
        transaction.open_multimap_table(LEASED)?;
        transaction.commit()?;
        return Ok((FORMAT_NOW, nothing));
    }
    let transaction = file.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. }) => {
            return Ok((0, nothing));
        }
        Err(error) => return Err(error.into()),
    };
    let found = number(&meta, FORMAT)?;
    if found != FORMAT_NOW {
        return Ok((found, nothing));
    }
    let leases = transaction.open_table(LEASES)?;
    let leases = leases.iter()?.map(|row| {
        let (id, time_to_live_ms) = row?;
        Ok(Lease { id: LeaseId(id.value()), time_to_live: Duration::from_millis(time_to_live_ms.value()) })
    });
    let leases = leases.collect::<Result<_, redb::StorageError>>()?;
    Ok((found, OpenedState { revision: Revision(number(&meta, REVISION)?), leases }))
}

/// A counter of the store; 0 until it is first written.
pub(super) fn number(
    meta: &impl ReadableTable<&'static str, u64>,
    name: &str,
) -> Result<u64, redb::StorageError> {
    Ok(meta.get(name)?.map_or(0, |number| number.value()))
}

/// The entry at `key`.
pub(super) fn entry(
    entries: &impl ReadableTable<&'static str, EntryRow>,
    key: &Key,
) -> Result<Option<Entry>, redb::StorageError> {
    Ok(entries.get(key.as_str())?.map(|row| decode(key.clone(), row.value())))
}

fn decode(key: Key, (created_at, modified_at, lease, value): (u64, u64, u64, &[u8])) -> Entry {
    Entry {
        key,
        value: Bytes::copy_from_slice(value),
        created_at: Revision(created_at),
        modified_at: Revision(modified_at),
        lease: (lease != 0).then_some(LeaseId(lease)),
    }
}

/// Read snapshot of the store.
pub(super) struct ReadSnapshot {
    entries: ReadOnlyTable<&'static str, EntryRow>,
    meta: ReadOnlyTable<&'static str, u64>,
}

impl ReadSnapshot {
    /// Snapshot of the latest durable state.
    pub(super) fn new(file: &Database) -> Result<Self, redb::Error> {
        let transaction = file.begin_read()?;
        Ok(Self { entries: transaction.open_table(ENTRIES)?, meta: transaction.open_table(META)? })
    }

    pub(super) fn revision(&self) -> Result<Revision, redb::Error> {
        Ok(Revision(number(&self.meta, REVISION)?))
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Entry>, redb::Error> {
        Ok(entry(&self.entries, key)?)
    }

    pub(super) fn list(
        &self,
        prefix: &Prefix,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, redb::Error> {
        let listing = Listing::new(self.revision()?);
        let Some((start, end)) = prefix.range(after) else { return Ok(listing) };
        let rows = match &end {
            Some(end) => self.entries.range(start.as_str()..end.as_str())?,
            None => self.entries.range(start.as_str()..)?,
        };
        let entries = rows.map(|row| {
            let (key, row) = row?;
            Ok(decode(Key::trusted(key.value()), row.value()))
        });
        listing.fill(limit, entries)
    }
}
