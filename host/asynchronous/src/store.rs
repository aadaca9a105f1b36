//! Reads and changes records. Each change is one transaction, which does nothing after a concurrent
//! change.

use super::accept::LinkedWrite;
use super::record::{
    InvocationRecord, KeyUse, NextStep, claim_key, decode, encode, entry_key, index, key_use_key, record_key,
};
use super::{AsyncError, Invocations, record};
use weir_datastore::{Compare, Datastore, LIST_LIMIT_MAX, Prefix, Revision, Transaction};
use weir_types::{AsyncId, ContentHash, TenantId};

/// Claims deleted per transaction, which holds at most 128 writes.
const DROPPED_AT_ONCE: usize = 100;

/// A record and its revision, as read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) tenant: TenantId,
    pub(super) id: AsyncId,
    pub(super) record: InvocationRecord,
    pub(super) revision: Revision,
}

/// Effect of a record's change on the claim of the invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Leaves the claim unchanged.
    Leave,
    /// Keeps the claim, which this node must hold.
    Keep,
    /// Claims the invocation, which must be unclaimed.
    Take,
    /// Deletes the claim.
    Drop,
}

impl Invocations {
    /// Reads the record, if it exists.
    pub(super) async fn read(&self, tenant: &TenantId, id: AsyncId) -> Result<Option<Seen>, AsyncError> {
        let Some(entry) = self.datastore.get(&record_key(tenant, id)?).await? else { return Ok(None) };
        Ok(Some(Seen { tenant: tenant.clone(), id, record: decode(&entry)?, revision: entry.modified_at }))
    }

    /// Returns the earlier use of an idempotency key of `tenant`.
    pub(super) async fn key_use(
        &self,
        tenant: &TenantId,
        key: ContentHash,
    ) -> Result<Option<KeyUse>, AsyncError> {
        let entry = self.datastore.get(&key_use_key(tenant, key)?).await?;
        entry.as_ref().map(decode).transpose()
    }

    /// Writes a new record, claimed by this node. Returns none if its idempotency key is in use, or
    /// if a condition of the linked write does not hold.
    pub(super) async fn create(
        &self,
        tenant: &TenantId,
        id: AsyncId,
        record: &InvocationRecord,
        key_use: Option<(ContentHash, KeyUse)>,
        linked: Option<LinkedWrite>,
    ) -> Result<Option<Revision>, AsyncError> {
        let place = record_key(tenant, id)?;
        let claim = claim_key(id)?;
        let mut transaction = Transaction::new()
            .when(Compare::Absent(place.clone()))
            .put(place, encode(record))
            .put(entry_key(id)?, encode(&record.entry(tenant)))
            .put_leased(claim, encode(&self.owner), self.keeper.lease());
        if let Some((key, key_use)) = key_use {
            let key = key_use_key(tenant, key)?;
            transaction = transaction.when(Compare::Absent(key.clone())).put(key, encode(&key_use));
        }
        if let Some(LinkedWrite { compares, key, value, .. }) = linked {
            transaction = compares.into_iter().fold(transaction, Transaction::when).put(key, value);
        }
        Ok(self.datastore.commit(transaction).await?.done())
    }

    /// Replaces the record in `seen` by `record`. Returns none if the record has changed since, or
    /// if another node has the claim.
    pub(super) async fn write(
        &self,
        seen: &Seen,
        record: &InvocationRecord,
        claim: Claim,
    ) -> Result<Option<Revision>, AsyncError> {
        let Seen { tenant, id, revision, .. } = seen;
        let place = record_key(tenant, *id)?;
        let claim_at = claim_key(*id)?;
        let mut transaction = Transaction::new()
            .when(Compare::ModifiedAt(place.clone(), *revision))
            .put(place, encode(record))
            .put(entry_key(*id)?, encode(&record.entry(tenant)));
        transaction = match claim {
            Claim::Leave => transaction,
            Claim::Keep => transaction.when(Compare::Holds(claim_at, encode(&self.owner).into())),
            Claim::Take => transaction.when(Compare::Absent(claim_at.clone())).put_leased(
                claim_at,
                encode(&self.owner),
                self.keeper.lease(),
            ),
            Claim::Drop => transaction.delete(claim_at),
        };
        Ok(self.datastore.commit(transaction).await?.done())
    }

    /// Deletes the record in `seen`. Returns none if the record has changed since.
    pub(super) async fn forget(&self, seen: &Seen) -> Result<Option<Revision>, AsyncError> {
        let Seen { tenant, id, record, revision } = seen;
        let place = record_key(tenant, *id)?;
        let mut transaction = Transaction::new()
            .when(Compare::ModifiedAt(place.clone(), *revision))
            .delete(place)
            .delete(entry_key(*id)?)
            .delete(claim_key(*id)?);
        if let Some(key) = record.key {
            transaction = transaction.delete(key_use_key(tenant, key)?);
        }
        let Some(revision) = self.datastore.commit(transaction).await?.done() else { return Ok(None) };
        // The sweep removes leftover blobs by their age.
        if let Err(error) = self.blobs.remove_shared(record.entry(tenant).blobs).await {
            tracing::warn!(%error, %id, "removing the blobs of a removed invocation failed");
        }
        Ok(Some(revision))
    }

    /// Returns a page of the records of `tenant` after `after`, newest first, and the id to
    /// continue after.
    pub(super) async fn page(
        &self,
        tenant: &TenantId,
        after: Option<AsyncId>,
        records_max: usize,
    ) -> Result<(Vec<(AsyncId, InvocationRecord)>, Option<AsyncId>), AsyncError> {
        let after = after.map(|after| record_key(tenant, after)).transpose()?;
        let below = record::records(tenant)?;
        let listing = self.datastore.list(&below, after.as_ref(), records_max.min(LIST_LIMIT_MAX)).await?;
        let id_of = |key: &weir_datastore::Key| key.below(&below).and_then(|id| id.parse().ok());
        let read = listing.entries.iter().filter_map(|entry| {
            let record = decode(entry).inspect_err(
                |error| tracing::error!(%error, "invalid record of an asynchronous invocation ignored"),
            );
            Some((id_of(&entry.key)?, record.ok()?))
        });
        Ok((read.collect(), listing.more_after.as_ref().and_then(id_of)))
    }
}

impl NextStep {
    /// Returns the effect on the claim of a write after which this is the next step.
    pub(super) fn claim_after(self) -> Claim {
        match self {
            Self::Run | Self::CallBack => Claim::Leave,
            Self::Forget => Claim::Drop,
        }
    }
}

/// Deletes all claims. On a single node, these are claims of its earlier processes.
pub(super) async fn drop_claims(datastore: &dyn Datastore) -> Result<(), AsyncError> {
    let claims = Prefix::new(&format!("{}claims/", index()?))?;
    let (claims, _) = datastore.read_all(&claims).await?;
    for some in claims.chunks(DROPPED_AT_ONCE) {
        let drop =
            |transaction: Transaction, claim: &weir_datastore::Entry| transaction.delete(claim.key.clone());
        datastore.commit(some.iter().fold(Transaction::new(), drop)).await?;
    }
    Ok(())
}
