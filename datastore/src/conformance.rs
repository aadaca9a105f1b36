//! What every member of [`Datastore`] must do, as tests. A member's own tests expand
//! [`conformance_tests!`](crate::conformance_tests) with a function that makes fresh stores.

#![allow(missing_docs, reason = "the tests' names say what they check")]
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

/// Make every test of the suite a `#[tokio::test]` of the calling module. The argument is an async closure that gives a fresh, empty
/// store as `Arc<dyn Datastore>`, and a value to be kept as long as it. `in real time, if CONDITION =>` before it is for members with a clock of
/// their own, which test the model themselves and can be tested only where the condition holds.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        // The clock is paused: it jumps to the next deadline whenever everybody waits.
        $crate::conformance_tests!(@all [tokio::test(start_paused = true)] {} $make);

        #[test]
        fn the_store_matches_a_model() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            $crate::conformance::matches_a_model(&runtime, $make);
        }
    };
    (in real time, if $condition:expr => $make:expr) => {
        $crate::conformance_tests!(@all [tokio::test] { if !$condition { return; } } $make);
    };
    (@all $attribute:tt $guard:tt $make:expr) => {
        $crate::conformance_tests!(@each $attribute $guard $make =>
            an_absent_key_has_no_entry, a_written_key_is_read_back, a_transaction_happens_whole_or_not_at_all,
            every_compare_tells_its_cases_apart, a_deleted_key_appears_anew, only_effective_writes_move_the_revision,
            one_revision_covers_a_transaction, oversize_input_is_refused, a_key_is_written_once_per_transaction,
            listings_page_in_key_order, listings_keep_to_their_prefix, a_long_listing_is_cut_by_bytes,
            a_watch_tells_changes_in_order, a_watch_from_the_past_misses_nothing, a_watch_of_the_forgotten_past_says_so,
            a_watch_keeps_to_its_prefix, a_reader_that_never_reads_lags_and_slows_nobody, a_closed_store_says_so,
            a_revoked_lease_takes_its_keys_along, a_lease_that_nobody_keeps_alive_expires, a_lease_kept_alive_lives_on,
            a_key_leaves_its_lease_when_written_without, leases_that_are_gone_are_refused, absurd_lease_times_are_refused,
            increments_are_never_lost, one_of_many_claims_wins, readers_see_whole_transactions,
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

/// Write one key; the revision of it.
pub(crate) async fn put(store: &dyn Datastore, at: &str, value: &'static str) -> Revision {
    done(store.commit(Transaction::new().put(key(at), value)).await.unwrap())
}

/// Delete one key; the revision after it.
pub(crate) async fn delete(store: &dyn Datastore, at: &str) -> Revision {
    done(store.commit(Transaction::new().delete(key(at))).await.unwrap())
}

pub(crate) fn done(commit: Commit) -> Revision {
    commit.done().expect("the transaction conflicted")
}

/// What is at a key.
pub(crate) async fn value(store: &dyn Datastore, at: &str) -> Option<String> {
    let entry = store.get(&key(at)).await.unwrap()?;
    Some(String::from_utf8(entry.value.to_vec()).unwrap())
}
