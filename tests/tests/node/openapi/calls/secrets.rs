//! Secrets, on nodes with and without their key.

use super::ResponseChecker;
use reqwest::Method;
use weir_tests::{TestNode, function};

const TOKEN: &str = "0123456789abcdef";

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    let node = TestNode::builder().tokens(&[TOKEN]).start().await;
    let owner = node.with_token(TOKEN);
    checker.use_client(&owner);
    checker.call(("rotateSecretKeys", 200), "/v1/secret-keys/rotate").await;
    checker.put(("setSecret", 200), "/v1/secrets/KEY", "value").await;
    checker.put(("setSecret", 200), "/v1/secrets/unused?force=true", "value").await;
    checker.put(("setSecret", 400), "/v1/secrets/KEY", "").await;
    checker.put(("setSecret", 400), "/v1/secrets/KEY?forced=true", "value").await;
    checker.put(("setSecret", 413), "/v1/secrets/KEY", vec![b'x'; (64 << 10) + 1]).await;
    owner.deploy_with("f", "secrets=KEY", function("stamp")).await;
    checker.call(("showFunction", 200), "/v1/functions/f").await;
    checker.put(("deployFunction", 404), "/v1/functions/g?secrets=NONE", function("stamp")).await;
    checker.call(("listSecrets", 200), "/v1/secrets").await;
    checker.call(("showSecret", 200), "/v1/secrets/KEY").await;
    checker.call(("showSecret", 400), "/v1/secrets/-").await;
    checker.call(("showSecret", 404), "/v1/secrets/NONE").await;
    checker.call(("deleteSecret", 409), "/v1/secrets/KEY").await;
    checker.call(("deleteSecret", 204), "/v1/secrets/unused").await;
    checker.call(("deleteSecret", 404), "/v1/secrets/unused").await;
    checker.call(("deleteSecret", 400), "/v1/secrets/KEY?force=maybe").await;
    let key = owner.request(Method::PUT, "/v1/keys/calls").body("{\"scopes\": [\"invoke\"]}");
    let key: serde_json::Value = owner.send(key).await.ok().json();
    checker.use_client(&owner.with_token(key["token"].as_str().expect("a token")));
    checker.call(("listSecrets", 403), "/v1/secrets").await;
    checker.call(("showSecret", 403), "/v1/secrets/KEY").await;
    checker.put(("setSecret", 403), "/v1/secrets/KEY", "value").await;
    checker.call(("deleteSecret", 403), "/v1/secrets/KEY").await;
    checker.call(("rotateSecretKeys", 403), "/v1/secret-keys/rotate").await;

    let stopped = node.stop().await;
    std::fs::remove_file(stopped.data().join("secrets.key")).expect("the node has made its key");
    let node = stopped.start().await;
    checker.use_client(&node.with_token(TOKEN));
    checker.put(("setSecret", 409), "/v1/secrets/OTHER", "value").await;
    checker.call(("rotateSecretKeys", 409), "/v1/secret-keys/rotate").await;
    checker.any(checker.document().operation("callRootGet"), "/fn/f", |request| request).await;
}
