//! Tokens of an OpenID Connect provider.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use weir_tests::{Answer, NodeBuilder, TestNode, eventually, function};

/// The token of tenant `acme` in the token file.
const ACME: &str = "0123456789abcdef-acme";

/// A provider with one key. It ends on drop.
struct TestProvider {
    issuer: String,
    key: Ed25519KeyPair,
    serving: JoinHandle<()>,
}

impl TestProvider {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}/realm", listener.local_addr().unwrap());
        let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let x = URL_SAFE_NO_PAD.encode(key.public_key());
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": x}]});
        let description = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")});
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                answer(stream, &description, &keys).await;
            }
        });
        Self { issuer, key, serving }
    }

    /// A token with the usual claims, changed by those in `other`.
    fn token(&self, other: &Value) -> String {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({
            "iss": self.issuer, "aud": "weir", "sub": "jane@example", "exp": now_s + 600,
            "weir_tenant": "acme", "scope": "openid weir:invoke",
        });
        for (name, value) in other.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&json!({"alg": "EdDSA", "kid": "k1"})), encode(&claims));
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(self.key.sign(message.as_bytes())))
    }

    fn node(&self) -> NodeBuilder {
        let builder = TestNode::builder().tokens(&[&format!("{ACME} acme"), "operator-0123456 *"]);
        builder
            .set("gateway.access.oidc.issuer", &self.issuer)
            .set("gateway.access.oidc.audience", "weir")
            .set("gateway.access.oidc.tenants", "[\"acme\", \"beta\"]")
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(mut stream: TcpStream, description: &Value, keys: &Value) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let body = match head.split(|byte| *byte == b' ').nth(1) {
        Some(b"/realm/.well-known/openid-configuration") => description.to_string(),
        Some(b"/realm/keys") => keys.to_string(),
        _ => String::new(),
    };
    let text =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes()).await;
}

/// Sends a request with `token`.
async fn send(node: &TestNode, method: Method, path: &str, token: &str) -> Answer {
    node.send(node.request(method, path).header("authorization", format!("Bearer {token}"))).await
}

#[tokio::test]
async fn token_of_a_provider_has_its_tenant_and_scopes() {
    let provider = TestProvider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.jsonl");
    let node = provider.node().set("logs.audit.file", audit.display()).start().await;
    let deployed = node
        .send(
            node.request(Method::PUT, "/v1/functions/hello")
                .header("weir-token", ACME)
                .body(function("hello")),
        )
        .await;
    assert_eq!(deployed.status, 200, "{}", deployed.text());
    let invoke = provider.token(&json!({}));
    let answer = send(&node, Method::GET, "/fn/hello/x", &invoke).await;
    assert_eq!((answer.status, answer.text()), (200, "hello, x\n"));
    // A request outside the scopes of the token.
    let refused = send(&node, Method::GET, "/v1/functions", &invoke).await.refusal();
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("the token of jane@example lacks the scope read"), "{}", refused.text);
    let admin = provider.token(&json!({"scope": ["weir:admin"]}));
    assert_eq!(send(&node, Method::GET, "/v1/functions", &admin).await.status, 200);
    // Another tenant does not see the function.
    let beta = provider.token(&json!({"weir_tenant": "beta"}));
    assert_eq!(send(&node, Method::GET, "/fn/hello/x", &beta).await.status, 404);
    let deleted = send(&node, Method::DELETE, "/v1/functions/hello", &admin).await;
    assert!(deleted.status < 300, "{}", deleted.text());
    let recorded = eventually("the deletion in the audit log", async || {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        text.lines().find(|line| line.contains("DELETE")).map(str::to_owned)
    });
    let recorded: Value = serde_json::from_str(&recorded.await).unwrap();
    assert_eq!((&recorded["tenant"], &recorded["subject"]), (&json!("acme"), &json!("jane@example")));
}

#[tokio::test]
async fn tokens_that_the_provider_did_not_make_for_this_node_are_refused() {
    let provider = TestProvider::start().await;
    let node = provider.node().start().await;
    for (other, expected) in [
        (json!({"aud": "another-service"}), "it is for another audience"),
        (json!({"exp": 1_000_000_000}), "it has expired"),
        (json!({"weir_tenant": "*"}), "its claim weir_tenant"),
    ] {
        let refused = send(&node, Method::GET, "/v1/functions", &provider.token(&other)).await.refusal();
        assert_eq!(refused.status, 401, "{other}");
        assert!(refused.text.contains(expected), "{other}: {}", refused.text);
    }
    let mut forged = provider.token(&json!({}));
    let middle = forged.len() - 40;
    let other = if forged[middle..].starts_with('A') { "B" } else { "A" };
    forged.replace_range(middle..=middle, other);
    let refused = send(&node, Method::GET, "/v1/functions", &forged).await.refusal();
    assert_eq!(refused.status, 401);
    assert!(refused.text.contains("its signature is wrong"), "{}", refused.text);
    assert_eq!(send(&node, Method::GET, "/v1/functions", ACME).await.status, 200);
}

#[tokio::test]
async fn node_serves_its_own_tokens_while_the_provider_is_down() {
    let provider = TestProvider::start().await;
    let builder = provider.node();
    let token = provider.token(&json!({"scope": "weir:read"}));
    drop(provider);
    let node = builder.start().await;
    assert_eq!(send(&node, Method::GET, "/v1/functions", ACME).await.status, 200);
    let refused = send(&node, Method::GET, "/v1/functions", &token).await.refusal();
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("could not be fetched"), "{}", refused.text);
}
