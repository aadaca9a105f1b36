//! Keys are valid on every node from their creation to their revocation or expiry.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::MemoryStore;

/// One node's keys, with the task that follows the datastore.
struct TestNode {
    keys: Arc<ApiKeys>,
    _following: AbortOnDropHandle<()>,
}

async fn node(datastore: &Arc<dyn Datastore>) -> TestNode {
    let (keys, revision) = ApiKeys::open(datastore.clone(), Changes::default(), false).await.unwrap();
    let following = AbortOnDropHandle::new(tokio::spawn(keys.follow(revision)));
    TestNode { keys, _following: following }
}

fn names() -> (TenantId, Name) {
    (TenantId::new("ours").unwrap(), Name::new("ci").unwrap())
}

fn new_key(scopes: &[Scope], functions: &[&str]) -> NewApiKey {
    let functions = functions.iter().map(|name| Name::new(name).unwrap()).collect();
    NewApiKey { scopes: scopes.to_vec(), functions, ttl_ms: None }
}

async fn find(node: &TestNode, token: &str) -> Option<Arc<KeyGrant>> {
    node.keys.find(token, &ContentHash::from_content(token.as_bytes())).await.unwrap()
}

#[tokio::test]
async fn key_is_valid_on_all_nodes_until_it_is_revoked() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let ours = node(&datastore).await;
    // Not following: this node has not heard of the key yet, and looks it up.
    let (keys, _) = ApiKeys::open(datastore.clone(), Changes::default(), false).await.unwrap();
    let deaf = TestNode { keys, _following: AbortOnDropHandle::new(tokio::spawn(async {})) };
    let created = ours.keys.create(&tenant, &name, new_key(&[Scope::Invoke], &["f"])).await.unwrap();
    assert!(may_be_token(&created.token), "{}", created.token);
    for node in [&ours, &deaf] {
        let key = find(node, &created.token).await.unwrap();
        assert_eq!((&key.tenant, &key.name), (&tenant, &name));
        assert!(key.allows(Scope::Invoke) && !key.allows(Scope::Read));
        assert!(key.covers("f") && !key.covers("g"));
        assert!(find(node, &format!("{TOKEN_PREFIX}{}", "0".repeat(48))).await.is_none());
    }
    assert_eq!(ours.keys.list(&tenant), [created.key]);
    let other = TenantId::new("other").unwrap();
    assert_eq!(ours.keys.list(&other), []);
    assert!(matches!(ours.keys.revoke(&other, &name).await, Err(ApiKeyError::NotFound(_))));
    ours.keys.revoke(&tenant, &name).await.unwrap();
    for node in [&ours, &deaf] {
        assert!(find(node, &created.token).await.is_none());
    }
    let (left, _) = datastore.read_all(&weir_datastore::Prefix::all()).await.unwrap();
    assert_eq!(left, [], "the index outlives its key");
}

#[tokio::test]
async fn datastore_has_no_token() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let created =
        node(&datastore).await.keys.create(&tenant, &name, new_key(&[Scope::Read], &[])).await.unwrap();
    let secret = created.token.strip_prefix(TOKEN_PREFIX).unwrap();
    let (all, _) = datastore.read_all(&weir_datastore::Prefix::all()).await.unwrap();
    assert_eq!(all.len(), 2);
    for entry in all {
        let text = format!("{} {}", entry.key, String::from_utf8_lossy(&entry.value));
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn expired_key_is_refused_and_its_name_is_free() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let node = node(&datastore).await;
    let brief = NewApiKey { ttl_ms: Some(1), ..new_key(&[Scope::Admin], &[]) };
    let expired = node.keys.create(&tenant, &name, brief).await.unwrap();
    while find(&node, &expired.token).await.is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(node.keys.list(&tenant).len(), 1, "it is listed");
    let renewed = node.keys.create(&tenant, &name, new_key(&[Scope::Admin], &[])).await.unwrap();
    assert!(find(&node, &renewed.token).await.unwrap().allows(Scope::Deploy), "admin includes all scopes");
    assert!(find(&node, &expired.token).await.is_none());
    let again = node.keys.create(&tenant, &name, new_key(&[Scope::Read], &[])).await;
    assert!(matches!(again, Err(ApiKeyError::Exists(_))), "{again:?}");
    node.keys.remove_expired(renewed.key.expires_at_ms).await.unwrap();
    assert_eq!(node.keys.list(&tenant).len(), 1, "it has just expired");
    node.keys.remove_expired(renewed.key.expires_at_ms + 8 * 24 * 3_600_000).await.unwrap();
    let (left, _) = datastore.read_all(&weir_datastore::Prefix::all()).await.unwrap();
    assert_eq!(left, []);
}

#[test]
fn unusable_keys_are_rejected() {
    let now_ms = 1_000;
    let refused = |new: NewApiKey| new_record(new, "token", now_ms).is_err();
    assert!(refused(new_key(&[], &[])));
    assert!(refused(new_key(&[Scope::Admin], &["f"])));
    for ttl_ms in [0, KEY_TTL_MS_MAX + 1] {
        assert!(refused(NewApiKey { ttl_ms: Some(ttl_ms), ..new_key(&[Scope::Read], &[]) }));
    }
    let many: Vec<_> = (0..=FUNCTIONS_MAX).map(|number| format!("f{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(refused(new_key(&[Scope::Read], &many)) && !refused(new_key(&[Scope::Read], &many[1..])));
    let record =
        new_record(new_key(&[Scope::Read, Scope::Invoke, Scope::Read], &[]), "token", now_ms).unwrap();
    assert_eq!(record.scopes, [Scope::Invoke, Scope::Read]);
    assert_eq!(record.expires_at_ms, now_ms + KEY_TTL_MS_DEFAULT);
}

/// Tenants cannot fill the store, whatever they do at once.
#[tokio::test]
async fn concurrent_creations_stay_within_the_quota() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, _) = names();
    let node = node(&datastore).await;
    let refused = AtomicUsize::new(0);
    let creations = (0..TENANT_LEN_MAX + 10).map(|number| {
        let keys = &node.keys;
        let tenant = &tenant;
        let refused = &refused;
        async move {
            let name = Name::new(&format!("k{number}")).unwrap();
            match keys.create(tenant, &name, new_key(&[Scope::Read], &[])).await {
                Ok(_) => {}
                Err(ApiKeyError::Full) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                Err(error) => panic!("{error}"),
            }
        }
    });
    futures::future::join_all(creations).await;
    assert_eq!(refused.into_inner(), 10);
    assert_eq!(node.keys.list(&tenant).len(), TENANT_LEN_MAX);
}

#[tokio::test(start_paused = true)]
async fn node_refuses_a_key_that_it_revoked_while_its_watch_is_late() {
    let datastore: Arc<dyn Datastore> = Arc::new(MemoryStore::new());
    let (tenant, name) = names();
    let created = node(&datastore).await.keys.create(&tenant, &name, new_key(&[Scope::Invoke], &[])).await;
    let token = created.unwrap().token;
    let (keys, _) = ApiKeys::open(datastore, Changes::default(), false).await.unwrap();
    let late = TestNode { keys, _following: AbortOnDropHandle::new(tokio::spawn(async {})) };
    assert!(find(&late, &token).await.is_some());
    late.keys.revoke(&tenant, &name).await.unwrap();
    assert!(find(&late, &token).await.is_none());
}
