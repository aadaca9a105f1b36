//! Models follow the datastore, also when records change while they are read.

use super::record::model_key;
use super::*;
use bytes::Bytes;
use serde_json::json;
use weir_datastore::{Commit, Entry, Key, MemoryStore, Transaction};
use weir_device::Arena;
use weir_inference::{CacheConfig, Content, FakeBackend, ModelCache, Profiles};
use weir_types::ModelManifest;

async fn models(folder: &std::path::Path, datastore: &Arc<dyn Datastore>) -> Arc<Models> {
    let arena = Arena::new(1 << 20);
    let backend = Arc::new(FakeBackend::new(arena.clone()));
    let cache = ModelCache::start(
        CacheConfig { capacity_bytes: 1 << 20, slots: 1, run_queue_len_max: 1 },
        backend.clone(),
        arena,
        Profiles::default(),
    )
    .unwrap();
    let devices = NodeDevices::new(vec![cache], backend, None);
    let blobs = Blobs::open(folder.join("blobs"), None).unwrap();
    Models::open(datastore.clone(), blobs, devices, Metrics::new(), Changes::default()).await.unwrap().0
}

/// The record of a model whose files do not exist.
fn record_without_files(model_bytes: u64) -> ModelRecord {
    ModelRecord {
        version: Version(1),
        digest: ContentHash::from_content(b"upload"),
        model_bytes,
        pushed_at_ms: 0,
        manifest: ModelManifest::default(),
        prepared: ContentHash::from_content(b"prepared"),
    }
}

async fn put(datastore: &Arc<dyn Datastore>, key: &Key, record: &ModelRecord) -> Entry {
    let put = Transaction::new().put(key.clone(), record.encode());
    assert!(matches!(datastore.commit(put).await.unwrap(), Commit::Done(_)));
    datastore.get(key).await.unwrap().unwrap()
}

#[tokio::test]
async fn unreadable_record_is_reported_only_while_it_is_current() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let models = models(folder.path(), &datastore).await;
    let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
    let key = model_key(&id).unwrap();

    let deleted = put(&datastore, &key, &record_without_files(1)).await;
    datastore.commit(Transaction::new().delete(key.clone())).await.unwrap();
    models.take_in(&id, &deleted).await;
    assert_eq!(models.damaged(&id.tenant), [""; 0]);

    let replaced = put(&datastore, &key, &record_without_files(1)).await;
    let current = put(&datastore, &key, &record_without_files(2)).await;
    models.take_in(&id, &replaced).await;
    assert_eq!(models.damaged(&id.tenant), [""; 0]);

    models.take_in(&id, &current).await;
    assert_eq!(models.damaged(&id.tenant).len(), 1);
}

/// Pushes version 1 of the model `m`.
async fn push(models: &Arc<Models>, run_time_ms: u64) -> Result<bool, ModelsError> {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
    let content = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": port("x"), "outputs": port("y")},
    });
    let body = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(content.to_string()))]);
    let upload = models.blobs().stage(body, 1 << 20).await.unwrap();
    let request = PushRequest {
        tenant: TenantId::default(),
        name: Name::new("m").unwrap(),
        version: Some(Version(1)),
        manifest: ModelManifest::default(),
        content: Content::Network,
        may_change_signature: false,
        role: None,
    };
    models.push(request, upload).await.map(|(_, is_new)| is_new)
}

/// The nodes of this test do not follow the datastore: each knows only the versions that it pushed.
#[tokio::test]
async fn push_finds_the_version_that_another_node_has_just_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let one = models(folder.path(), &datastore).await;
    let two = models(folder.path(), &datastore).await;
    assert!(push(&one, 1).await.unwrap());
    assert!(!push(&two, 1).await.unwrap(), "the same contents are no second version");
    let three = models(folder.path(), &datastore).await;
    one.delete(&TenantId::default(), &Name::new("m").unwrap(), None).await.unwrap();
    assert!(push(&one, 2).await.unwrap());
    assert!(matches!(push(&three, 3).await, Err(ModelsError::Exists { .. })));
}
