//! API keys: scopes, limits to functions, expiry and revocation.

use crate::audit::events;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use weir_tests::{Answer, TestClient, TestNode, eventually, function, model};
use weir_types::ErrorCode;

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

async fn start() -> TestNode {
    TestNode::builder().tokens(&["acme-token-0123456789 acme", "other-token-0123456789 other"]).start().await
}

async fn put_key(client: &TestClient, name: &str, body: Value) -> Answer {
    client.send(client.request(Method::PUT, &format!("/v1/keys/{name}")).json(&body)).await
}

/// Creates a key and returns a client that sends its token.
async fn client_with(admin: &TestClient, name: &str, body: Value) -> TestClient {
    let answer = put_key(admin, name, body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    admin.with_token(answer.json::<Value>()["token"].as_str().unwrap())
}

fn outcome(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("weir-error"))
}

/// Each scope opens its routes and no others, over HTTP and for metrics.
#[tokio::test]
async fn keys_reach_the_routes_of_their_scopes() {
    let node = start().await;
    let acme = node.with_token(ACME);
    acme.deploy("hello", function("hello")).await;
    acme.push_model("add", 1, model("good/add.onnx")).await;
    let scopes = ["invoke", "deploy", "read", "admin"];
    let requests = [
        (Method::GET, "/fn/hello", "invoke"),
        (Method::GET, "/v1/objects", "invoke"),
        (Method::POST, "/v2/models/add/infer", "invoke"),
        (Method::GET, "/v1/invocations", "invoke"),
        (Method::PUT, "/v1/functions/new", "deploy"),
        (Method::DELETE, "/v1/models/missing", "deploy"),
        (Method::POST, "/v1/workflows/missing/rollback", "deploy"),
        (Method::POST, "/v2/repository/models/add/load", "deploy"),
        (Method::GET, "/v1/functions", "read"),
        (Method::GET, "/v1/functions/hello/logs", "read"),
        (Method::GET, "/v1/status", "read"),
        (Method::GET, "/metrics", "read"),
        (Method::POST, "/v2/repository/index", "read"),
        (Method::GET, "/v1/keys", "admin"),
        (Method::DELETE, "/v1/keys/missing", "admin"),
    ];
    for scope in scopes {
        let client = client_with(&acme, scope, json!({ "scopes": [scope] })).await;
        for (method, path, needed) in &requests {
            let answer = client.send(client.request(method.clone(), path)).await;
            let is_refused = answer.status == 403;
            assert_eq!(
                is_refused,
                scope != *needed && scope != "admin",
                "{scope} {method} {path}: {answer:?}"
            );
            assert_ne!(answer.status, 401, "{scope} {method} {path}");
            if is_refused && *method != Method::HEAD {
                assert_eq!(answer.code(), ErrorCode::Forbidden, "{answer:?}");
            }
        }
        // Any key may read the description of the API.
        client.get("/").await.ok();
        client.get("/v1/openapi.yaml").await.ok();
    }
}

/// A key that is limited to functions sees the others like missing ones, and nothing else of its
/// tenant.
#[tokio::test]
async fn limited_key_cannot_tell_other_functions_from_missing_ones() {
    let node = start().await;
    let acme = node.with_token(ACME);
    for name in ["mine", "theirs"] {
        acme.deploy(name, function("hello")).await;
        acme.deploy(&format!("{name}-tensors"), function("echo-tensor")).await;
    }
    acme.push_model("add", 1, model("good/add.onnx")).await;
    let body =
        json!({ "scopes": ["invoke", "read", "deploy"], "functions": ["mine", "mine-tensors", "unborn"] });
    let limited = client_with(&acme, "limited", body).await;
    assert_eq!(limited.get("/fn/mine/x").await.ok().text(), "hello, x\n");
    let listed: Vec<_> = limited.functions().await.into_iter().map(|function| function.active.name).collect();
    assert_eq!(listed.iter().map(weir_types::Name::as_str).collect::<Vec<_>>(), ["mine", "mine-tensors"]);
    limited.deploy("unborn", function("hello")).await;
    for (method, path) in [
        (Method::GET, "/fn/NAME/x"),
        (Method::GET, "/v1/functions/NAME"),
        (Method::GET, "/v1/functions/NAME/versions/1"),
        (Method::GET, "/v1/functions/NAME/logs"),
        (Method::DELETE, "/v1/functions/NAME"),
        (Method::POST, "/v1/functions/NAME/rollback"),
        (Method::GET, "/v2/models/NAME"),
        (Method::POST, "/v2/models/NAME/infer"),
        (Method::GET, "/v2/models/NAME/ready"),
    ] {
        let ask = async |name: &str| {
            let answer = limited.send(limited.request(method.clone(), &path.replace("NAME", name))).await;
            let mut body: Value = answer.json();
            body["request_id"] = Value::Null;
            (answer.status, body.to_string().replace(name, "NAME"))
        };
        assert_eq!(ask("theirs").await, ask("missing").await, "{method} {path}");
        assert_eq!(ask("theirs-tensors").await, ask("missing").await, "{method} {path}");
        assert_eq!(ask("theirs").await.0, 404, "{method} {path}");
    }
    // A model is no function.
    assert_eq!(outcome(&limited.post("/v2/models/add/infer", "{}").await), (404, Some("model-not-found")));
    for path in
        ["/v1/models", "/v1/objects", "/v1/status", "/metrics", "/v1/usage", "/v1/workflows/x", "/v1/keys"]
    {
        assert_eq!(outcome(&limited.get(path).await), (403, Some("forbidden")), "{path}");
    }
    let index = limited.post("/v2/repository/index", "").await.ok().json::<Value>();
    assert_eq!(index.as_array().unwrap().len(), 1, "{index}");

    // An asynchronous invocation of another function looks missing, too.
    let theirs = acme.post_later("/fn/theirs", "").await.id;
    let mine = limited.post_later("/fn/mine", "").await.id;
    for path in ["", "/result", "/events"] {
        let answer = limited.get(&format!("/v1/invocations/{theirs}{path}")).await;
        assert_eq!(outcome(&answer), (404, Some("invocation-not-found")), "{path}");
    }
    assert_eq!(limited.post(&format!("/v1/invocations/{theirs}/cancel"), "").await.status, 404);
    assert_eq!(limited.delete(&format!("/v1/invocations/{theirs}")).await.status, 404);
    limited.get(&format!("/v1/invocations/{mine}?wait_ms=10000")).await.ok();
    let page = limited.get("/v1/invocations").await.ok().json::<Value>();
    assert_eq!(page["invocations"].as_array().unwrap().len(), 1, "{page}");
}

