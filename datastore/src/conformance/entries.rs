//! Keys, values, compares and listings.

use super::{SharedDatastore, delete, done, key, prefix, put, value};
use crate::{
    Commit, Compare, Error, LIST_LIMIT_MAX, Listing, Prefix, Revision, TRANSACTION_OPERATIONS_MAX,
    Transaction, VALUE_BYTES_MAX,
};
use bytes::Bytes;

pub async fn absent_key_has_no_entry(store: SharedDatastore) {
    assert_eq!(store.get(&key("a/b")).await.unwrap(), None);
    put(&*store, "a/b/c", "below").await;
    assert_eq!(store.get(&key("a/b")).await.unwrap(), None);
}

pub async fn written_key_reads_back(store: SharedDatastore) {
    let created_at = put(&*store, "a/b", "one").await;
    let modified_at = put(&*store, "a/b", "two").await;
    assert!(modified_at > created_at);
    let entry = store.get(&key("a/b")).await.unwrap().unwrap();
    assert_eq!((entry.created_at, entry.modified_at, entry.lease), (created_at, modified_at, None));
    assert_eq!(entry.value, "two");
    let empty = done(store.commit(Transaction::new().put(key("a/empty"), Bytes::new())).await.unwrap());
    assert_eq!(store.get(&key("a/empty")).await.unwrap().unwrap().modified_at, empty);
    let largest = Bytes::from(vec![7; VALUE_BYTES_MAX]);
    done(store.commit(Transaction::new().put(key("a/largest"), largest.clone())).await.unwrap());
    assert_eq!(store.get(&key("a/largest")).await.unwrap().unwrap().value, largest);
}

pub async fn transaction_applies_all_writes_or_none(store: SharedDatastore) {
    put(&*store, "a/there", "x").await;
    let both = |absent: &str| {
        Transaction::new()
            .when(Compare::Exists(key("a/there")))
            .when(Compare::Absent(key(absent)))
            .put(key("a/new"), "y")
            .delete(key("a/there"))
    };
    assert_eq!(store.commit(both("a/there")).await.unwrap(), Commit::Conflict);
    assert_eq!(value(&*store, "a/new").await, None);
    assert_eq!(value(&*store, "a/there").await.as_deref(), Some("x"));
    done(store.commit(both("a/elsewhere")).await.unwrap());
    assert_eq!(value(&*store, "a/new").await.as_deref(), Some("y"));
    assert_eq!(value(&*store, "a/there").await, None);
}

pub async fn every_compare_accepts_and_rejects(store: SharedDatastore) {
    let created = put(&*store, "k", "old").await;
    let modified = put(&*store, "k", "new").await;
    let cases = [
        (Compare::Absent(key("k")), false),
        (Compare::Absent(key("none")), true),
        (Compare::Exists(key("k")), true),
        (Compare::Exists(key("none")), false),
        (Compare::CreatedAt(key("k"), created), true),
        (Compare::CreatedAt(key("k"), modified), false),
        (Compare::CreatedAt(key("none"), created), false),
        (Compare::ModifiedAt(key("k"), modified), true),
        (Compare::ModifiedAt(key("k"), created), false),
        (Compare::ModifiedAt(key("none"), Revision(0)), false),
        (Compare::Holds(key("k"), Bytes::from("new")), true),
        (Compare::Holds(key("k"), Bytes::from("old")), false),
        (Compare::Holds(key("none"), Bytes::new()), false),
    ];
    for (compare, holds) in cases {
        let commit = store.commit(Transaction::new().when(compare.clone())).await.unwrap();
        assert_eq!(commit.done().is_some(), holds, "{compare:?}");
    }
}

pub async fn rewritten_key_gets_a_new_creation_revision(store: SharedDatastore) {
    let first = put(&*store, "k", "1").await;
    delete(&*store, "k").await;
    let second = put(&*store, "k", "2").await;
    let entry = store.get(&key("k")).await.unwrap().unwrap();
    assert!(second > first);
    assert_eq!((entry.created_at, entry.modified_at), (second, second));
    let stale = Transaction::new().when(Compare::CreatedAt(key("k"), first)).delete(key("k"));
    assert_eq!(
        store.commit(stale).await.unwrap(),
        Commit::Conflict,
        "a fence of an earlier life must not hold"
    );
}

pub async fn only_effective_writes_advance_the_revision(store: SharedDatastore) {
    let before = put(&*store, "k", "same").await;
    assert_eq!(delete(&*store, "none").await, before);
    assert_eq!(done(store.commit(Transaction::new()).await.unwrap()), before);
    assert!(put(&*store, "k", "same").await > before, "a put is a change even if the value is equal");
}

pub async fn transaction_advances_the_revision_once(store: SharedDatastore) {
    let transaction = Transaction::new().put(key("a/1"), "x").put(key("b/2"), "y");
    let revision = done(store.commit(transaction).await.unwrap());
    for at in ["a/1", "b/2"] {
        assert_eq!(store.get(&key(at)).await.unwrap().unwrap().modified_at, revision);
    }
    assert_eq!(store.list(&Prefix::all(), None, 1).await.unwrap().revision, revision);
}

