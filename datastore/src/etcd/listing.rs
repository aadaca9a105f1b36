//! Listings, fetched in pages of limited size.

use super::client::protocol::RangeRequest;
use super::{EtcdStore, number_of, revision_in};
use crate::entry::LISTING_BYTES_MAX;
use crate::{KEY_LEN_MAX, Key, LIST_LIMIT_MAX, Listing, Prefix, Result, Revision, VALUE_BYTES_MAX};
use std::convert::Infallible;

/// Entries per request.
const PAGE_LEN: usize = 32;
/// Largest size of a page, including etcd's metadata per entry.
pub(super) const ANSWER_BYTES_MAX: usize = PAGE_LEN * (VALUE_BYTES_MAX + 2 * KEY_LEN_MAX);

/// Lists entries below `prefix`, with the semantics of [`Datastore::list`](crate::Datastore::list).
pub(super) async fn list(
    store: &EtcdStore,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
) -> Result<Listing> {
    let Some((start, end)) = store.root.range(prefix, after) else {
        return Ok(Listing::new(store.revision().await?));
    };
    let limit = limit.clamp(1, LIST_LIMIT_MAX);
    let mut request = RangeRequest { key: start.into(), range_end: end.into(), ..RangeRequest::default() };
    let mut entries = Vec::new();
    let mut bytes = 0;
    loop {
        // Requests one entry more than the limit, to detect whether more entries follow.
        let is_last = bytes > LISTING_BYTES_MAX;
        let page_len = if is_last { 1 } else { (limit + 1 - entries.len()).min(PAGE_LEN) };
        request.limit = i64::try_from(page_len).unwrap_or(i64::MAX);
        let page = store.call(&request).await?;
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
