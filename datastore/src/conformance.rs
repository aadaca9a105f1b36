//! Conformance tests for every backend of [`Datastore`]. The tests of a backend expand
//! [`conformance_tests!`](crate::conformance_tests) with a function that creates empty stores.

#![allow(missing_docs, reason = "the names of the tests describe them")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a suite fails by panicking")]

mod concurrency;
mod entries;
mod leases;
mod model;
mod watches;

pub use concurrency::*;
pub use entries::*;
pub use leases::*;
pub use model::*;
pub use watches::*;

use crate::{Commit, Datastore, Key, Prefix, Revision, Transaction};
use std::sync::Arc;

type SharedDatastore = Arc<dyn Datastore>;

/// Expands every test of the suite to a `#[tokio::test]` of the calling module. The argument is an
/// async closure that returns an empty store as `Arc<dyn Datastore>` and a value to keep alive as
/// long as the store.
///
/// The prefix `in real time, if CONDITION =>` is for backends that run on a real clock and can be
/// tested only where the condition holds. Such backends run the model test themselves.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        // With a paused clock, tokio advances time to the next deadline whenever all tasks are
        // idle.
        $crate::conformance_tests!(@all [tokio::test(start_paused = true)] {} $make);

        #[test]
        fn random_histories_match_the_model() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            $crate::conformance::matches_a_model(&runtime, $make);
        }
    };
    (in real time, if $condition:expr => $make:expr) => {
        $crate::conformance_tests!(@all [tokio::test] { if !$condition { return; } } $make);
    };
    (@all $attribute:tt $guard:tt $make:expr) => {
        $crate::conformance_tests!(@each $attribute $guard $make =>
            absent_key_has_no_entry, written_key_reads_back, transaction_applies_all_writes_or_none,
            every_compare_accepts_and_rejects, rewritten_key_gets_a_new_creation_revision, only_effective_writes_advance_the_revision,
            transaction_advances_the_revision_once, oversize_input_is_rejected, duplicate_writes_in_a_transaction_are_rejected,
            listing_pages_are_in_key_order, listing_stays_below_its_prefix, listing_page_is_limited_by_bytes, snapshot_has_all_pages_at_one_revision,
            watch_delivers_changes_in_order, watch_from_an_earlier_revision_misses_no_change, watch_before_the_history_reports_lag,
            watch_stays_below_its_prefix, stalled_watch_lags_without_delaying_writers, closed_store_rejects_calls,
            revoking_a_lease_deletes_its_keys, lease_without_keep_alive_expires, lease_with_keep_alive_does_not_expire,
            unleased_write_detaches_the_key_from_its_lease, ended_leases_are_rejected, excessive_lease_times_are_rejected,
            concurrent_increments_are_not_lost, exactly_one_concurrent_claim_wins, readers_never_see_partial_transactions,
        );
    };
    (@each $attribute:tt $guard:tt $make:expr => $($test:ident),* $(,)?) => {
        $(
            #$attribute
            async fn $test() {
                $guard
                let (store, _keep) = ($make)().await;
                $crate::conformance::$test(store).await;
            }
        )*
    };
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn prefix(text: &str) -> Prefix {
    Prefix::new(text).unwrap()
}

/// Writes one key and returns the resulting revision.
pub(crate) async fn put(store: &dyn Datastore, at: &str, value: &'static str) -> Revision {
    done(store.commit(Transaction::new().put(key(at), value)).await.unwrap())
}

/// Deletes one key and returns the resulting revision.
pub(crate) async fn delete(store: &dyn Datastore, at: &str) -> Revision {
    done(store.commit(Transaction::new().delete(key(at))).await.unwrap())
}

pub(crate) fn done(commit: Commit) -> Revision {
    commit.done().expect("the transaction conflicted")
}

/// The value at a key.
pub(crate) async fn value(store: &dyn Datastore, at: &str) -> Option<String> {
    let entry = store.get(&key(at)).await.unwrap()?;
    Some(String::from_utf8(entry.value.to_vec()).unwrap())
}
