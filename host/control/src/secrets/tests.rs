//! Secrets are usable on every node with their key, and only as the tenant stored them.

use super::*;
use std::path::PathBuf;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::{MemoryStore, Prefix};
use weir_types::SecretGrants;

/// One node's secrets, with the task that follows the datastore.
struct TestNode {
    secrets: Arc<Secrets>,
    _following: AbortOnDropHandle<()>,
}

/// A folder with key files.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The path of a key file, which is made if it does not exist.
    fn file(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        if !path.exists() {
            make_key_file(&path).unwrap();
        }
        path
    }
}

/// A node of a cluster.
async fn node(datastore: &Arc<dyn Datastore>, key_file: PathBuf) -> TestNode {
    let config = SecretsConfig { key_file: Some(key_file), ..SecretsConfig::default() };
    open(datastore, &config, None).await
}

async fn open(datastore: &Arc<dyn Datastore>, config: &SecretsConfig, alone_in: Option<&Path>) -> TestNode {
    let opened = Secrets::open(datastore.clone(), Changes::default(), config, alone_in).await;
    let (secrets, revision) = opened.unwrap();
    let following = AbortOnDropHandle::new(tokio::spawn(secrets.follow(revision)));
    TestNode { secrets, _following: following }
}

fn store() -> Arc<dyn Datastore> {
    Arc::new(MemoryStore::new())
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn secret(name: &str) -> SecretName {
    SecretName::new(name).unwrap()
}

fn grants(json: &str) -> SecretGrants {
    serde_json::from_str(json).unwrap()
}

impl TestNode {
    async fn set(&self, of: &str, name: &str, value: &str) -> Result<Secret, SecretError> {
        self.secrets.set(&tenant(of), &secret(name), value.as_bytes(), false).await
    }

    /// The variables that a function of the tenant gets.
    async fn env(&self, of: &str, wanted: &str) -> Result<Vec<(String, String)>, SecretError> {
        let granted = self.secrets.granted(&tenant(of), &grants(wanted)).await?;
        let env = self.secrets.open_granted(&granted)?;
        Ok(env.iter().map(|(variable, value)| (variable.to_owned(), value.to_owned())).collect())
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(variable, value)| (variable.to_owned(), value.to_owned())).collect()
}

#[tokio::test]
async fn function_gets_the_current_value_on_every_node_with_the_key() {
    let keys = Keys::new();
    let datastore = store();
    let one = node(&datastore, keys.file("key")).await;
    // Not following: this node has not heard of the secret, and looks it up.
    let config = SecretsConfig { key_file: Some(keys.file("key")), ..SecretsConfig::default() };
    let opened = Secrets::open(datastore.clone(), Changes::default(), &config, None).await.unwrap();
    let deaf = TestNode { secrets: opened.0, _following: AbortOnDropHandle::new(tokio::spawn(async {})) };
    let stored = one.set("ours", "api-key", "first").await.unwrap();
    assert_eq!((stored.version, stored.value_bytes, stored.usable), (Version(1), 5, true));
    for node in [&one, &deaf] {
        assert_eq!(node.env("ours", r#"{"KEY":"api-key"}"#).await.unwrap(), pairs(&[("KEY", "first")]));
    }
    let before = one.secrets.granted(&tenant("ours"), &grants(r#"{"KEY":"api-key"}"#)).await.unwrap();
    assert!(one.secrets.is_current(&before));
    let stored = one.set("ours", "api-key", "second").await.unwrap();
    assert_eq!(stored.version, Version(2));
    assert!(!one.secrets.is_current(&before), "instances with the old value would be reused");
    assert_eq!(one.env("ours", r#"{"KEY":"api-key"}"#).await.unwrap(), pairs(&[("KEY", "second")]));
    assert_eq!(one.secrets.list(&tenant("ours")), [stored]);
}

#[tokio::test]
async fn tenants_have_separate_secrets() {
    let keys = Keys::new();
    let node = node(&store(), keys.file("key")).await;
    node.set("ours", "KEY", "ours").await.unwrap();
    let missing = |error: SecretError| error.code() == ErrorCode::SecretNotFound;
    assert!(missing(node.env("other", r#"["KEY"]"#).await.unwrap_err()));
    assert!(missing(node.secrets.show(&tenant("other"), &secret("KEY")).unwrap_err()));
    assert!(missing(node.secrets.remove(&tenant("other"), &secret("KEY")).await.unwrap_err()));
    assert_eq!(node.secrets.list(&tenant("other")), []);
    node.set("other", "KEY", "other").await.unwrap();
    assert_eq!(node.env("ours", r#"["KEY"]"#).await.unwrap(), pairs(&[("KEY", "ours")]));
    node.secrets.remove(&tenant("ours"), &secret("KEY")).await.unwrap();
    let error = node.env("ours", r#"["KEY"]"#).await.unwrap_err();
    assert!(error.to_string().contains("weir secrets set KEY"), "{error}");
    assert_eq!(node.env("other", r#"["KEY"]"#).await.unwrap(), pairs(&[("KEY", "other")]));
}

#[tokio::test]
async fn datastore_has_no_value_and_no_key() {
    let keys = Keys::new();
    let datastore = store();
    let node = node(&datastore, keys.file("key")).await;
    node.set("ours", "KEY", "hunter2-hunter2").await.unwrap();
    let key = std::fs::read_to_string(keys.file("key")).unwrap();
    let (all, _) = datastore.read_all(&Prefix::all()).await.unwrap();
    assert_eq!(all.len(), 1);
    let text = String::from_utf8_lossy(&all[0].value).into_owned();
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, "hunter2-hunter2");
    for hidden in ["hunter2", key.trim(), &encoded[..16]] {
        assert!(!text.contains(hidden), "{text}");
    }
}

/// Someone with access to the datastore exchanges ciphertext.
#[tokio::test]
async fn record_of_another_secret_tenant_or_version_is_refused() {
    let keys = Keys::new();
    let datastore = store();
    let node = node(&datastore, keys.file("key")).await;
    let key = |of: &str, name: &str| record_key(&tenant(of), &secret(name)).unwrap();
    let read = async |key: Key| datastore.get(&key).await.unwrap().unwrap().value;
    node.set("ours", "A", "a1").await.unwrap();
    let older = read(key("ours", "A")).await;
    node.set("ours", "A", "a2").await.unwrap();
    node.set("ours", "B", "b").await.unwrap();
    node.set("other", "A", "other").await.unwrap();
    let own = read(key("ours", "A")).await;
    let renumbered = String::from_utf8(older.to_vec()).unwrap().replace("\"version\":1", "\"version\":2");
    let swapped =
        [read(key("ours", "B")).await, read(key("other", "A")).await, renumbered.into_bytes().into()];
    for value in swapped {
        let put = Transaction::new().put(key("ours", "A"), value);
        let revision = datastore.commit(put).await.unwrap().done().unwrap();
        node.secrets.heard.wait(revision).await;
        let error = node.env("ours", r#"["A"]"#).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::SecretUnavailable, "{error}");
    }
    let put = Transaction::new().put(key("ours", "A"), own);
    let revision = datastore.commit(put).await.unwrap().done().unwrap();
    node.secrets.heard.wait(revision).await;
    assert_eq!(node.env("ours", r#"["A"]"#).await.unwrap(), pairs(&[("A", "a2")]));
}

#[tokio::test]
async fn node_with_another_key_says_so_and_stores_nothing_with_it() {
    let keys = Keys::new();
    let datastore = store();
    let one = node(&datastore, keys.file("key")).await;
    let stored = one.set("ours", "A", "a").await.unwrap();
    let wrong = node(&datastore, keys.file("other-key")).await;
    let error = wrong.env("ours", r#"["A"]"#).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::SecretUnavailable);
    assert!(error.to_string().contains(&stored.key_id), "{error}");
    let listed = wrong.secrets.list(&tenant("ours"));
    assert!(!listed[0].usable, "{listed:?}");
    let error = wrong.set("other", "B", "b").await.unwrap_err();
    assert!(matches!(&error, SecretError::OtherKey { lacks, .. } if *lacks == stored.key_id), "{error}");
    assert_eq!(error.code(), ErrorCode::Conflict);
    // The key is lost: the value is stored again, and others by force.
    wrong.secrets.set(&tenant("other"), &secret("B"), b"b", true).await.unwrap();
    wrong.set("ours", "A", "again").await.unwrap();
    assert_eq!(wrong.env("ours", r#"["A"]"#).await.unwrap(), pairs(&[("A", "again")]));
}

#[tokio::test]
async fn rotation_encrypts_all_secrets_with_the_first_key() {
    let keys = Keys::new();
    let datastore = store();
    let path = keys.file("key");
    let before = node(&datastore, path.clone()).await;
    before.set("ours", "A", "a").await.unwrap();
    let old = before.set("other", "B", "b").await.unwrap().key_id;
    let lost = node(&datastore, keys.file("lost")).await;
    lost.secrets.set(&tenant("ours"), &secret("LOST"), b"lost", true).await.unwrap();
    let old_file = std::fs::read_to_string(&path).unwrap();
    add_key(&path).unwrap();
    let both = node(&datastore, path.clone()).await;
    assert_eq!(both.env("ours", r#"["A"]"#).await.unwrap(), pairs(&[("A", "a")]));
    let rotation = both.secrets.rotate(&tenant("ours")).await.unwrap();
    assert_eq!((rotation.rotated, rotation.unusable), (1, 1), "secrets of the tenant");
    assert_ne!(rotation.key_id, old);
    let new_line = std::fs::read_to_string(&path).unwrap().replace(&old_file, "");
    std::fs::write(&path, new_line).unwrap();
    let after = node(&datastore, path).await;
    for (of, name, value) in [("ours", "A", "a"), ("other", "B", "b")] {
        assert_eq!(after.env(of, &format!("[\"{name}\"]")).await.unwrap(), pairs(&[(name, value)]));
        assert_eq!(after.secrets.show(&tenant(of), &secret(name)).unwrap().version, Version(1));
    }
    assert!(after.env("ours", r#"["LOST"]"#).await.is_err());
    assert_eq!(after.secrets.rotate(&tenant("ours")).await.unwrap().rotated, 0, "nothing is left to do");
}

#[tokio::test]
async fn node_alone_makes_its_key_once_and_does_not_replace_a_lost_one() {
    let folder = tempfile::tempdir().unwrap();
    let datastore = store();
    let config = SecretsConfig::default();
    let first = open(&datastore, &config, Some(folder.path())).await;
    assert!(!folder.path().join(KEY_FILE).exists(), "a node without secrets needs no key");
    first.set("ours", "A", "a").await.unwrap();
    first.set("ours", "B", "b").await.unwrap();
    let restarted = open(&datastore, &config, Some(folder.path())).await;
    assert_eq!(restarted.env("ours", r#"["A"]"#).await.unwrap(), pairs(&[("A", "a")]));
    std::fs::remove_file(folder.path().join(KEY_FILE)).unwrap();
    let without = open(&datastore, &config, Some(folder.path())).await;
    assert!(matches!(without.set("ours", "A", "new").await, Err(SecretError::OtherKey { .. })));
    assert!(without.secrets.rotate(&tenant("ours")).await.is_err());
    assert!(!folder.path().join(KEY_FILE).exists());
}

#[tokio::test]
async fn cluster_without_a_key_file_stores_nothing() {
    let node = open(&store(), &SecretsConfig::default(), None).await;
    let error = node.set("ours", "A", "a").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict);
    assert!(error.to_string().contains("key_file of [node.sandbox.secrets]"), "{error}");
}

#[tokio::test]
async fn values_that_cannot_be_variables_are_refused() {
    let keys = Keys::new();
    let node = node(&store(), keys.file("key")).await;
    let set = async |value: &[u8]| node.secrets.set(&tenant("t"), &secret("A"), value, false).await;
    for (value, code) in [
        (&b""[..], ErrorCode::InvalidRequest),
        (b"a\0b", ErrorCode::InvalidRequest),
        (b"\xff", ErrorCode::InvalidRequest),
        (&vec![b'a'; SECRET_BYTES_MAX + 1], ErrorCode::BodyTooLarge),
    ] {
        assert_eq!(set(value).await.unwrap_err().code(), code);
    }
    let longest = "x".repeat(SECRET_BYTES_MAX);
    set(longest.as_bytes()).await.unwrap();
    assert_eq!(node.env("t", r#"["A"]"#).await.unwrap(), pairs(&[("A", &longest)]));
}

#[tokio::test]
async fn concurrent_changes_stay_within_the_quota() {
    let keys = Keys::new();
    let node = node(&store(), keys.file("key")).await;
    let names: Vec<_> = (0..TENANT_LEN_MAX + 3).map(|number| format!("S{number}")).collect();
    let stored = futures::future::join_all(names.iter().map(|name| node.set("t", name, "value"))).await;
    let refused = stored.iter().filter(|stored| matches!(stored, Err(SecretError::Full)));
    assert_eq!(refused.count(), 3);
    assert_eq!(node.secrets.list(&tenant("t")).len(), TENANT_LEN_MAX);
    node.set("t", "S0", "another").await.unwrap();
    node.set("u", "S0", "of another tenant").await.unwrap();
}