pub async fn oversize_input_is_rejected(store: SharedDatastore) {
    let large = || Bytes::from(vec![0; VALUE_BYTES_MAX]);
    let too_large = Transaction::new().put(key("k"), vec![0; VALUE_BYTES_MAX + 1]);
    assert!(matches!(store.commit(too_large).await, Err(Error::ValueTooLarge { .. })));
    let too_much = Transaction::new().put(key("k"), large()).put(key("l"), large());
    assert!(matches!(store.commit(too_much).await, Err(Error::TransactionTooLarge(_))));
    let too_much_to_compare =
        Transaction::new().when(Compare::Holds(key("k"), large())).put(key("l"), large());
    assert!(matches!(store.commit(too_much_to_compare).await, Err(Error::TransactionTooLarge(_))));
    let many =
        |count: usize| (0..count).fold(Transaction::new(), |t, i| t.put(key(&format!("many/{i:03}")), "x"));
    let too_many = store.commit(many(TRANSACTION_OPERATIONS_MAX + 1)).await;
    assert!(matches!(too_many, Err(Error::TooManyOperations(_))));
    assert_eq!(store.list(&Prefix::all(), None, 1).await.unwrap().entries, []);
    done(store.commit(many(TRANSACTION_OPERATIONS_MAX)).await.unwrap());
}

pub async fn duplicate_writes_in_a_transaction_are_rejected(store: SharedDatastore) {
    for twice in [
        Transaction::new().put(key("k"), "1").put(key("k"), "2"),
        Transaction::new().put(key("k"), "1").delete(key("k")),
        Transaction::new().delete(key("k")).delete(key("k")),
    ] {
        assert!(matches!(store.commit(twice).await, Err(Error::KeyWrittenTwice(k)) if k == key("k")));
    }
    assert_eq!(value(&*store, "k").await, None);
}

pub async fn listing_pages_are_in_key_order(store: SharedDatastore) {
    let count = LIST_LIMIT_MAX + 10;
    let name = |i: usize| key(&format!("a/{i:05}"));
    for from in (0..count).rev().step_by(100) {
        let page = (from.saturating_sub(99)..=from).fold(Transaction::new(), |t, i| t.put(name(i), "x"));
        done(store.commit(page).await.unwrap());
    }
    let all: Vec<_> = (0..count).map(name).collect();
    let (entries, revision) = store.read_all(&prefix("a/")).await.unwrap();
    assert_eq!(entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>(), all);
    let unbounded = store.list(&prefix("a/"), None, usize::MAX).await.unwrap();
    assert_eq!((unbounded.entries.len(), unbounded.revision), (LIST_LIMIT_MAX, revision));
    let page = store.list(&prefix("a/"), Some(&name(6)), 3).await.unwrap();
    assert_eq!(
        page.entries.iter().map(|entry| &entry.key).collect::<Vec<_>>(),
        [&name(7), &name(8), &name(9)]
    );
    assert_eq!(page.more_after, Some(name(9)));
    let last = store.list(&prefix("a/"), Some(&name(count - 4)), 3).await.unwrap();
    assert_eq!((last.entries.len(), last.more_after), (3, None), "a full page can be the last");
    assert_eq!(store.list(&prefix("a/"), None, 0).await.unwrap().entries.len(), 1);
}

pub async fn listing_stays_below_its_prefix(store: SharedDatastore) {
    for at in ["a", "a/b", "a/b/c", "a-b/c", "a0", "b/a/b"] {
        put(&*store, at, "x").await;
    }
    let keys =
        |listing: Listing| listing.entries.into_iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>();
    let list = async |below: &str, after: Option<&str>| {
        keys(store.list(&prefix(below), after.map(key).as_ref(), 100).await.unwrap())
    };
    assert_eq!(list("a/", None).await, ["a/b", "a/b/c"]);
    assert_eq!(list("a/b/", None).await, ["a/b/c"]);
    assert_eq!(list("", None).await, ["a", "a-b/c", "a/b", "a/b/c", "a0", "b/a/b"]);
    assert_eq!(list("a/", Some("a/b")).await, ["a/b/c"]);
    assert_eq!(list("a/", Some("Z")).await, ["a/b", "a/b/c"], "a start before the prefix is the prefix");
    assert_eq!(list("a/", Some("b")).await, [""; 0], "a start behind the prefix leaves nothing");
    assert_eq!(list("none/", None).await, [""; 0]);
}

pub async fn listing_page_is_limited_by_bytes(store: SharedDatastore) {
    let value = Bytes::from(vec![1; VALUE_BYTES_MAX]);
    for i in 0..12 {
        done(store.commit(Transaction::new().put(key(&format!("a/{i:02}")), value.clone())).await.unwrap());
    }
    let first = store.list(&prefix("a/"), None, 100).await.unwrap();
    assert!(
        first.entries.len() < 12 && first.more_after.is_some(),
        "{} entries in a page",
        first.entries.len()
    );
    assert_eq!(store.read_all(&prefix("a/")).await.unwrap().0.len(), 12);
}

pub async fn snapshot_has_all_pages_at_one_revision(store: SharedDatastore) {
    for at in ["a/1", "a/2", "a/3", "b/1"] {
        put(&*store, at, "old").await;
    }
    let snapshot = store.snapshot().await.unwrap();
    let first = snapshot.list(&prefix("a/"), None, 2).await.unwrap();
    assert_eq!(first.revision, snapshot.revision());
    put(&*store, "a/2", "new").await;
    delete(&*store, "a/3").await;
    put(&*store, "a/4", "new").await;
    let rest = snapshot.list(&prefix("a/"), first.more_after.as_ref(), 2).await.unwrap();
    assert_eq!((rest.revision, &rest.more_after), (snapshot.revision(), &None));
    let found: Vec<_> = first.entries.iter().chain(&rest.entries).map(|entry| entry.key.as_str()).collect();
    assert_eq!(found, ["a/1", "a/2", "a/3"]);
    let again = snapshot.list(&Prefix::all(), None, LIST_LIMIT_MAX).await.unwrap();
    assert_eq!(again.entries.len(), 4);
    assert!(again.entries.iter().all(|entry| entry.value == "old"));
    drop(snapshot);
    // The store goes on without it.
    put(&*store, "a/5", "new").await;
    assert_eq!(store.list(&prefix("a/"), None, LIST_LIMIT_MAX).await.unwrap().entries.len(), 4);
}
