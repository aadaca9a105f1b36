//! Reading and changing records: each change one transaction, which does nothing where somebody else was first.

use super::record::{
    KeyUse, Record, Step, claim_key, decode, encode, entry_key, index, key_use_key, record_key,
};
use super::{AsyncError, Invocations, record};
use weir_datastore::{Compare, Datastore, LIST_LIMIT_MAX, Prefix, Revision, Transaction};
use weir_types::{AsyncId, ContentHash, TenantId};

/// Claims that are dropped in one transaction, which takes 128 writes.
const DROPPED_AT_ONCE: usize = 100;

/// A record as it was read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) tenant: TenantId,
    pub(super) id: AsyncId,
    pub(super) record: Record,
    pub(super) revision: Revision,
}

/// What becomes of the claim on an invocation that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Whatever it is, it stays.
    Leave,
    /// This node has it and keeps it.
    Keep,
    /// Nobody has it, and this node takes it.
    Take,
    /// Nobody is to have it.
    Drop,
}

impl Invocations {
    /// The record, if there is one.
    pub(super) async fn read(&self, tenant: &TenantId, id: AsyncId) -> Result<Option<Seen>, AsyncError> {
        let Some(entry) = self.datastore.get(&record_key(tenant, id)?).await? else { return Ok(None) };
        Ok(Some(Seen { tenant: tenant.clone(), id, record: decode(&entry)?, revision: entry.modified_at }))
    }

    /// What an idempotency key of `tenant` was used for.
    pub(super) async fn key_use(
        &self,
        tenant: &TenantId,
        key: ContentHash,
    ) -> Result<Option<KeyUse>, AsyncError> {
        let entry = self.datastore.get(&key_use_key(tenant, key)?).await?;
        entry.as_ref().map(decode).transpose()
    }

    /// Write a new record, claimed by this node. None if its idempotency key is in use.
    pub(super) async fn create(
        &self,
        tenant: &TenantId,
        id: AsyncId,
        record: &Record,
        key_use: Option<(ContentHash, KeyUse)>,
    ) -> Result<Option<Revision>, AsyncError> {
        let (place, claim) = (record_key(tenant, id)?, claim_key(id)?);
        let mut transaction = Transaction::new()
            .when(Compare::Absent(place.clone()))
            .put(place, encode(record))
            .put(entry_key(id)?, encode(&record.entry(tenant)))
            .put_leased(claim, encode(&self.owner), self.keeper.lease());
        if let Some((key, key_use)) = key_use {
            let key = key_use_key(tenant, key)?;
            transaction = transaction.when(Compare::Absent(key.clone())).put(key, encode(&key_use));
        }
        Ok(self.datastore.commit(transaction).await?.done())
    }

    /// Put `record` in the place of what was `seen`. None if that is not there any more, or the claim is another's.
    pub(super) async fn write(
        &self,
        seen: &Seen,
        record: &Record,
        claim: Claim,
    ) -> Result<Option<Revision>, AsyncError> {
        let Seen { tenant, id, revision, .. } = seen;
        let (place, claim_at) = (record_key(tenant, *id)?, claim_key(*id)?);
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

    /// Forget what was `seen`. None if that is not there any more.
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
        // Whatever stays behind where this fails is swept by its age.
        if let Err(error) = self.blobs.remove_shared(record.entry(tenant).blobs).await {
            tracing::warn!(%error, %id, "the blobs of a forgotten invocation are still there");
        }
        Ok(Some(revision))
    }

    /// Some records of `tenant` after `after`, newest first, and where to go on.
    pub(super) async fn page(
        &self,
        tenant: &TenantId,
        after: Option<AsyncId>,
    ) -> Result<(Vec<(AsyncId, Record)>, Option<AsyncId>), AsyncError> {
        let after = after.map(|after| record_key(tenant, after)).transpose()?;
        let below = record::records(tenant)?;
        let listing = self.datastore.list(&below, after.as_ref(), LIST_LIMIT_MAX).await?;
        let id_of = |key: &weir_datastore::Key| key.below(&below).and_then(|id| id.parse().ok());
        let read = listing.entries.iter().filter_map(|entry| {
            let record = decode(entry).inspect_err(|error| tracing::error!(%error, "a record is left out"));
            Some((id_of(&entry.key)?, record.ok()?))
        });
        Ok((read.collect(), listing.more_after.as_ref().and_then(id_of)))
    }
}

impl Step {
    /// What a node that has worked on an invocation does with its claim.
    pub(super) fn claim_after(self) -> Claim {
        match self {
            Self::Run | Self::CallBack => Claim::Leave,
            Self::Forget => Claim::Drop,
        }
    }
}

/// Take away all claims: of a node by itself, they are those of its former lives.
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
