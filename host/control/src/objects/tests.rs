//! Stored objects are visible on all nodes until they expire, and no tenant exceeds its limits.

use super::*;
use std::path::Path;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::MemoryStore;
use weir_storage::blobs::SharedBlobs;
use weir_types::{ElementType, Shape};

/// One node's objects, with the task that follows the datastore.
struct TestNode {
    objects: Arc<Objects>,
    arena: Arena,
    _following: AbortOnDropHandle<()>,
}

async fn node(folder: &Path, name: &str, datastore: &Arc<dyn Datastore>, config: ObjectsConfig) -> TestNode {
    std::fs::create_dir_all(folder.join("shared")).unwrap();
    let shared = SharedBlobs::open(&format!("file://{}", folder.join("shared").display()), 1 << 20).unwrap();
    let arena = Arena::new(1 << 20);
    let parts = ObjectDeps {
        config,
        datastore: datastore.clone(),
        blobs: Blobs::open(folder.join(name), Some(shared.folder("objects"))).unwrap(),
        changes: Changes::default(),
        metrics: Metrics::new(),
        arena: arena.clone(),
    };
    let (objects, revision) = Objects::open(parts).await.unwrap();
    let following = AbortOnDropHandle::new(tokio::spawn(objects.follow(revision)));
    TestNode { objects, arena, _following: following }
}

fn names() -> (TenantId, Name) {
    (TenantId::new("ours").unwrap(), Name::new("scores").unwrap())
}

fn tensor(arena: &Arena, values: &[f32]) -> Tensor {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = Shape::new(&[u32::try_from(values.len()).unwrap()]).unwrap();
    Tensor::new(ElementType::Fp32, shape, arena.copy_of(&data).unwrap()).unwrap()
}

#[tokio::test]
async fn object_is_visible_on_all_nodes_to_its_tenant_only() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let ours = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    let theirs = node(folder.path(), "theirs", &datastore, ObjectsConfig::default()).await;
    let put = tensor(&ours.arena, &[1.0, 2.0, 3.0]);
    let object = ours.objects.put(&tenant, &name, &put, None).await.unwrap();
    assert_eq!((object.bytes, object.expires_at_ms - object.put_at_ms), (12, 24 * 3_600_000));
    let (described, got) = theirs.objects.get(&tenant, &name).await.unwrap();
    assert_eq!((&described, &got), (&object, &put));
    assert_eq!(ours.objects.list(&tenant), [object]);
    let other = TenantId::new("others").unwrap();
    let got = theirs.objects.get(&other, &name).await;
    assert!(matches!(got, Err(ObjectError::NotFound(_))), "{got:?}");
    assert_eq!(theirs.objects.list(&other), []);
    // Another tensor replaces it, on all nodes.
    let newer = tensor(&theirs.arena, &[4.0]);
    theirs.objects.put(&tenant, &name, &newer, None).await.unwrap();
    while ours.objects.get(&tenant, &name).await.unwrap().1 != newer {
        tokio::task::yield_now().await;
    }
    ours.objects.remove(&tenant, &name).await.unwrap();
    assert!(matches!(ours.objects.remove(&tenant, &name).await, Err(ObjectError::NotFound(_))));
    assert!(matches!(ours.objects.get(&tenant, &name).await, Err(ObjectError::NotFound(_))));
}

/// The watch of a node that is cut off from etcd's events ends only after its timeout.
#[tokio::test(start_paused = true)]
async fn node_serves_what_it_stored_while_its_watch_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let TestNode { objects, arena, _following: following } =
        node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    let older = tensor(&arena, &[1.0]);
    objects.put(&tenant, &name, &older, None).await.unwrap();
    drop(following);
    let newer = tensor(&arena, &[2.0]);
    objects.put(&tenant, &name, &newer, None).await.unwrap();
    assert_eq!(objects.get(&tenant, &name).await.unwrap().1, newer);
    objects.remove(&tenant, &name).await.unwrap();
    let got = objects.get(&tenant, &name).await;
    assert!(matches!(got, Err(ObjectError::NotFound(_))), "{got:?}");
}

