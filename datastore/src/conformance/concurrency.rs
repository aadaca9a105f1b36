//! Concurrent transactions.

use super::{SharedDatastore, done, key, prefix, put, value};
use crate::{Commit, Compare, Transaction};
use tokio::task::JoinSet;

/// Concurrent tasks increment a counter with compare-and-set; a lost update would leave the counter
/// short.
pub async fn concurrent_increments_are_not_lost(store: SharedDatastore) {
    const TASKS: u32 = 8;
    const EACH: u32 = 10;
    put(&*store, "counter", "0").await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let store = store.clone();
        tasks.spawn(async move {
            for _ in 0..EACH {
                loop {
                    let entry = store.get(&key("counter")).await.unwrap().unwrap();
                    let count: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                    let unchanged = Compare::ModifiedAt(entry.key.clone(), entry.modified_at);
                    let increment =
                        Transaction::new().when(unchanged).put(entry.key, (count + 1).to_string());
                    if let Commit::Done(_) = store.commit(increment).await.unwrap() {
                        break;
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(value(&*store, "counter").await, Some((TASKS * EACH).to_string()));
}

pub async fn exactly_one_concurrent_claim_wins(store: SharedDatastore) {
    let mut tasks = JoinSet::new();
    for claimant in 0..32 {
        let store = store.clone();
        tasks.spawn(async move {
            let claim = Transaction::new()
                .when(Compare::Absent(key("leader")))
                .put(key("leader"), claimant.to_string());
            store.commit(claim).await.unwrap().done().map(|_| claimant)
        });
    }
    let winners: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(winners.len(), 1, "winners: {winners:?}");
    assert_eq!(value(&*store, "leader").await, Some(winners[0].to_string()));
}

pub async fn readers_never_see_partial_transactions(store: SharedDatastore) {
    let write = |count: u32| {
        Transaction::new().put(key("pair/left"), count.to_string()).put(key("pair/right"), count.to_string())
    };
    done(store.commit(write(0)).await.unwrap());
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for count in 1..100 {
                done(store.commit(write(count)).await.unwrap());
            }
        }
    });
    let mut last = None;
    while !writer.is_finished() {
        let listing = store.list(&prefix("pair/"), None, 10).await.unwrap();
        let [left, right] = listing.entries.as_slice() else { panic!("half a pair: {listing:?}") };
        assert_eq!((&left.value, left.modified_at), (&right.value, right.modified_at));
        assert_eq!(listing.revision, left.modified_at);
        assert!(last <= Some(listing.revision), "a later read saw an earlier state");
        last = Some(listing.revision);
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}
