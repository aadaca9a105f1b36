//! Secrets of functions: stored encrypted, given to instances, and shown in no answer, log or file.

use reqwest::Method;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use weir_tests::{Answer, TestClient, TestNode, eventually, function, write_private};
use weir_types::ErrorCode;
use weir_types::api::{Secret, SecretRotation};

/// A value, and a part of it that occurs nowhere else.
const VALUE: &str = "s3cr3t-aXyZ-0123456789-grüezi";
const PART: &str = "s3cr3t-aXyZ";

/// The mark in the answer of `stamp`, which is its variable `MARK`.
async fn mark(client: &TestClient, path: &str) -> String {
    let answer = client.get(path).await.ok();
    answer.text().split(' ').next().unwrap().to_owned()
}

async fn set(client: &TestClient, name: &str, value: &str) -> Secret {
    client.put(&format!("/v1/secrets/{name}"), value.to_owned()).await.ok().json()
}

/// All files in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A node with a secret, and a function that gets it in `MARK`.
async fn node_with_a_secret() -> TestNode {
    let node = TestNode::start().await;
    set(&node, "api-key", VALUE).await;
    node.deploy_with("f", "secrets.MARK=api-key", function("stamp")).await;
    node
}

#[tokio::test]
async fn function_gets_the_value_and_no_file_answer_or_log_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit");
    let node = TestNode::builder()
        .set("logs.audit.file", audit.display())
        .set("traces.sample_ratio", 1.0)
        .env("WEIR_LOG", "debug,cranelift_codegen=warn,wasmtime=warn,regalloc2=warn")
        .start()
        .await;
    let stored = set(&node, "api-key", VALUE).await;
    assert_eq!((stored.version.0, stored.value_bytes), (1, VALUE.len() as u64));
    let deployed = node.deploy_with("f", "secrets.MARK=api-key", function("stamp")).await;
    assert_eq!(deployed.warnings, Vec::<String>::new());
    assert_eq!(mark(&node, "/fn/f").await, VALUE);

    let shown: Secret = node.get("/v1/secrets/api-key").await.ok().json();
    assert_eq!(shown.functions.iter().map(weir_types::Name::as_str).collect::<Vec<_>>(), ["f"]);
    assert_eq!(node.get("/v1/secrets").await.ok().json::<Vec<Secret>>(), [shown]);
    let manifest = node.function("f").await.unwrap().active.manifest;
    assert_eq!(serde_json::to_value(&manifest.secrets).unwrap(), json!({"MARK": "api-key"}));
    for path in [
        "/v1/secrets",
        "/v1/secrets/api-key",
        "/v1/functions/f",
        "/v1/functions/f/logs",
        "/v1/events",
        "/v1/status",
        "/v1/usage",
        "/metrics",
    ] {
        let answer = node.get(path).await.ok();
        assert!(!contains(&answer.body, PART), "{path} shows the value: {answer:?}");
    }
    let export = folder.path().join("export");
    node.weir(&["export", "--to", export.to_str().unwrap()]).await.unwrap();
    let declaration = fs::read_to_string(export.join("weir.yaml")).unwrap();
    assert!(declaration.contains("MARK: api-key"), "{declaration}");
    let file = folder.path().join("weir.tar");
    node.weir(&["backup", file.to_str().unwrap()]).await.unwrap();
    let text = fs::read_to_string(&audit).unwrap();
    assert!(text.contains("\"path\":\"/v1/secrets/api-key\""), "{text}");
    let log = node.log();
    assert!(log.contains("stored a secret") && !log.contains(PART), "{log}");

    let key_file = node.data().join("secrets.key");
    assert_eq!(fs::metadata(&key_file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = fs::read_to_string(&key_file).unwrap();
    // Includes the audit log, the export and the backup.
    for path in files(node.data()).into_iter().chain(files(folder.path())) {
        let bytes = fs::read(&path).unwrap();
        assert!(!contains(&bytes, PART), "{} has the value", path.display());
        assert!(path == key_file || !contains(&bytes, key.trim()), "{} has the key", path.display());
    }
}

#[tokio::test]
async fn secret_survives_a_restart_and_a_restored_backup_needs_the_key_file() {
    let node = node_with_a_secret().await;
    let node = node.kill().await.start().await;
    assert_eq!(mark(&node, "/fn/f").await, VALUE);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    node.weir(&["backup", file.to_str().unwrap()]).await.unwrap();
    let key = fs::read_to_string(node.data().join("secrets.key")).unwrap();
    let builder = node.kill().await;
    fs::remove_dir_all(builder.data()).unwrap();
    let restored = Command::new(builder.binary())
        .args(["restore", "--data"])
        .arg(builder.data())
        .arg(&file)
        .output()
        .await
        .unwrap();
    assert!(restored.status.success(), "{restored:?}");

    let node = builder.start().await;
    let refused = node.get("/fn/f").await;
    assert_eq!((refused.status, refused.code()), (503, ErrorCode::SecretUnavailable));
    assert!(node.log().contains("a key that this node lacks"), "{}", node.log());
    let secret: Secret = node.get("/v1/secrets/api-key").await.ok().json();
    assert!(!secret.usable);
    let refused = node.put("/v1/secrets/other", "value").await.refusal();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.text.contains(&secret.key_id), "{refused:?}");

    write_private(&node.data().join("secrets.key"), &key);
    let node = node.stop().await.start().await;
    assert_eq!(mark(&node, "/fn/f").await, VALUE);
    fs::set_permissions(node.data().join("secrets.key"), Permissions::from_mode(0o644)).unwrap();
    let log = node.stop().await.try_start().await.err().unwrap();
    assert!(log.contains("chmod 600"), "{log}");
}

