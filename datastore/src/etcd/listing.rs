//! Listings, fetched in pages of limited size.

use super::client::ClientError;
use super::client::protocol::{RangeRequest, RangeResponse};
use super::{ALREADY_COMPACTED, EtcdStore, number_of, revision_in, revision_of};
use crate::entry::LISTING_BYTES_MAX;
use crate::{
    Error, KEY_LEN_MAX, Key, LIST_LIMIT_MAX, Listing, Prefix, Result, Revision, Snapshot, VALUE_BYTES_MAX,
};
use async_trait::async_trait;
use std::convert::Infallible;

/// Entries per request.
const PAGE_LEN: usize = 32;
/// Largest size of a page, including etcd's metadata per entry.
pub(super) const ANSWER_BYTES_MAX: usize = PAGE_LEN * (VALUE_BYTES_MAX + 2 * KEY_LEN_MAX);

/// A revision that etcd keeps until it is compacted.
#[derive(Debug)]
pub(super) struct EtcdSnapshot {
    pub(super) store: EtcdStore,
    pub(super) revision: Revision,
}

#[async_trait]
impl Snapshot for EtcdSnapshot {
    fn revision(&self) -> Revision {
        self.revision
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Listing> {
        list(&self.store, Some(self.revision), prefix, after, limit).await
    }
}

/// Lists entries below `prefix`, with the semantics of [`Datastore::list`](crate::Datastore::list),
/// at the revision `at` or at the current one.
pub(super) async fn list(
    store: &EtcdStore,
    at: Option<Revision>,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
) -> Result<Listing> {
    let Some((start, end)) = store.root.range(prefix, after) else {
        let revision = match at {
            Some(revision) => revision,
            None => store.revision().await?,
        };
        return Ok(Listing::new(revision));
    };
    let limit = limit.clamp(1, LIST_LIMIT_MAX);
    let revision = at.map_or(0, number_of);
    let mut request =
        RangeRequest { key: start.into(), range_end: end.into(), revision, ..RangeRequest::default() };
    let mut entries = Vec::new();
    let mut bytes = 0;
    loop {
        // Requests one entry more than the limit, to detect whether more entries follow.
        let is_last = bytes > LISTING_BYTES_MAX;
        let page_len = if is_last { 1 } else { (limit + 1 - entries.len()).min(PAGE_LEN) };
        request.limit = i64::try_from(page_len).unwrap_or(i64::MAX);
        let page = page(store, &request).await?;
        if request.revision == 0 {
            // Pins all pages to the revision of the first.
            request.revision = number_of(revision_in(page.header));
        }
        bytes += page.kvs.iter().map(|found| found.value.len()).sum::<usize>();
        let last = page.kvs.last().map(|found| found.key.clone());
        entries.extend(page.kvs.into_iter().filter_map(|found| store.root.entry(found)));
        let Some(last) = last.filter(|_| page.more && !is_last && entries.len() <= limit) else { break };
        // The first key after the last one.
        request.key = [&last[..], b"\0"].concat();
    }
    let entries = entries.into_iter().map(Ok::<_, Infallible>);
    let Ok(listing) = Listing::new(Revision(request.revision.unsigned_abs())).fill(limit, entries);
    Ok(listing)
}

/// Sends the request for one page.
async fn page(store: &EtcdStore, request: &RangeRequest) -> Result<RangeResponse> {
    match store.outcome(request).await? {
        Err(ClientError::Failed { source } | ClientError::Refused { source })
            if source.message().contains(ALREADY_COMPACTED) =>
        {
            Err(Error::Discarded(revision_of(request.revision)))
        }
        page => Ok(page?),
    }
}
