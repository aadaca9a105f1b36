//! Checks of the records and blobs of asynchronous invocations with arbitrary bytes, for fuzz targets
//! and for tests without a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

#[path = "../../../fuzz/round_trip.rs"]
mod round_trip;

use crate::message::{RequestHead, ResponseHead};
use crate::record::{ClaimOwner, IndexEntry, IndexKey, InvocationRecord, KeyUse};
use crate::record::{claim_key, entry_key, place};
use round_trip::round_trip;
use weir_datastore::Key;
use weir_types::{AsyncId, TenantId};

/// Reads or refuses bytes as each record, as the head of each blob, and as a key.
pub fn invocation(bytes: &[u8]) {
    round_trip::<IndexEntry>(bytes);
    round_trip::<ClaimOwner>(bytes);
    round_trip::<KeyUse>(bytes);
    if let Some(record) = round_trip::<InvocationRecord>(bytes) {
        let entry = record.entry(&TenantId::default());
        assert!(!entry.blobs.is_empty() && entry.step == record.step());
        let _ = record.describe(&TenantId::default(), AsyncId::new(7, 7), u64::MAX);
    }
    if let Some(head) = round_trip::<RequestHead>(bytes)
        && let Ok((method, uri, headers)) = head.parts()
    {
        assert_eq!((method.as_str(), uri.to_string().is_empty()), (&*head.method, false));
        assert!(headers.len() <= head.headers.len());
    }
    if let Some(head) = round_trip::<ResponseHead>(bytes) {
        let (status, headers) = head.parts();
        assert!((100..1_000).contains(&status.as_u16()) && headers.len() <= head.headers.len());
    }
    let key = std::str::from_utf8(bytes).ok().and_then(|text| Key::new(text).ok());
    let written = key.as_ref().and_then(place).map(|place| match place {
        IndexKey::Entry(id) => entry_key(id),
        IndexKey::Claim(id) => claim_key(id),
    });
    assert!(written.is_none_or(|written| written.ok() == key));
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        seeds("invocation").iter().for_each(|seed| invocation(seed));
    }

    proptest! {
        #[test]
        fn mutated_records_are_read_or_refused(bytes in mutated("invocation")) {
            invocation(&bytes);
        }
    }
}
