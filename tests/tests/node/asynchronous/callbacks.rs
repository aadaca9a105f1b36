//! Callbacks with the results of asynchronous invocations.

use reqwest::Method;
use weir_tests::{NodeBuilder, Receiver, TestClient, TestNode, eventually, function, model};
use weir_types::api::{CallbackState, CallbackStatus, Invocation, InvocationStatus};
use weir_types::{AsyncId, ErrorCode};

async fn called_back(client: &TestClient, path: &str, body: &str, url: &str) -> Invocation {
    client.accepted(client.later(Method::POST, path).header("weir-callback", url).body(body.to_owned())).await
}

/// Waits for the end of a callback and returns its state.
async fn callback(client: &TestClient, id: AsyncId) -> CallbackState {
    eventually("the end of a callback", async || {
        client.invocation(id).await.callback.filter(|callback| callback.status != CallbackStatus::Pending)
    })
    .await
}

fn quick() -> NodeBuilder {
    TestNode::builder().set("async.backoff_ms", 1)
}

#[tokio::test]
async fn result_is_posted_to_a_granted_host() {
    let node = quick().start().await;
    let receiver = Receiver::start(&[]).await;
    node.deploy_with("echo", &format!("outbound_hosts={}", receiver.host()), function("echo-http")).await;
    let invocation = called_back(&node, "/fn/echo", "the body", &receiver.url("/hook?a=b")).await;
    assert_eq!(invocation.callback.unwrap().status, CallbackStatus::Pending);
    let state = callback(&node, invocation.id).await;
    assert_eq!((state.status, state.attempts, state.error), (CallbackStatus::Delivered, 1, None));
    let [received] = &receiver.received()[..] else { panic!("{:?}", receiver.received()) };
    assert_eq!((received.line.as_str(), &received.body[..]), ("POST /hook?a=b HTTP/1.1", &b"the body"[..]));
    assert_eq!(received.header("weir-invocation"), Some(&*invocation.id.to_string()));
    assert_eq!(received.header("weir-invocation-status"), Some("done"));
    assert_eq!(received.header("weir-response-status"), Some("200"));
    assert_eq!(received.header("host"), Some(&*receiver.host()));
    assert_eq!(node.result(invocation.id).await.text(), "the body");
    eventually("the count", async || {
        (node.metric("weir_async_callbacks_total", "outcome=\"delivered\"").await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn callback_is_retried_up_to_its_attempt_limit() {
    let node =
        quick().set("async.callback_attempts_max", 3).set("async.callback_timeout_ms", 500).start().await;
    // Redirects are not followed, and an unanswered callback times out.
    let receivers = [Receiver::start(&[503, 0]).await, Receiver::start(&[500, 307, 404]).await];
    let hosts = receivers.each_ref().map(Receiver::host).join(",");
    node.deploy_with("echo", &format!("outbound_hosts={hosts}"), function("echo-http")).await;
    let [late, never] = &receivers;
    let invocation = called_back(&node, "/fn/echo", "x", &late.url("/")).await;
    let state = callback(&node, invocation.id).await;
    assert_eq!((state.status, state.attempts, state.error), (CallbackStatus::Delivered, 3, None));
    assert_eq!(late.received().len(), 3);

    let invocation = called_back(&node, "/fn/echo", "x", &never.url("/")).await;
    let state = callback(&node, invocation.id).await;
    assert_eq!((state.status, state.attempts), (CallbackStatus::Failed, 3));
    assert!(state.error.unwrap().contains("404"));
    let lines: Vec<_> = never.received().into_iter().map(|received| received.line).collect();
    assert_eq!(lines, ["POST / HTTP/1.1"; 3]);
    assert_eq!(
        node.ended(invocation.id).await.status,
        InvocationStatus::Done,
        "a failed callback does not change the result"
    );
}

#[tokio::test]
async fn callback_is_sent_for_a_dead_invocation() {
    let node = quick().set("async.attempts_max", 1).start().await;
    let receiver = Receiver::start(&[]).await;
    node.deploy_with("f", &format!("outbound_hosts={}", receiver.host()), function("misbehave")).await;
    let invocation = called_back(&node, "/fn/f/trap", "", &receiver.url("/")).await;
    callback(&node, invocation.id).await;
    let [received] = &receiver.received()[..] else { panic!("{:?}", receiver.received()) };
    assert_eq!(received.header("weir-invocation-status"), Some("dead"));
    assert_eq!(received.header("weir-response-status"), None);
    let told: Invocation = serde_json::from_slice(&received.body).unwrap();
    assert_eq!((told.id, told.error.unwrap().code), (invocation.id, ErrorCode::GuestTrap));
}

#[tokio::test]
async fn callback_survives_a_crash() {
    // The first attempt gets no response.
    let node = quick().start().await;
    let receiver = Receiver::start(&[0]).await;
    node.deploy_with("echo", &format!("outbound_hosts={}", receiver.host()), function("echo-http")).await;
    let invocation = called_back(&node, "/fn/echo", "x", &receiver.url("/")).await;
    eventually("the first try", async || (receiver.received().len() == 1).then_some(())).await;
    assert_eq!(node.invocation(invocation.id).await.status, InvocationStatus::Done);
    let node = node.kill().await.start().await;
    assert_eq!(callback(&node, invocation.id).await.status, CallbackStatus::Delivered);
    assert_eq!(receiver.received().len(), 2);
    assert_eq!(node.invocation(invocation.id).await.attempts, 1, "the call ran again for its callback");
}

#[tokio::test]
async fn callbacks_to_hosts_without_a_grant_are_rejected() {
    let receiver = Receiver::start(&[]).await;
    let node = TestNode::builder().set("async.callback_hosts", "[\"localhost:1\"]").start().await;
    node.deploy("echo", function("echo-http")).await;
    node.deploy_with("open", "outbound_hosts=*", function("echo-http")).await;
    node.push_model("add", 1, model("good/add.onnx")).await;
    let refuse = async |path: &str, url: &str| {
        let request = node.later(Method::POST, path).header("weir-callback", url).body("{}");
        let refusal = node.send(request).await.refusal();
        (refusal.status, refusal.code)
    };
    for path in ["/fn/echo", "/v2/models/add/infer"] {
        assert_eq!(refuse(path, &receiver.url("/")).await, (403, ErrorCode::NotGranted), "{path}");
    }
    for url in ["file:///etc/passwd", "nonsense", "http://user@localhost/", ""] {
        assert_eq!(refuse("/fn/open", url).await, (400, ErrorCode::InvalidRequest), "{url}");
    }
    let without = node.request(Method::POST, "/fn/open").header("weir-callback", receiver.url("/"));
    assert_eq!(
        node.send(without).await.code(),
        ErrorCode::InvalidRequest,
        "a callback needs an asynchronous request"
    );
    assert_eq!(node.invocations("").await, []);
    let request = node
        .later(Method::POST, "/v2/models/add/infer")
        .header("weir-callback", "http://localhost:1/")
        .body("{}");
    node.accepted(request).await;
    assert_eq!(receiver.received().len(), 0);
}

/// Revoking a grant also applies to callbacks that are not sent yet.
#[tokio::test]
async fn grant_is_checked_again_when_the_callback_is_sent() {
    let receiver = Receiver::start(&[]).await;
    let node = quick().set("async.running_max", 0).set("async.callback_attempts_max", 1).start().await;
    node.deploy_with("echo", &format!("outbound_hosts={}", receiver.host()), function("echo-http")).await;
    let invocation = called_back(&node, "/fn/echo", "x", &receiver.url("/")).await;
    node.deploy("echo", function("echo-http")).await;
    let node = node.stop().await.set("async.running_max", 1).start().await;
    let state = callback(&node, invocation.id).await;
    assert_eq!((state.status, receiver.received().len()), (CallbackStatus::Failed, 0));
    assert!(state.error.unwrap().contains("may not be sent"));
}
