//! Leases.

use super::watches::told;
use super::{SharedDatastore, done, key, put, value};
use crate::{Commit, Compare, Error, LeaseId, Prefix, TIME_TO_LIVE_MAX, Transaction};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Requested time to live; backends may grant more. With a real clock, the tests take this long.
const TIME_TO_LIVE: Duration = Duration::from_secs(2);

pub async fn revoking_a_lease_deletes_its_keys(store: SharedDatastore) {
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap().id;
    let other = store.grant_lease(TIME_TO_LIVE).await.unwrap().id;
    assert_ne!(lease, other);
    let writes = Transaction::new()
        .put_leased(key("a/1"), "x", lease)
        .put_leased(key("a/2"), "x", lease)
        .put_leased(key("a/3"), "x", other)
        .put(key("a/4"), "x");
    let written = done(store.commit(writes).await.unwrap());
    assert_eq!(store.get(&key("a/1")).await.unwrap().unwrap().lease, Some(lease));
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    store.revoke_lease(lease).await.unwrap();
    let change = watch.next().await.unwrap();
    assert!(change.revision > written);
    assert_eq!(told(&change), ["-a/1", "-a/2"], "the end of a lease is one change");
    assert_eq!(value(&*store, "a/1").await, None);
    assert_eq!(value(&*store, "a/3").await.as_deref(), Some("x"));
    assert_eq!(value(&*store, "a/4").await.as_deref(), Some("x"));
}

pub async fn lease_without_keep_alive_expires(store: SharedDatastore) {
    let began = Instant::now();
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap();
    assert!(lease.time_to_live >= TIME_TO_LIVE);
    done(store.commit(Transaction::new().put_leased(key("a/1"), "x", lease.id)).await.unwrap());
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    let change = watch.next().await.unwrap();
    assert_eq!(told(&change), ["-a/1"]);
    assert!(began.elapsed() >= lease.time_to_live, "expired after {:?}", began.elapsed());
    assert!(matches!(store.keep_alive(lease.id).await, Err(Error::LeaseNotFound(id)) if id == lease.id));
    let successor = Transaction::new().when(Compare::Absent(key("a/1"))).put(key("a/1"), "mine");
    assert!(matches!(store.commit(successor).await.unwrap(), Commit::Done(_)));
}

pub async fn lease_with_keep_alive_does_not_expire(store: SharedDatastore) {
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap();
    done(store.commit(Transaction::new().put_leased(key("a/1"), "x", lease.id)).await.unwrap());
    let began = Instant::now();
    while began.elapsed() < lease.time_to_live * 2 {
        assert_eq!(store.keep_alive(lease.id).await.unwrap(), lease.time_to_live);
        sleep(lease.time_to_live / 3).await;
    }
    assert_eq!(value(&*store, "a/1").await.as_deref(), Some("x"));
}

pub async fn unleased_write_detaches_the_key_from_its_lease(store: SharedDatastore) {
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap().id;
    let other = store.grant_lease(TIME_TO_LIVE).await.unwrap().id;
    let leased = Transaction::new().put_leased(key("a/1"), "x", lease).put_leased(key("a/2"), "x", lease);
    done(store.commit(leased).await.unwrap());
    put(&*store, "a/1", "kept").await;
    done(store.commit(Transaction::new().put_leased(key("a/2"), "moved", other)).await.unwrap());
    store.revoke_lease(lease).await.unwrap();
    assert_eq!(value(&*store, "a/1").await.as_deref(), Some("kept"));
    assert_eq!(value(&*store, "a/2").await.as_deref(), Some("moved"));
    store.revoke_lease(other).await.unwrap();
    assert_eq!(value(&*store, "a/2").await, None);
}

pub async fn ended_leases_are_rejected(store: SharedDatastore) {
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap().id;
    store.revoke_lease(lease).await.unwrap();
    for gone in [lease, LeaseId(u64::MAX >> 1)] {
        let write = Transaction::new().put(key("a/first"), "x").put_leased(key("a/second"), "x", gone);
        assert!(matches!(store.commit(write).await, Err(Error::LeaseNotFound(id)) if id == gone));
        assert!(matches!(store.keep_alive(gone).await, Err(Error::LeaseNotFound(id)) if id == gone));
        assert!(matches!(store.revoke_lease(gone).await, Err(Error::LeaseNotFound(id)) if id == gone));
    }
    assert_eq!(value(&*store, "a/first").await, None, "a refused transaction left something behind");
}

pub async fn excessive_lease_times_are_rejected(store: SharedDatastore) {
    for absurd in [Duration::MAX, TIME_TO_LIVE_MAX + Duration::from_nanos(1)] {
        assert!(matches!(store.grant_lease(absurd).await, Err(Error::LeaseTooLong(_))));
    }
    assert!(store.grant_lease(TIME_TO_LIVE_MAX).await.unwrap().time_to_live >= TIME_TO_LIVE_MAX);
    assert!(store.grant_lease(Duration::ZERO).await.unwrap().time_to_live > Duration::ZERO);
}
