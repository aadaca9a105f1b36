//! Model-based test: random histories, checked against the simplest possible store.

use super::{key, prefix};
use crate::{
    Commit, Compare, Datastore, Entry, Error, Key, LeaseId, Prefix, Revision, Transaction, WatchEnd,
    WatchEvent,
};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One step of a random history. The keys are few, so that steps often share a key.
#[derive(Debug, Clone)]
enum HistoryStep {
    Commit { compares: Vec<RandomCompare>, puts: BTreeMap<usize, Option<Put>> },
    Grant,
    Revoke(Index),
}

#[derive(Debug, Clone)]
struct Put {
    value: u8,
    lease: Option<Index>,
}

#[derive(Debug, Clone)]
enum RandomCompare {
    Absent(usize),
    Exists(usize),
    /// The creation revision of the key, or the revision before it.
    Created(usize, bool),
    Modified(usize, bool),
    Holds(usize, u8),
}

const KEYS: [&str; 5] = ["a", "a/b", "a/c", "ab/c", "b/c/d"];
const PREFIXES: [&str; 4] = ["", "a/", "ab/", "b/"];

/// Checks that the stores of `make` behave like the model over random histories. Proptest shrinks a
/// failing history.
pub fn matches_a_model<Kept>(
    runtime: &tokio::runtime::Runtime,
    make: impl AsyncFn() -> (Arc<dyn Datastore>, Kept),
) {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let history = prop::collection::vec(step(), 1..24);
    let outcome = TestRunner::new(config).run(&history, |history| {
        runtime.block_on(async {
            let (store, _kept) = make().await;
            follow(&*store, history).await;
            store.close().await;
        });
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

fn step() -> impl Strategy<Value = HistoryStep> {
    let at = 0..KEYS.len();
    let compare = prop_oneof![
        at.clone().prop_map(RandomCompare::Absent),
        at.clone().prop_map(RandomCompare::Exists),
        (at.clone(), prop::bool::weighted(0.9)).prop_map(|(at, now)| RandomCompare::Created(at, now)),
        (at.clone(), prop::bool::weighted(0.9)).prop_map(|(at, now)| RandomCompare::Modified(at, now)),
        (at.clone(), 0_u8..3).prop_map(|(at, value)| RandomCompare::Holds(at, value)),
    ];
    let put = (0_u8..3, prop::option::weighted(0.3, any::<Index>()))
        .prop_map(|(value, lease)| Put { value, lease });
    let puts = prop::collection::btree_map(at, prop::option::weighted(0.7, put), 0..4);
    let commit = (prop::collection::vec(compare, 0..2), puts);
    prop_oneof![
        8 => commit.prop_map(|(compares, puts)| HistoryStep::Commit { compares, puts }),
        1 => Just(HistoryStep::Grant),
        1 => any::<Index>().prop_map(HistoryStep::Revoke),
    ]
}

/// The simplest possible store: a list of all its states.
#[derive(Default)]
struct ReferenceStore {
    now: BTreeMap<Key, Entry>,
    revision: Revision,
    leases: Vec<LeaseId>,
    /// State after each revision.
    states: Vec<(Revision, BTreeMap<Key, Entry>)>,
}

async fn follow(store: &dyn Datastore, history: Vec<HistoryStep>) {
    let mut model = ReferenceStore {
        revision: store.list(&Prefix::all(), None, 1).await.unwrap().revision,
        ..ReferenceStore::default()
    };
    let start = model.revision;
    let mut ended = Vec::new();
    for step in history {
        match step {
            HistoryStep::Grant => {
                model.leases.push(store.grant_lease(Duration::from_secs(3_600)).await.unwrap().id);
            }
            HistoryStep::Revoke(index) => {
                if !model.leases.is_empty() {
                    let lease = model.leases.swap_remove(index.index(model.leases.len()));
                    store.revoke_lease(lease).await.unwrap();
                    ended.push(lease);
                    model.end(lease, store).await;
                }
            }
            HistoryStep::Commit { compares, puts } => {
                // Also names ended leases, which the store must reject.
                let named: Vec<_> = model.leases.iter().chain(&ended).copied().collect();
                let transaction = transaction(&model, &named, compares, &puts);
                let expected = model.commit(&transaction);
                match (store.commit(transaction).await, expected) {
                    (Ok(Commit::Conflict), Expected::Conflict) => {}
                    (Err(Error::LeaseNotFound(_)), Expected::LeaseNotFound) => {}
                    (Ok(Commit::Done(revision)), Expected::Done { changed }) => {
                        model.settle(revision, changed);
                    }
                    (actual, expected) => panic!("the store said {actual:?}, the model {expected:?}"),
                }
            }
        }
        check_state(store, &model).await;
    }
    check_history(store, &model, start).await;
}

fn transaction(
    model: &ReferenceStore,
    leases: &[LeaseId],
    compares: Vec<RandomCompare>,
    puts: &BTreeMap<usize, Option<Put>>,
) -> Transaction {
    let at = |index: usize| key(KEYS[index]);
    let revision = |index: usize, now: bool, of: fn(&Entry) -> Revision| {
        let current = model.now.get(&at(index)).map_or(model.revision, of);
        if now { current } else { Revision(current.0.saturating_sub(1)) }
    };
    let mut transaction = Transaction::new();
    for compare in compares {
        transaction = transaction.when(match compare {
            RandomCompare::Absent(index) => Compare::Absent(at(index)),
            RandomCompare::Exists(index) => Compare::Exists(at(index)),
            RandomCompare::Created(index, now) => {
                Compare::CreatedAt(at(index), revision(index, now, |e| e.created_at))
            }
            RandomCompare::Modified(index, now) => {
                Compare::ModifiedAt(at(index), revision(index, now, |e| e.modified_at))
            }
            RandomCompare::Holds(index, value) => Compare::Holds(at(index), Bytes::copy_from_slice(&[value])),
        });
    }
    for (index, put) in puts {
        let at = at(*index);
        transaction = match put {
            None => transaction.delete(at),
            Some(Put { value, lease: Some(lease) }) if !leases.is_empty() => {
                transaction.put_leased(at, vec![*value], leases[lease.index(leases.len())])
            }
            Some(Put { value, .. }) => transaction.put(at, vec![*value]),
        };
    }
    transaction
}

#[derive(Debug)]
enum Expected {
    Conflict,
    LeaseNotFound,
    Done { changed: bool },
}

impl ReferenceStore {
    /// Applies `transaction`. Written entries get a placeholder revision that
    /// [`ReferenceStore::settle`] replaces.
    fn commit(&mut self, transaction: &Transaction) -> Expected {
        let holds = transaction.compares.iter().all(|compare| match (compare, self.now.get(compare.key())) {
            (Compare::Absent(_), entry) => entry.is_none(),
            (Compare::Exists(_), entry) => entry.is_some(),
            (Compare::CreatedAt(_, revision), entry) => entry.map(|e| e.created_at) == Some(*revision),
            (Compare::ModifiedAt(_, revision), entry) => entry.map(|e| e.modified_at) == Some(*revision),
            (Compare::Holds(_, value), entry) => entry.map(|e| &e.value) == Some(value),
        });
        if !holds {
            return Expected::Conflict;
        }
        let leases = transaction.writes.iter().filter_map(|write| match write {
            crate::Write::Put { lease, .. } => *lease,
            crate::Write::Delete(_) => None,
        });
        if leases.into_iter().any(|lease| !self.leases.contains(&lease)) {
            return Expected::LeaseNotFound;
        }
        let before = self.now.clone();
        for write in &transaction.writes {
            match write.clone() {
                crate::Write::Delete(key) => drop(self.now.remove(&key)),
                crate::Write::Put { key, value, lease } => {
                    let created_at = self.now.get(&key).map_or(UNSETTLED, |entry| entry.created_at);
                    let entry = Entry { key: key.clone(), value, created_at, modified_at: UNSETTLED, lease };
                    self.now.insert(key, entry);
                }
            }
        }
        Expected::Done { changed: before != self.now }
    }

    async fn end(&mut self, lease: LeaseId, store: &dyn Datastore) {
        let before = self.now.len();
        self.now.retain(|_, entry| entry.lease != Some(lease));
        let revision = store.list(&Prefix::all(), None, 1).await.unwrap().revision;
        self.settle(revision, self.now.len() != before);
    }

    /// Records the revision that the store assigned to the latest change.
    fn settle(&mut self, revision: Revision, changed: bool) {
        if !changed {
            assert_eq!(revision, self.revision, "nothing changed, and yet the revision did");
            return;
        }
        assert!(revision > self.revision, "a change did not move the revision");
        self.revision = revision;
        for entry in self.now.values_mut() {
            for unsettled in [&mut entry.created_at, &mut entry.modified_at] {
                if *unsettled == UNSETTLED {
                    *unsettled = revision;
                }
            }
        }
        self.states.push((revision, self.now.clone()));
    }
}

/// Placeholder for the revision that the store will assign.
const UNSETTLED: Revision = Revision(u64::MAX);

async fn check_state(store: &dyn Datastore, model: &ReferenceStore) {
    for at in KEYS.map(key) {
        assert_eq!(store.get(&at).await.unwrap().as_ref(), model.now.get(&at));
    }
    for below in PREFIXES.map(prefix) {
        let (entries, revision) = store.read_all(&below).await.unwrap();
        let expected: Vec<_> =
            model.now.values().filter(|entry| below.contains(&entry.key)).cloned().collect();
        assert_eq!((entries, revision), (expected, model.revision));
    }
}

/// The changes after any revision lead from the state at that revision to the current state,
/// through all states between.
async fn check_history(store: &dyn Datastore, model: &ReferenceStore, start: Revision) {
    let mut states = vec![(start, BTreeMap::new())];
    states.extend(model.states.iter().cloned());
    for (index, (from, state)) in states.iter().enumerate() {
        let mut state = state.clone();
        let mut watch = store.watch(&Prefix::all(), Some(*from)).await.unwrap();
        for (revision, expected) in &states[index + 1..] {
            let change = watch.next().await.unwrap();
            assert_eq!(change.revision, *revision);
            for event in change.events {
                match event {
                    WatchEvent::Put(entry) => drop(state.insert(entry.key.clone(), entry)),
                    WatchEvent::Delete(key) => {
                        assert!(state.remove(&key).is_some(), "{key} was deleted twice");
                    }
                }
            }
            assert_eq!(state, *expected);
        }
    }
    let mut watch = store.watch(&Prefix::all(), Some(model.revision)).await.unwrap();
    store.close().await;
    assert_eq!(watch.next().await, Err(WatchEnd::Closed), "there was one change too many");
}