/// Keys survive a restart, belong to one tenant, and end when they are revoked, without a restart.
#[tokio::test]
async fn keys_end_when_they_are_revoked() {
    let node = start().await;
    let acme = node.with_token(ACME);
    let key = client_with(&acme, "ci", json!({ "scopes": ["read"] })).await;
    let node = node.stop().await.start().await;
    let acme = node.with_token(ACME);
    let key = node.with_token(key.token().unwrap());
    key.get("/v1/functions").await.ok();
    let other = node.with_token(OTHER);
    assert_eq!(other.get("/v1/keys").await.ok().json::<Value>(), json!([]));
    assert_eq!(outcome(&other.delete("/v1/keys/ci").await), (404, Some("key-not-found")));
    assert_eq!(outcome(&put_key(&acme, "ci", json!({ "scopes": ["read"] })).await), (409, Some("conflict")));
    let listed = acme.get("/v1/keys").await.ok();
    assert!(!listed.text().contains("weir_") && !listed.text().contains("hash"), "{}", listed.text());
    acme.delete("/v1/keys/ci").await.ok();
    assert_eq!(outcome(&key.get("/v1/functions").await), (401, Some("unauthorized")));
    // A key with the scope admin may manage keys. Its own revocation is final.
    let admin = client_with(&acme, "root", json!({ "scopes": ["admin"] })).await;
    client_with(&admin, "made", json!({ "scopes": ["invoke"], "ttl_ms": 60_000 })).await;
    admin.delete("/v1/keys/root").await.ok();
    assert_eq!(admin.get("/v1/keys").await.status, 401);
    for body in [
        json!({}),
        json!({ "scopes": [] }),
        json!({ "scopes": ["all"] }),
        json!({ "scopes": ["read"], "ttl_ms": 0 }),
    ] {
        assert_eq!(
            outcome(&put_key(&acme, "bad", body.clone()).await),
            (400, Some("invalid-request")),
            "{body}"
        );
    }
}

#[tokio::test]
async fn expired_key_is_refused() {
    let node = start().await;
    let acme = node.with_token(ACME);
    let key = client_with(&acme, "brief", json!({ "scopes": ["read"], "ttl_ms": 1 })).await;
    eventually("the key's expiry", async || (key.get("/v1/functions").await.status == 401).then_some(()))
        .await;
}

#[tokio::test]
async fn node_without_tokens_makes_no_keys() {
    let node = TestNode::start().await;
    let answer = put_key(node.client(), "k", json!({ "scopes": ["read"] })).await;
    assert_eq!(outcome(&answer), (409, Some("conflict")));
    assert!(answer.text().contains("--token-file"), "{}", answer.text());
}

#[tokio::test]
async fn audit_log_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let node =
        TestNode::builder().tokens(&["acme-token-0123456789 acme"]).set("logs.audit.file", log.display());
    let node = node.start().await;
    let acme = node.with_token(ACME);
    let key = client_with(&acme, "ci", json!({ "scopes": ["deploy"] })).await;
    key.deploy("hello", function("hello")).await;
    acme.delete("/v1/keys/ci").await.ok();
    let events = events(Path::new(&log), 3).await;
    let shown: Vec<_> = events
        .iter()
        .map(|event| (event["path"].as_str().unwrap(), event.get("key").and_then(Value::as_str)))
        .collect();
    assert_eq!(shown, [("/v1/keys/ci", None), ("/v1/functions/hello", Some("ci")), ("/v1/keys/ci", None)]);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(key.token().unwrap()), "a token is in the log");
}

#[tokio::test]
async fn command_creates_lists_and_revokes_keys() {
    let node = start().await;
    let run = async |arguments: &[&str]| {
        let arguments = [arguments, &["--token", ACME]].concat();
        node.weir(&arguments).await.unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    };
    assert!(run(&["keys"]).await.contains("no API keys"));
    let created =
        run(&["keys", "create", "web", "--scope", "invoke", "--scope", "read", "--function", "f", "--json"])
            .await;
    let created: Value = serde_json::from_str(&created).unwrap();
    assert_eq!((&created["scopes"], &created["functions"]), (&json!(["invoke", "read"]), &json!(["f"])));
    let token = created["token"].as_str().unwrap();
    let listed = run(&["keys", "list"]).await;
    assert!(listed.contains("invoke,read") && !listed.contains(token), "{listed}");
    assert!(!run(&["keys", "show", "web", "--json"]).await.contains("token"));
    node.with_token(token).get("/v1/functions").await.ok();
    assert!(run(&["keys", "revoke", "web"]).await.contains("revoked web"));
    assert_eq!(node.with_token(token).get("/v1/functions").await.status, 401);
}
