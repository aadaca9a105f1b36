//! API keys, on a node with tokens.

use super::ResponseChecker;
use serde_json::{Value, json};
use weir_tests::TestNode;

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
    checker.use_client(&admin);
    checker.call(("revokeKey", 204), "/v1/keys/k").await;
    checker.call(("revokeKey", 404), "/v1/keys/k").await;
}
