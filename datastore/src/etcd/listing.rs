//! Listings, in pages that a connection can take.

use super::{EtcdStore, revision_of};
use crate::entry::LISTING_BYTES_MAX;
use crate::{KEY_LEN_MAX, Key, LIST_LIMIT_MAX, Listing, Prefix, Result, VALUE_BYTES_MAX};
use etcd_client::{GetOptions, ResponseHeader};
use std::convert::Infallible;

/// Entries that are asked for at a time.
const PAGE_LEN: usize = 32;
/// What as many can take, with what etcd adds to each.
pub(super) const ANSWER_BYTES_MAX: usize = PAGE_LEN * (VALUE_BYTES_MAX + 2 * KEY_LEN_MAX);

/// Entries below `prefix`, as [`Datastore::list`](crate::Datastore::list) says.
pub(super) async fn list(
    store: &EtcdStore,
    prefix: &Prefix,
    after: Option<&Key>,
    limit: usize,
) -> Result<Listing> {
    let Some((mut start, end)) = store.root.range(prefix, after) else {
        return Ok(Listing::new(revision_of(store.revision().await?)));
    };
    let limit = limit.clamp(1, LIST_LIMIT_MAX);
    let mut kv = store.client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
    let (mut entries, mut bytes, mut revision) = (Vec::new(), 0, 0);
    loop {
        // One more than is wanted tells whether there are more.
        let is_last = bytes > LISTING_BYTES_MAX;
        let page_len = if is_last { 1 } else { (limit + 1 - entries.len()).min(PAGE_LEN) };
        // All pages are of one state: that of the first.
        let options = GetOptions::new()
            .with_range(end.as_str())
            .with_limit(i64::try_from(page_len).unwrap_or(i64::MAX))
            .with_revision(revision);
        let page = store.call(kv.get(start.as_str(), Some(options))).await?;
        if revision == 0 {
            revision = page.header().map_or(0, ResponseHeader::revision);
        }
        bytes += page.kvs().iter().map(|found| found.value().len()).sum::<usize>();
        entries.extend(page.kvs().iter().filter_map(|found| store.root.entry(found)));
        let Some(last) = page.kvs().last().filter(|_| page.more() && !is_last && entries.len() <= limit)
        else {
            break;
        };
        start = format!("{}\0", last.key_str().unwrap_or_default());
    }
    let entries = entries.into_iter().map(Ok::<_, Infallible>);
    let Ok(listing) = Listing::new(revision_of(revision)).fill(limit, entries);
    Ok(listing)
}
