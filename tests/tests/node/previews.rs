//! Previews: versions of a function that get only the calls that name them.

use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, function};
use weir_types::api::Function;
use weir_types::{ErrorCode, Version};

/// Starts a node with the function `f`, whose version 2 is a preview.
async fn start() -> TestNode {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let preview = node.deploy_with("f", "preview=true", function("misbehave")).await;
    assert_eq!((preview.function.version.0, preview.function.active), (2, false));
    assert_eq!((preview.is_preview, &*preview.path), (true, "/fn/f@2/"));
    node
}

fn version_of(answer: &Answer) -> &str {
    answer.header("weir-version").expect("the answer has a version")
}

async fn promote(node: &TestClient, body: Value) -> Function {
    node.send(node.request(Method::POST, "/v1/functions/f/promote").json(&body)).await.ok().json()
}

#[tokio::test]
async fn preview_answers_at_its_address_until_it_is_promoted() {
    let node = start().await;
    for _ in 0..20 {
        assert_eq!(version_of(&node.get("/fn/f/behave").await.ok()), "1");
    }
    let preview = node.get("/fn/f@2/behave").await.ok();
    assert_eq!((version_of(&preview), preview.text()), ("2", "ok\n"));
    assert_eq!(
        node.get("/fn/f@1/behave").await.ok().text(),
        "hello, behave\n",
        "every version has an address"
    );
    let again = node.deploy_with("f", "preview=true", function("misbehave")).await;
    assert_eq!((again.created, again.is_preview, again.function.version.0), (false, true, 2));

    assert_eq!(promote(&node, json!({ "version": 2 })).await.active.version.0, 2);
    assert_eq!(version_of(&node.get("/fn/f/behave").await.ok()), "2");
    assert_eq!(node.weir(&["promote", "f", "1"]).await.unwrap(), "f is at version 1 now\n");
    assert_eq!(version_of(&node.get("/fn/f/behave").await.ok()), "1");
}

#[tokio::test]
async fn preview_leaves_the_canary_as_it_is() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    node.deploy_with("f", "canary=50", function("misbehave")).await;
    node.deploy_with("f", "preview=true&env.A=1", function("misbehave")).await;
    let shown = node.function("f").await.unwrap();
    assert_eq!((shown.active.version.0, shown.canary.unwrap().version.0), (1, 2));
    let ended = node.get("/v1/events?kind=canary-rolled-back").await.ok();
    assert!(!ended.text().contains("replaced"), "{}", ended.text());
}

#[tokio::test]
async fn first_version_is_active_although_it_was_deployed_as_a_preview() {
    let node = TestNode::start().await;
    let first = node.deploy_with("f", "preview=true", function("hello")).await;
    assert_eq!((first.is_preview, first.function.active, &*first.path), (false, true, "/fn/f/"));
    node.get("/fn/f/").await.ok();
}

#[tokio::test]
async fn calls_and_promotions_of_missing_versions_are_refused() {
    let node = start().await;
    for (path, code) in [
        ("/fn/f@3/behave", ErrorCode::VersionNotFound),
        ("/fn/g@1/behave", ErrorCode::FunctionNotFound),
        ("/fn/f@/", ErrorCode::InvalidRequest),
        ("/fn/f@two/", ErrorCode::VersionNotFound),
        ("/fn/f@Two/", ErrorCode::InvalidRequest),
    ] {
        assert_eq!(node.get(path).await.code(), code, "{path}");
    }
    let refused = async |body: &str| node.post("/v1/functions/f/promote", body.to_owned()).await.code();
    assert_eq!(refused("{\"version\": 3}").await, ErrorCode::VersionNotFound);
    assert_eq!(refused("{\"versions\": 2}").await, ErrorCode::InvalidRequest);
    assert_eq!(refused("").await, ErrorCode::CanaryNotFound);
    let both = node.put("/v1/functions/f?preview=true&canary=10", "").await;
    assert_eq!(both.code(), ErrorCode::InvalidRequest);
    assert_eq!(version_of(&node.get("/fn/f/behave").await.ok()), "1");
}

#[tokio::test]
async fn asynchronous_call_of_a_version_runs_it() {
    let node = start().await;
    let later = node.post_later("/fn/f@2/behave", "").await;
    assert_eq!(later.version, Some(Version(2)));
    node.ended(later.id).await;
    let result = node.result(later.id).await;
    assert_eq!((version_of(&result), result.text()), ("2", "ok\n"));
}

/// The address of a version gives no access that the function's own address does not give.
#[tokio::test]
async fn versions_are_called_with_the_permissions_of_the_function() {
    let node = TestNode::builder().tokens(&["acme-token-0123456789 acme"]).start().await;
    let acme = node.with_token("acme-token-0123456789");
    acme.deploy_with("open", "public=true", function("hello")).await;
    acme.deploy_with("open", "preview=true", function("misbehave")).await;
    acme.deploy("closed", function("hello")).await;
    acme.get("/fn/open@2/behave").await.ok();
    node.get("/fn/acme:open/").await.ok();
    assert_eq!(node.get("/fn/acme:open@2/behave").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(node.get("/fn/open@2/behave").await.code(), ErrorCode::Unauthorized);
    let key = acme.request(Method::PUT, "/v1/keys/limited");
    let key = acme.send(key.json(&json!({ "scopes": ["invoke"], "functions": ["open"] }))).await;
    let limited = node.with_token(key.json::<Value>()["token"].as_str().unwrap());
    limited.get("/fn/open@2/behave").await.ok();
    assert_eq!(limited.get("/fn/closed@1/").await.code(), ErrorCode::FunctionNotFound);
}
