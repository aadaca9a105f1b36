//! Destinations that guests and callbacks may reach.

use reqwest::Method;
use std::ops::Deref;
use weir_tests::{NodeBuilder, Receiver, TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::{CallbackState, CallbackStatus};

/// Token of tenant `acme`.
const TOKEN: &str = "0123456789abcdef";

/// A node with tokens, and so without access to loopback addresses.
fn shared() -> NodeBuilder {
    TestNode::builder().tokens(&[&format!("{TOKEN} acme")])
}

/// A node, and the client of its tenant.
struct Running {
    _node: TestNode,
    client: TestClient,
}

impl Deref for Running {
    type Target = TestClient;
    fn deref(&self) -> &TestClient {
        &self.client
    }
}

/// Starts a node with functions that may send requests anywhere, as far as their manifests decide.
async fn start(builder: NodeBuilder) -> Running {
    let node = builder.start().await;
    let client = node.with_token(TOKEN);
    for name in ["fetch", "echo-http"] {
        client.deploy_with(name, "outbound_hosts=*", function(name)).await;
    }
    Running { _node: node, client }
}

fn port(receiver: &Receiver) -> String {
    receiver.host().rsplit(':').next().unwrap().to_owned()
}

/// Asserts that the function cannot fetch `url`, that the log names `setting`, and that the refusal
/// is counted.
async fn assert_refused(node: &TestClient, url: &str, reason: &str, setting: &str) {
    let answer = node.get(&format!("/fn/fetch/?{url}")).await;
    assert_eq!(answer.status, 502, "{url}: {}", answer.text());
    assert!(answer.text().contains("DestinationIpProhibited"), "{url}: {}", answer.text());
    let lines = node.logs("fetch").await;
    let is_told = lines.iter().any(|line| {
        line.stream == "weir" && line.text.starts_with("not-granted: ") && line.text.contains(setting)
    });
    assert!(is_told, "{url}: {setting} is not in {lines:?}");
    let label = format!("reason=\"{reason}\"");
    assert!(node.metric("weir_outbound_refused_total", &label).await >= 1.0, "{url}");
}

#[tokio::test]
async fn loopback_is_refused_on_a_node_with_tokens() {
    let receiver = Receiver::start(&[]).await;
    let node = start(shared()).await;
    let setting = format!("adding \"{}\" to outbound.allow", receiver.host());
    assert_refused(&node, &receiver.url("/"), "loopback", &setting).await;
    let port = port(&receiver);
    for host in ["localhost", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433", "127.1"] {
        assert_refused(&node, &format!("http://{host}:{port}/"), "loopback", "address is loopback").await;
    }
    assert_refused(&node, "http://169.254.169.254/", "link-local", "address is link-local").await;
    assert_refused(&node, "http://0.0.0.0:1/", "unspecified", "no setting allows it").await;
    assert_eq!(receiver.received().len(), 0);
}

#[tokio::test]
async fn allow_rule_opens_one_destination() {
    let [open, closed] = [Receiver::start(&[]).await, Receiver::start(&[]).await];
    let node = start(shared().set("outbound.allow", format!("[\"{}\"]", open.host()))).await;
    node.get(&format!("/fn/fetch/?{}", open.url("/here"))).await.ok();
    assert_eq!(open.received()[0].line, "GET /here HTTP/1.1");
    assert_refused(&node, &closed.url("/"), "loopback", "outbound.allow").await;
    assert_eq!(closed.received().len(), 0);
}

#[tokio::test]
async fn deny_rules_and_ceilings_limit_a_manifest_that_grants_everything() {
    let receiver = Receiver::start(&[]).await;
    let builder = shared()
        .set("outbound.allow", "[\"127.0.0.0/8\"]")
        .set("outbound.deny", "[\"localhost\"]")
        .set("outbound.tenants.acme.only", "[\"127.0.0.1\"]");
    let node = start(builder).await;
    node.get(&format!("/fn/fetch/?{}", receiver.url("/"))).await.ok();
    let port = port(&receiver);
    let denied = format!("http://localhost:{port}/");
    assert_refused(&node, &denied, "deny-rule", "\"localhost\" in outbound.deny").await;
    let above = format!("http://127.0.0.2:{port}/");
    assert_refused(&node, &above, "tenant-ceiling", "outbound.tenants.acme.only").await;
    assert_eq!(receiver.received().len(), 1);
}

/// Without tokens, the node itself would serve the guest as its only tenant.
#[tokio::test]
async fn own_listener_is_refused_whatever_the_rules_say() {
    let builder = TestNode::builder()
        .set("outbound.allow", "[\"127.0.0.0/8\"]")
        .set("outbound.tenant_default.allow", "[\"localhost\"]");
    let node = start(builder).await;
    let port = node.address().rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "127.0.0.9", "[::1]", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/v1/functions");
        assert_refused(&node, &url, "node-endpoint", "no setting allows it").await;
    }
}