#[tokio::test]
async fn object_survives_a_restart_and_orphaned_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let put = {
        let before = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
        let first = tensor(&before.arena, &[0.5]);
        before.objects.put(&tenant, &name, &first, None).await.unwrap();
        let second = tensor(&before.arena, &[1.5]);
        before.objects.put(&tenant, &name, &second, None).await.unwrap();
        second
    };
    let after = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    assert_eq!(after.objects.get(&tenant, &name).await.unwrap().1, put);
    let files = || std::fs::read_dir(folder.path().join("ours")).unwrap().count();
    assert_eq!(files(), 2);
    let _sweeping = AbortOnDropHandle::new(tokio::spawn(after.objects.clone().sweep(|| true)));
    while files() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(after.objects.get(&tenant, &name).await.unwrap().1, put);
}

#[tokio::test]
async fn expired_object_is_not_found_and_then_removed() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let node = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    let put = tensor(&node.arena, &[1.0]);
    let object = node.objects.put(&tenant, &name, &put, Some(1)).await.unwrap();
    while now_ms() < object.expires_at_ms {
        tokio::task::yield_now().await;
    }
    assert!(matches!(node.objects.get(&tenant, &name).await, Err(ObjectError::NotFound(_))));
    assert_eq!(node.objects.list(&tenant), []);
    let _sweeping = AbortOnDropHandle::new(tokio::spawn(node.objects.clone().sweep(|| true)));
    let key = object_key(&tenant, &name).unwrap();
    while datastore.get(&key).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn put_over_a_limit_is_rejected_without_leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let config = ObjectsConfig {
        object_bytes_max: 8,
        tenant_len_max: 2,
        tenant_bytes_max: 12,
        ttl_ms_max: 1_000,
        ..ObjectsConfig::default()
    };
    let node = node(folder.path(), "ours", &datastore, config).await;
    let put = async |name: &Name, values: &[f32], ttl_ms| {
        let tensor = tensor(&node.arena, values);
        node.objects.put(&tenant, name, &tensor, ttl_ms).await.map_err(|error| error.code())
    };
    let other = |n: u32| Name::new(&format!("other-{n}")).unwrap();
    assert_eq!(put(&name, &[1.0, 2.0, 3.0], None).await, Err(ErrorCode::BodyTooLarge));
    assert_eq!(put(&name, &[1.0], Some(0)).await, Err(ErrorCode::InvalidRequest));
    assert_eq!(put(&name, &[1.0], Some(1_001)).await, Err(ErrorCode::InvalidRequest));
    assert_eq!(node.objects.list(&tenant), []);
    let kept = put(&name, &[1.0, 2.0], None).await.unwrap();
    assert_eq!(kept.expires_at_ms - kept.put_at_ms, 1_000, "the longest there is");
    assert_eq!(put(&other(0), &[1.0, 2.0], None).await, Err(ErrorCode::ObjectsFull));
    put(&other(1), &[1.0], None).await.unwrap();
    assert_eq!(put(&other(2), &[], None).await, Err(ErrorCode::ObjectsFull));
    put(&name, &[3.0, 4.0], None).await.unwrap();
    assert_eq!(node.objects.list(&tenant).len(), 2);
}

#[tokio::test]
async fn damaged_file_is_reported_and_never_returned() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let digest = {
        let before = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
        let put = tensor(&before.arena, &[1.0, 2.0]);
        before.objects.put(&tenant, &name, &put, None).await.unwrap().digest
    };
    let after = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    for damaged in ["", "1234567", "12345678", "123456789"] {
        std::fs::write(folder.path().join("ours").join(digest.to_string()), damaged).unwrap();
        let got = after.objects.get(&tenant, &name).await;
        assert!(matches!(got, Err(ObjectError::Blob(BlobError::Damaged(_)))), "{damaged:?}: {got:?}");
    }
}

#[tokio::test]
async fn object_takes_only_its_own_bytes_and_concurrent_reads_share_one_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let before = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    let large = before.arena.buffer(512 << 10).unwrap().freeze();
    let small = Tensor::new(ElementType::Uint8, Shape::new(&[8]).unwrap(), large.slice(..8)).unwrap();
    before.objects.put(&tenant, &name, &small, None).await.unwrap();
    drop((large, small));
    assert!(before.arena.used_bytes() < 64 << 10, "{} bytes are held", before.arena.used_bytes());
    drop(before);
    let after = node(folder.path(), "ours", &datastore, ObjectsConfig::default()).await;
    let gets = futures::future::join_all((0..16).map(|_| after.objects.get(&tenant, &name))).await;
    let starts: std::collections::HashSet<_> =
        gets.into_iter().map(|got| got.unwrap().1.data().as_ptr()).collect();
    assert_eq!(starts.len(), 1);
    assert!(after.objects.memory.is_reading_nothing());
}
