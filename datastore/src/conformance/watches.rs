//! Watches.

use super::{SharedDatastore, delete, done, key, prefix, put};
use crate::{Change, Error, Prefix, Revision, Transaction, Watch, WatchEnd, WatchEvent};
use std::time::Duration;

/// The events of a change, formatted as `+key=value` and `-key`.
pub(crate) fn told(change: &Change) -> Vec<String> {
    let tell = |event: &WatchEvent| match event {
        WatchEvent::Put(entry) => format!("+{}={}", entry.key, String::from_utf8_lossy(&entry.value)),
        WatchEvent::Delete(key) => format!("-{key}"),
    };
    change.events.iter().map(tell).collect()
}

async fn expect(watch: &mut Watch, revision: Revision, events: &[&str]) {
    let change = watch.next().await.unwrap();
    assert_eq!(
        (change.revision, told(&change)),
        (revision, events.iter().map(ToString::to_string).collect())
    );
}

pub async fn watch_delivers_changes_in_order(store: SharedDatastore) {
    put(&*store, "a/before", "x").await;
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    let first = put(&*store, "a/1", "x").await;
    delete(&*store, "a/none").await;
    let both = Transaction::new().put(key("a/2"), "y").delete(key("a/1"));
    let second = done(store.commit(both).await.unwrap());
    expect(&mut watch, first, &["+a/1=x"]).await;
    expect(&mut watch, second, &["+a/2=y", "-a/1"]).await;
    let third = put(&*store, "a/1", "z").await;
    let change = watch.next().await.unwrap();
    let entry = store.get(&key("a/1")).await.unwrap().unwrap();
    assert_eq!(change, Change { revision: third, events: vec![WatchEvent::Put(entry)] });
}

pub async fn watch_from_an_earlier_revision_misses_no_change(store: SharedDatastore) {
    let first = put(&*store, "a/1", "x").await;
    let listed = store.list(&prefix("a/"), None, 100).await.unwrap().revision;
    assert_eq!(listed, first);
    let second = put(&*store, "a/2", "y").await;
    let mut watch = store.watch(&prefix("a/"), Some(listed)).await.unwrap();
    let third = put(&*store, "a/3", "z").await;
    expect(&mut watch, second, &["+a/2=y"]).await;
    expect(&mut watch, third, &["+a/3=z"]).await;
}

/// Writes so many changes that a store with a bounded history drops the first.
pub async fn watch_before_the_history_reports_lag(store: SharedDatastore) {
    let first = put(&*store, "a/first", "x").await;
    let large = "x".repeat(1 << 20);
    for _ in 0..10 {
        done(store.commit(Transaction::new().put(key("a/large"), large.clone())).await.unwrap());
    }
    let mut watch = store.watch(&prefix("a/"), Some(first)).await.unwrap();
    // A backend may remember more than it must, but it must not skip a change.
    match watch.next().await {
        Err(end) => assert_eq!(end, WatchEnd::Lagged),
        Ok(change) => assert_eq!(change.revision, first.next()),
    }
}

pub async fn watch_stays_below_its_prefix(store: SharedDatastore) {
    let mut watch = store.watch(&prefix("a/"), None).await.unwrap();
    for elsewhere in ["a", "ab/c", "b/a/c"] {
        put(&*store, elsewhere, "x").await;
    }
    let mixed = Transaction::new().put(key("b/1"), "x").put(key("a/1"), "y").put(key("c/1"), "z");
    let revision = done(store.commit(mixed).await.unwrap());
    expect(&mut watch, revision, &["+a/1=y"]).await;
}

pub async fn stalled_watch_lags_without_delaying_writers(store: SharedDatastore) {
    let mut idle = store.watch(&Prefix::all(), None).await.unwrap();
    let mut eager = store.watch(&Prefix::all(), None).await.unwrap();
    let mut seen = 0;
    let count = 2_000;
    let writes = async {
        for _ in 0..count {
            put(&*store, "k", "x").await;
            // Without a yield, a backend that never waits would leave the fast reader no time to
            // read.
            tokio::task::yield_now().await;
        }
    };
    let reads = async {
        while seen < count {
            eager.next().await.unwrap();
            seen += 1;
        }
    };
    tokio::join!(writes, reads);
    let mut last = Revision(0);
    let end = loop {
        match idle.next().await {
            Ok(change) => {
                assert!(
                    last == Revision(0) || change.revision == last.next(),
                    "changes were skipped silently"
                );
                last = change.revision;
            }
            Err(end) => break end,
        }
    };
    assert_eq!(end, WatchEnd::Lagged);
}

pub async fn closed_store_rejects_calls(store: SharedDatastore) {
    put(&*store, "k", "x").await;
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    store.close().await;
    store.close().await;
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    assert!(matches!(store.get(&key("k")).await, Err(Error::Closed)));
    assert!(matches!(store.list(&Prefix::all(), None, 1).await, Err(Error::Closed)));
    assert!(matches!(store.commit(Transaction::new().put(key("k"), "y")).await, Err(Error::Closed)));
    assert!(matches!(store.grant_lease(Duration::from_secs(1)).await, Err(Error::Closed)));
    assert!(matches!(store.keep_alive(lease.id).await, Err(Error::Closed)));
    assert!(matches!(store.revoke_lease(lease.id).await, Err(Error::Closed)));
    assert!(matches!(store.watch(&Prefix::all(), None).await, Err(Error::Closed)));
}
