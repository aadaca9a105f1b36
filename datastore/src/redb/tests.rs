use super::*;
use crate::conformance::{done, key, put, value};
use crate::{Compare, WatchEnd};

mod crash;
mod power_cut;

const FILE: &str = "store.redb";

crate::conformance_tests!(async || {
    let folder = tempfile::tempdir().unwrap();
    let store = RedbStore::open(folder.path().join(FILE)).await.unwrap();
    (Arc::new(store) as Arc<dyn Datastore>, folder)
});

#[tokio::test]
async fn reopened_store_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let store = RedbStore::open(&path).await.unwrap();
    let first = put(&store, "a/1", "x").await;
    let last = put(&store, "a/2", "y").await;
    store.close().await;

    let store = RedbStore::open(&path).await.unwrap();
    assert_eq!(store.list(&Prefix::all(), None, 1).await.unwrap().revision, last);
    assert_eq!(store.get(&key("a/1")).await.unwrap().unwrap().modified_at, first);
    let mut forgotten = store.watch(&Prefix::all(), Some(first)).await.unwrap();
    assert_eq!(forgotten.next().await, Err(WatchEnd::Lagged));
    let mut watch = store.watch(&Prefix::all(), Some(last)).await.unwrap();
    assert_eq!(put(&store, "a/3", "z").await, last.next());
    assert_eq!(watch.next().await.unwrap().revision, last.next());
}

#[tokio::test(start_paused = true)]
async fn reopening_restarts_lease_times_to_live() {
    const TIME_TO_LIVE: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let store = RedbStore::open(&path).await.unwrap();
    let lease = store.grant_lease(TIME_TO_LIVE).await.unwrap();
    done(store.commit(Transaction::new().put_leased(key("a/1"), "x", lease.id)).await.unwrap());
    store.close().await;
    tokio::time::advance(TIME_TO_LIVE * 10).await;

    let store = RedbStore::open(&path).await.unwrap();
    assert_eq!(store.keep_alive(lease.id).await.unwrap(), TIME_TO_LIVE);
    assert_eq!(value(&store, "a/1").await.as_deref(), Some("x"));
    let mut watch = store.watch(&Prefix::all(), None).await.unwrap();
    watch.next().await.unwrap();
    assert_eq!(value(&store, "a/1").await, None);
    assert_ne!(store.grant_lease(TIME_TO_LIVE).await.unwrap().id, lease.id, "a lease number was given twice");
}

#[tokio::test]
async fn file_in_use_is_rejected_until_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let store = RedbStore::open(&path).await.unwrap();
    let error = RedbStore::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("another node runs on this data folder"), "{error}");
    store.close().await;
    RedbStore::open(&path).await.unwrap();
}

#[tokio::test]
async fn file_that_is_not_a_store_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let store = RedbStore::open(&path).await.unwrap();
    for i in 0..50 {
        done(store.commit(Transaction::new().put(key(&format!("a/{i}")), vec![i; 4_000])).await.unwrap());
    }
    store.close().await;
    let good = std::fs::read(&path).unwrap();
    let mut wrong_magic = good.clone();
    wrong_magic[..8].fill(b'?');
    let mut wrong_pages = good.clone();
    wrong_pages[512..].fill(0xa5);
    let cases: [(&str, &[u8]); 5] = [
        ("text", b"this is not a store\n"),
        ("zeroes", &[0; 100_000]),
        ("truncated", &good[..good.len() / 2]),
        ("wrong magic", &wrong_magic),
        ("wrong pages", &wrong_pages),
    ];
    for (name, bytes) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = RedbStore::open(&path).await.expect_err(name);
        assert!(matches!(error, Error::Corrupted { .. }), "{name}: {error:?}");
    }
    std::fs::write(&path, &good).unwrap();
    let store = RedbStore::open(&path).await.unwrap();
    assert!(store.get(&key("a/49")).await.unwrap().is_some());
}

#[tokio::test]
async fn file_with_another_layout_version_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let rewrite = |format: Option<u64>| {
        let file = redb::Database::create(&path).unwrap();
        let transaction = file.begin_write().unwrap();
        transaction.delete_table(tables::META).unwrap();
        match format {
            Some(format) => {
                drop(transaction.open_table(tables::META).unwrap().insert("format", format).unwrap());
            }
            None => drop(transaction.open_table(redb::TableDefinition::<u64, u64>::new("other")).unwrap()),
        }
        transaction.commit().unwrap();
    };
    for (format, expected) in [(Some(2), 2), (None, 0)] {
        rewrite(format);
        let error = RedbStore::open(&path).await.unwrap_err();
        assert!(matches!(error, Error::OtherFormat { found, .. } if found == expected), "{error:?}");
    }
}

#[tokio::test]
async fn missing_folder_is_reported_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none").join(FILE);
    let error = RedbStore::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error:?}");
    assert!(error.to_string().contains("none"), "{error}");
}

/// A conflict, a rejection and valid writes in one batch must not affect each other.
#[tokio::test]
async fn batched_writes_get_their_own_results() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(folder.path().join(FILE)).await.unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..60 {
        let store = store.clone();
        tasks.spawn(async move {
            let write = Transaction::new().put(key(&format!("a/{i:02}")), "x");
            let outcome = match i % 3 {
                0 => store.commit(write).await.map(|commit| commit.done().is_some()),
                1 => store
                    .commit(write.when(Compare::Exists(key("none"))))
                    .await
                    .map(|commit| commit.done().is_some()),
                _ => store.commit(write.put_leased(key("leased"), "x", LeaseId(99))).await.map(|_| true),
            };
            (i, outcome)
        });
    }
    for (i, outcome) in tasks.join_all().await {
        match i % 3 {
            0 => assert!(outcome.unwrap()),
            1 => assert!(!outcome.unwrap()),
            _ => assert!(matches!(outcome, Err(Error::LeaseNotFound(_)))),
        }
    }
    let store: &dyn Datastore = &*store;
    let (entries, revision) = store.read_all(&Prefix::all()).await.unwrap();
    assert_eq!((entries.len(), revision), (20, Revision(20)));
}
