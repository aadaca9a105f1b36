//! Neither disconnecting clients nor unreadable records affect other functions.

use super::*;
use crate::canary::CanaryShare;
use async_trait::async_trait;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use weir_datastore::{Commit, Error, Lease, LeaseId, Listing, MemoryStore, Prefix, Transaction, Watch};
use weir_storage::blobs::InUse;
use weir_telemetry::Metrics;
use weir_telemetry::logs::Logs;
use weir_telemetry::logs::LogsConfig;
use weir_types::{ContentHash, FunctionKind, FunctionManifest};

type StoreResult<T> = Result<T, Error>;

/// A store whose commits become durable at once, but return only after `open` is notified.
#[derive(Debug, Default)]
struct SlowToTell {
    store: MemoryStore,
    committed: Notify,
    open: Notify,
}

#[async_trait]
impl Datastore for SlowToTell {
    async fn get(&self, key: &Key) -> StoreResult<Option<Entry>> {
        self.store.get(key).await
    }
    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> StoreResult<Listing> {
        self.store.list(prefix, after, limit).await
    }
    async fn snapshot(&self) -> StoreResult<Arc<dyn weir_datastore::Snapshot>> {
        self.store.snapshot().await
    }
    async fn commit(&self, transaction: Transaction) -> StoreResult<Commit> {
        let commit = self.store.commit(transaction).await;
        self.committed.notify_one();
        self.open.notified().await;
        commit
    }
    async fn grant_lease(&self, time_to_live: Duration) -> StoreResult<Lease> {
        self.store.grant_lease(time_to_live).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> StoreResult<Duration> {
        self.store.keep_alive(lease).await
    }
    async fn revoke_lease(&self, lease: LeaseId) -> StoreResult<()> {
        self.store.revoke_lease(lease).await
    }
    async fn watch(&self, prefix: &Prefix, after: Option<Revision>) -> StoreResult<Watch> {
        self.store.watch(prefix, after).await
    }
    async fn close(&self) {
        self.store.close().await;
    }
}

async fn open(datastore: Arc<dyn Datastore>, changes: &Changes) -> Arc<Registry> {
    open_and_hear(datastore, changes).await.0
}

/// Opens a registry, with the channel of components to compile ahead.
async fn open_and_hear(
    datastore: Arc<dyn Datastore>,
    changes: &Changes,
) -> (Arc<Registry>, mpsc::Receiver<ComponentChange>) {
    let logs = Logs::new(LogsConfig {
        function_lines_max: 10,
        function_bytes_max: 1 << 20,
        bytes_max: 1 << 20,
        ..LogsConfig::default()
    });
    let (functions, prepare) = FunctionParts::new(Metrics::new(), logs);
    (Registry::open(datastore, functions, changes.clone()).await.unwrap().0, prepare)
}

fn record(version: Version) -> FunctionRecord {
    FunctionRecord {
        version,
        kind: FunctionKind::Http02,
        digest: ContentHash::from_content(b"component"),
        component_bytes: 9,
        deployed_at_ms: 0,
        imports: Vec::new(),
        manifest: FunctionManifest::default(),
    }
}

fn names() -> (TenantId, Name) {
    (TenantId::default(), Name::new("f").unwrap())
}

/// Regression test: a client disconnected after its version was on disk and before it was in
/// memory. The function could not be called or deployed until the next start, and its component was
/// swept.
#[tokio::test]
async fn deployment_completes_after_the_client_disconnects() {
    let (tenant, name) = names();
    let store = Arc::new(SlowToTell::default());
    let changes = Changes::default();
    let registry = open(store.clone(), &changes).await;
    let in_use = InUse::default();
    let mut deploy = Box::pin(registry.deploy(
        &tenant,
        &name,
        in_use.hold([ContentHash::from_content(b"component")]),
        record,
    ));
    tokio::select! {
        _ = &mut deploy => panic!("the store has not told yet"),
        () = store.committed.notified() => {}
    }
    drop(deploy);
    // A sweep must not remove its component before memory has the record.
    let sweep = in_use.sweep(|| registry.digests());
    sweep.remove(ContentHash::from_content(b"component"), || panic!("its component is removed")).unwrap();
    drop(sweep);
    store.open.notify_one();
    changes.settle().await;
    assert_eq!(registry.get(&tenant, "f").unwrap().active().unwrap().id.version, Version(1));
    store.open.notify_one();
    let next = registry.deploy(&tenant, &name, in_use.hold([]), record).await.unwrap();
    assert_eq!(next.id.version, Version(2));
}

#[tokio::test]
async fn unreadable_records_are_skipped_and_can_be_replaced_or_removed() {
    let (tenant, name) = names();
    let store = Arc::new(MemoryStore::new());
    let changes = Changes::default();
    let registry = open(store.clone(), &changes).await;
    let in_use = InUse::default();
    for name in ["f", "g"] {
        for _ in 0..2 {
            let name = Name::new(name).unwrap();
            registry.deploy(&tenant, &name, in_use.hold([]), record).await.unwrap();
        }
    }
    let damage = async |key: &str| {
        let write = Transaction::new().put(Key::new(key).unwrap(), "{}");
        store.commit(write).await.unwrap();
    };
    damage("functions/default/f/head").await;
    damage("functions/default/f/versions/1").await;

    let registry = open(store.clone(), &changes).await;
    assert!(registry.get(&tenant, "g").unwrap().active().is_some());
    let f = registry.get(&tenant, "f").unwrap();
    assert_eq!((f.head.active, f.versions.len()), (Version(2), 1), "what can be read is served");
    assert_eq!(registry.damaged(&tenant).len(), 2);
    assert!(registry.damaged(&TenantId::new("other").unwrap()).is_empty());
    assert!(!registry.is_whole(), "what nobody knows of must not be swept");

    let deployed = registry.deploy(&tenant, &name, in_use.hold([]), record).await.unwrap();
    assert_eq!((deployed.id.version, registry.damaged(&tenant).len()), (Version(3), 1));
    registry.delete_version(&tenant, &name, Version(1)).await.unwrap();
    assert!(registry.is_whole());
    damage("functions/default/f/versions/2").await;
    let registry = open(store.clone(), &changes).await;
    registry.delete(&tenant, &name).await.unwrap();
    assert!(registry.is_whole());
    assert!(store.get(&Key::new("functions/default/f/versions/2").unwrap()).await.unwrap().is_none());
}

/// Regression test: a node recompiled a component that it had deployed and deleted itself, because
/// the event of the deployment arrived after the deletion.
#[tokio::test(start_paused = true)]
async fn only_versions_deployed_by_other_nodes_are_compiled_ahead() {
    let tenant = TenantId::default();
    let changes = Changes::default();
    let in_use = InUse::default();
    let store = Arc::new(MemoryStore::new());
    let (own, mut own_prepares) = open_and_hear(store.clone(), &changes).await;
    let (other, mut other_prepares) = open_and_hear(store.clone(), &changes).await;
    let f = Name::new("f").unwrap();
    let g = Name::new("g").unwrap();
    own.deploy(&tenant, &f, in_use.hold([]), record).await.unwrap();
    own.delete(&tenant, &f).await.unwrap();
    own.deploy(&tenant, &g, in_use.hold([]), record).await.unwrap();
    let deployed = own.get(&tenant, "g").unwrap().revision;

    let heard = async {
        let mut heard = Vec::new();
        while other.get(&tenant, "g").is_none() {
            heard.push(other_prepares.recv().await);
        }
        heard.extend(std::iter::from_fn(|| other_prepares.try_recv().ok()).map(Some));
        heard
    };
    let behind = Revision(deployed.0 - 3);
    let heard = tokio::select! {
        () = other.follow(behind) => panic!("the store has ended"),
        heard = heard => heard,
    };
    // The paused clock advances only once the node has applied all events.
    let _ = tokio::time::timeout(Duration::from_secs(1), own.follow(behind)).await;
    let deployed =
        Some(ComponentChange::Deployed((ContentHash::from_content(b"component"), FunctionKind::Http02)));
    let removed = Some(ComponentChange::Removed);
    assert_eq!(heard, [deployed, removed, deployed], "the changes of another node");
    assert!(own_prepares.try_recv().is_err(), "this node has compiled what it deployed");
}

/// A decision about a canary may arrive after a deploy that replaced the canary.
#[tokio::test]
async fn decision_about_a_replaced_canary_is_refused() {
    let (tenant, name) = names();
    let registry = open(Arc::new(MemoryStore::new()), &Changes::default()).await;
    let in_use = InUse::default();
    let canary =
        InactiveRole::Canary { share: CanaryShare { percent: 10, promote_after_ms: None }, now_ms: 7 };
    registry.deploy(&tenant, &name, in_use.hold([]), record).await.unwrap();
    registry.deploy_beside(&tenant, &name, in_use.hold([]), record, canary).await.unwrap();
    let first = registry.get(&tenant, "f").unwrap().head.canary.unwrap();
    registry.deploy_beside(&tenant, &name, in_use.hold([]), record, canary).await.unwrap();
    let entry = registry.get(&tenant, "f").unwrap();
    let second = entry.head.canary.unwrap();
    assert_eq!((entry.head.active, second.version), (Version(1), Version(3)));
    for refused in [
        registry.promote(&tenant, &name, Some(first)).await,
        registry.end_canary(&tenant, &name, first).await,
    ] {
        assert!(matches!(refused, Err(RegistryError::NoCanary(..))));
    }
    let promoted = registry.promote(&tenant, &name, Some(second)).await.unwrap();
    assert_eq!((promoted.head.active, promoted.head.canary), (Version(3), None));
    assert_eq!(promoted.choose(None).unwrap().id.version, Version(3));
    let back = registry.roll_back(&tenant, &name, None).await.unwrap();
    assert_eq!(back.head.active, Version(1), "not to the canary that was replaced");
}

#[tokio::test]
async fn preview_gets_no_calls_until_it_is_promoted() {
    let (tenant, name) = names();
    let registry = open(Arc::new(MemoryStore::new()), &Changes::default()).await;
    let deploy = async |role| {
        let hold = InUse::default().hold([]);
        registry.deploy_beside(&tenant, &name, hold, record, role).await.unwrap().id.version
    };
    assert_eq!(deploy(InactiveRole::Preview).await, Version(1));
    assert_eq!(registry.get(&tenant, "f").unwrap().head.active, Version(1), "the first gets all calls");
    let canary =
        InactiveRole::Canary { share: CanaryShare { percent: 10, promote_after_ms: None }, now_ms: 7 };
    assert_eq!(deploy(canary).await, Version(2));
    assert_eq!(deploy(InactiveRole::Preview).await, Version(3));
    let entry = registry.get(&tenant, "f").unwrap();
    assert_eq!(
        (entry.head.active, entry.head.canary.map(|canary| canary.version)),
        (Version(1), Some(Version(2)))
    );
    assert!(!entry.serves(Version(3)));
    let promoted = registry.promote_to(&tenant, &name, Some(Version(3))).await.unwrap();
    assert_eq!((promoted.head.active, promoted.head.canary), (Version(3), None));
    let again = registry.promote_to(&tenant, &name, Some(Version(3))).await.unwrap();
    assert_eq!(again.head.previous, Some(Version(1)));
    let missing = registry.promote_to(&tenant, &name, Some(Version(9))).await;
    assert!(matches!(missing, Err(RegistryError::NoVersion { .. })));
    let back = registry.roll_back(&tenant, &name, None).await.unwrap();
    assert_eq!(back.head.active, Version(1));
}

/// Heads of earlier versions of Weir name neither a canary nor the version before.
#[tokio::test]
async fn head_of_an_earlier_version_of_weir_is_read() {
    let (tenant, name) = names();
    let store = Arc::new(MemoryStore::new());
    let changes = Changes::default();
    let registry = open(store.clone(), &changes).await;
    for _ in 0..2 {
        registry.deploy(&tenant, &name, InUse::default().hold([]), record).await.unwrap();
    }
    let head = r#"{"active":2,"next":3}"#;
    let write = Transaction::new().put(Key::new("functions/default/f/head").unwrap(), head);
    store.commit(write).await.unwrap();
    let registry = open(store, &changes).await;
    assert!(registry.is_whole());
    let back = registry.roll_back(&tenant, &name, None).await.unwrap();
    assert_eq!((back.head.active, back.head.canary), (Version(1), None));
}

/// The record of a canary may become unreadable, as any file may.
#[tokio::test]
async fn canary_without_a_readable_version_is_not_promoted() {
    let (tenant, name) = names();
    let store = Arc::new(MemoryStore::new());
    let changes = Changes::default();
    let registry = open(store.clone(), &changes).await;
    registry.deploy(&tenant, &name, InUse::default().hold([]), record).await.unwrap();
    let canary =
        InactiveRole::Canary { share: CanaryShare { percent: 99, promote_after_ms: None }, now_ms: 7 };
    registry.deploy_beside(&tenant, &name, InUse::default().hold([]), record, canary).await.unwrap();
    let damage = Transaction::new().put(Key::new("functions/default/f/versions/2").unwrap(), "{");
    store.commit(damage).await.unwrap();
    let registry = open(store, &changes).await;
    let promoted = registry.promote(&tenant, &name, None).await;
    assert!(matches!(promoted, Err(RegistryError::NoVersion { version: Version(2), .. })));
    let entry = registry.get(&tenant, "f").unwrap();
    for _ in 0..100 {
        assert_eq!(entry.choose(None).unwrap().id.version, Version(1));
    }
    assert_eq!(registry.roll_back(&tenant, &name, None).await.unwrap().head.canary, None);
}