#[tokio::test]
async fn new_value_retires_idle_instances_without_a_deploy() {
    let node = TestNode::start().await;
    set(&node, "API_KEY", "one").await;
    node.deploy_with("count", "secrets=API_KEY&reuse=true", function("remember")).await;
    node.deploy_with("f", "secrets.MARK=API_KEY&reuse=true", function("stamp")).await;
    let count = async || {
        let answer = node.get("/fn/count/count").await.ok().text().trim().to_owned();
        // The response arrives before the instance is idle.
        eventually("the end of the call", async || {
            (node.metric("weir_invocations_running", "").await == 0.0).then_some(())
        })
        .await;
        answer
    };
    assert_eq!((count().await, count().await), ("1".to_owned(), "2".to_owned()), "the instance is reused");
    assert_eq!(mark(&node, "/fn/f").await, "one");
    let stored = set(&node, "API_KEY", "two").await;
    assert_eq!(stored.version.0, 2);
    assert_eq!(count().await, "1", "an instance with the old value was reused");
    assert_eq!(mark(&node, "/fn/f").await, "two");
    set(&node, "OTHER", "unrelated").await;
    assert_eq!(count().await, "2", "another secret retired the instance");
    assert_eq!(node.function("f").await.unwrap().versions.len(), 1);
}

#[tokio::test]
async fn deploys_and_deletions_check_the_secrets_of_functions() {
    let node = TestNode::builder().tokens(&["acme-token-0123456789 acme"]).start().await;
    let acme = node.with_token("acme-token-0123456789");
    let refused = acme.try_deploy("f", "secrets=API_KEY", function("stamp")).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (404, ErrorCode::SecretNotFound));
    assert!(refused.text.contains("weir secrets set API_KEY"), "{refused:?}");
    set(&acme, "API_KEY", VALUE).await;
    for query in ["secrets=API_KEY&env.API_KEY=plain", "secrets=api-key", "secrets.A=API_KEY&secrets.B=7"] {
        let refused = acme.try_deploy("f", query, function("stamp")).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidManifest, "{query}: {refused:?}");
    }
    acme.deploy_with("f", "secrets.MARK=API_KEY&public=true", function("stamp")).await;

    let refused = acme.delete("/v1/secrets/API_KEY").await.refusal();
    assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict));
    assert!(refused.text.contains("without it: f;") && refused.text.contains("--force"), "{refused:?}");
    assert_eq!(acme.delete("/v1/secrets/API_KEY?force=true").await.status, 204);
    // Callers without a token do not learn the name.
    let refused = node.get("/fn/acme:f").await.refusal();
    assert_eq!((refused.status, refused.code), (503, ErrorCode::SecretUnavailable));
    assert!(!refused.text.contains("API_KEY"), "{refused:?}");
    let log = acme.logs("f").await;
    assert!(log.iter().any(|line| line.text.contains("weir secrets set API_KEY")), "{log:?}");
    set(&acme, "API_KEY", "again").await;
    assert_eq!(mark(&node, "/fn/acme:f").await, "again");

    acme.deploy_with("f", "", function("stamp")).await;
    assert_eq!(
        acme.delete("/v1/secrets/API_KEY").await.status,
        204,
        "the secret of an inactive version could not be deleted"
    );
    assert_eq!(acme.delete("/v1/secrets/API_KEY").await.code(), ErrorCode::SecretNotFound);
}

