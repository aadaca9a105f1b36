//! API keys, on a node with tokens.

use super::ResponseChecker;
use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{TestClient, TestNode};

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    let node = TestNode::builder().tokens(&["0123456789abcdef"]).start().await;
    let admin = node.with_token("0123456789abcdef");
    checker.use_client(&admin);
    let new = json!({"scopes": ["invoke", "read"], "functions": ["f"], "ttl_ms": 60_000}).to_string();
    let created = checker.put(("createKey", 201), "/v1/keys/k", new.clone()).await;
    checker.put(("createKey", 409), "/v1/keys/k", new).await;
    checker.put(("createKey", 201), "/v1/keys/all", json!({"scopes": ["admin"]}).to_string()).await;
    checker.put(("createKey", 400), "/v1/keys/other", "{}").await;
    checker.call(("listKeys", 200), "/v1/keys").await;
    checker.call(("showKey", 200), "/v1/keys/k").await;
    // The key is limited to a function.
    let token = created.json::<Value>()["token"].as_str().expect("the answer has a token").to_owned();
    checker.use_client(&node.with_token(&token));
    checker.call(("metrics", 403), "/metrics").await;
    checker.call(("listTenants", 403), "/v1/tenants").await;
    checker.use_client(&admin);
    checker.call(("revokeKey", 204), "/v1/keys/k").await;
    backups(checker, &admin).await;
    checker.call(("revokeKey", 404), "/v1/keys/k").await;
}

async fn backups(checker: &mut ResponseChecker<'_>, admin: &TestClient) {
    checker.call(("backUp", 200), "/v1/backup").await;
    // More than fits between the node and a client that does not read.
    for name in ["a", "b", "c", "d"] {
        admin.put(&format!("/v1/objects/{name}"), name.repeat(8 << 20)).await.ok();
    }
    let unread = admin.request(Method::POST, "/v1/backup").send().await.expect("the node answers");
    checker.call(("backUp", 409), "/v1/backup").await;
    drop(unread);
}