#[tokio::test]
async fn laptop_node_reaches_other_services_of_its_machine_and_no_private_network() {
    let receiver = Receiver::start(&[]).await;
    let node = start(TestNode::builder()).await;
    node.get(&format!("/fn/fetch/?{}", receiver.url("/"))).await.ok();
    assert_eq!(receiver.received().len(), 1);
    assert_refused(&node, "http://10.255.255.1/", "private", "outbound.allow").await;
}

#[tokio::test]
async fn callback_to_a_refused_address_fails() {
    let receiver = Receiver::start(&[]).await;
    let builder = shared().set("async.backoff_ms", 1).set("async.callback_attempts_max", 1);
    let node = start(builder).await;
    for (url, class) in [(receiver.url("/"), "loopback"), ("http://10.255.255.1/".to_owned(), "private")] {
        let request = node.later(Method::POST, "/fn/echo-http").header("weir-callback", &url).body("x");
        let id = node.accepted(request).await.id;
        let state: CallbackState = eventually("the end of the callback", async || {
            let callback = node.invocation(id).await.callback;
            callback.filter(|callback| callback.status != CallbackStatus::Pending)
        })
        .await;
        let error = state.error.unwrap();
        assert_eq!(state.status, CallbackStatus::Failed, "{url}");
        assert!(error.contains(&format!("its address is {class}")), "{url}: {error}");
    }
    assert_eq!(receiver.received().len(), 0);
}

/// Such a grant was accepted, and every request was refused.
#[tokio::test]
async fn invalid_granted_host_is_refused_at_the_deployment() {
    let node = shared().start().await;
    let client = node.with_token(TOKEN);
    for host in ["http://127.0.0.1:9798", "127.0.0.1:*", "127.0.0.1:99999"] {
        let query = [("outbound_hosts", host)];
        let request = client.request(Method::PUT, "/v1/functions/fetch").query(&query);
        let refusal = client.send(request.body(function("fetch"))).await.refusal();
        assert_eq!(refusal.code, ErrorCode::InvalidManifest, "{host}");
        assert!(refusal.text.contains("HOST or HOST:PORT"), "{host}: {}", refusal.text);
    }
    let deployed = client.deploy_with("fetch", "outbound_hosts=127.0.0.1:9798", function("fetch")).await;
    let advice = deployed.warnings.join("\n");
    assert!(advice.contains("adding \"127.0.0.1:9798\" to outbound.allow"), "{advice}");
}

#[tokio::test]
async fn invalid_rule_is_an_error_at_start() {
    for rule in ["10.1.2.3/16", "http://a.example", "*"] {
        let log = TestNode::builder().set("outbound.allow", format!("[\"{rule}\"]")).try_start().await.err();
        let log = log.unwrap_or_else(|| panic!("{rule} was accepted"));
        assert!(log.contains("is not a rule for outbound requests"), "{rule}: {log}");
    }
}