#[tokio::test]
async fn other_tenants_have_no_access() {
    let tokens = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&tokens).start().await;
    let acme = node.with_token("acme-token-0123456789");
    let other = node.with_token("other-token-0123456789");
    set(&acme, "KEY", VALUE).await;
    let outcome = |answer: Answer| {
        let refusal = answer.refusal();
        (refusal.status, refusal.code, refusal.text)
    };
    for (method, path) in [(Method::GET, "/v1/secrets/KEY"), (Method::DELETE, "/v1/secrets/KEY?force=true")] {
        let foreign = outcome(other.send(other.request(method.clone(), path)).await);
        let path = path.replace("KEY", "NONE");
        let missing = outcome(other.send(other.request(method, &path)).await);
        assert_eq!(foreign.2.replace("KEY", "NONE"), missing.2);
        assert_eq!((foreign.0, foreign.1), (404, ErrorCode::SecretNotFound));
    }
    assert_eq!(other.get("/v1/secrets").await.ok().json::<Value>(), json!([]));
    let refused = other.try_deploy("f", "secrets.MARK=KEY", function("stamp")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::SecretNotFound);
    set(&other, "KEY", "other").await;
    other.deploy_with("f", "secrets.MARK=KEY", function("stamp")).await;
    assert_eq!(mark(&other, "/fn/f").await, "other");

    let scopes = [("read", 200, 403), ("deploy", 403, 200), ("invoke", 403, 403)];
    for (scope, list, store) in scopes {
        let new = acme.request(Method::PUT, &format!("/v1/keys/{scope}")).json(&json!({"scopes": [scope]}));
        let key: Value = acme.send(new).await.ok().json();
        let client = acme.with_token(key["token"].as_str().unwrap());
        assert_eq!(client.get("/v1/secrets").await.status, list, "{scope}");
        assert_eq!(client.put("/v1/secrets/KEY", "value").await.status, store, "{scope}");
        assert_eq!(client.post("/v1/secret-keys/rotate", "").await.status, 403, "{scope}");
    }
}

#[tokio::test]
async fn command_line_stores_rotates_and_deletes_secrets() {
    let node = node_with_a_secret().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("value");
    fs::write(&file, VALUE).unwrap();
    let refused = node.weir(&["secrets", "set", "KEY", VALUE]).await.unwrap_err();
    assert!(refused.contains("--from-file") && !refused.contains(PART), "{refused}");
    node.weir(&["secrets", "set", "KEY", "--from-file", file.to_str().unwrap()]).await.unwrap();
    let listed = node.weir(&["secrets", "--json"]).await.unwrap();
    let listed: Vec<Secret> = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(), ["KEY", "api-key"]);
    let shown = node.weir(&["secrets", "show", "api-key"]).await.unwrap();
    assert!(shown.contains("functions    f\n"), "{shown}");
    let used = node.weir(&["secrets", "delete", "api-key"]).await.unwrap_err();
    assert!(used.contains("--force"), "{used}");

    let key_file = node.data().join("secrets.key");
    let key_file = key_file.to_str().unwrap();
    let exists = node.weir(&["secrets", "new-key", key_file]).await.unwrap_err();
    assert!(exists.contains("--add"), "{exists}");
    let earlier = fs::read_to_string(key_file).unwrap();
    node.weir(&["secrets", "new-key", key_file, "--add"]).await.unwrap();
    let node = node.stop().await.start().await;
    let rotated = node.weir(&["secrets", "rotate", "--json"]).await.unwrap();
    let rotated: SecretRotation = serde_json::from_str(&rotated).unwrap();
    assert_eq!((rotated.rotated, rotated.unusable), (2, 0));
    let only_new = fs::read_to_string(key_file).unwrap().replace(&earlier, "");
    write_private(Path::new(key_file), &only_new);
    let node = node.stop().await.start().await;
    assert_eq!(mark(&node, "/fn/f").await, VALUE);
    assert!(node.weir(&["secrets"]).await.unwrap().contains(&rotated.key_id));
    node.weir(&["secrets", "rm", "KEY"]).await.unwrap();
    assert_eq!(node.get("/v1/secrets/KEY").await.code(), ErrorCode::SecretNotFound);
}

#[tokio::test]
async fn declaration_with_missing_secrets_is_refused_before_any_change() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("stamp.wasm"), function("stamp")).unwrap();
    let file = folder.path().join("weir.yaml");
    let declaration =
        "functions:\n  a: {component: stamp.wasm}\n  f: {component: stamp.wasm, secrets: {MARK: api-key}}\n";
    fs::write(&file, declaration).unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap()];
    let refused = node.weir(&apply).await.unwrap_err();
    assert!(refused.contains("weir secrets set api-key"), "{refused}");
    assert_eq!(node.functions().await.len(), 0);
    set(&node, "api-key", "applied").await;
    node.weir(&apply).await.unwrap();
    assert_eq!(mark(&node, "/fn/f").await, "applied");
    let unchanged = node.weir(&["diff", "-f", file.to_str().unwrap()]).await;
    assert!(unchanged.is_ok(), "{unchanged:?}");
}

#[tokio::test]
async fn asynchronous_invocation_and_canary_get_the_secret() {
    let node = node_with_a_secret().await;
    let later = node.post_later("/fn/f", "").await;
    node.ended(later.id).await;
    assert!(node.result(later.id).await.ok().text().starts_with(VALUE));
    set(&node, "canary-key", "canary").await;
    node.deploy_with("f", "secrets.MARK=canary-key&canary=50", function("stamp")).await;
    eventually("both versions", async || {
        let marks = [mark(&node, "/fn/f").await, mark(&node, "/fn/f").await];
        (marks.contains(&VALUE.to_owned()) && marks.contains(&"canary".to_owned())).then_some(())
    })
    .await;
    let refused = node.delete("/v1/secrets/canary-key").await.refusal();
    assert_eq!(refused.code, ErrorCode::Conflict);
}
