//! WebSockets of functions.

use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_tests::tungstenite::Message;
use weir_tests::tungstenite::protocol::frame::Frame;
use weir_tests::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use weir_tests::tungstenite::protocol::{CloseFrame, frame};
use weir_tests::{NodeBuilder, TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;

const ACME: &str = "acme-token-0123456789";

async fn start(builder: NodeBuilder) -> TestNode {
    let node = builder.start().await;
    node.deploy("ws", function("echo-socket")).await;
    node
}

/// Waits until a line of the function's log has `text`.
async fn logged(node: &TestClient, text: &str) {
    eventually(text, async || {
        node.logs("ws").await.iter().any(|line| line.text.contains(text)).then_some(())
    })
    .await;
}

/// Waits until no call runs.
async fn all_ended(node: &TestNode) {
    eventually("the end of the call", async || (node.status().await.running == 0).then_some(())).await;
}

fn close(code: u16, reason: &str) -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() }))
}

#[tokio::test]
async fn messages_are_echoed_in_order_with_their_kinds() {
    let node = start(TestNode::builder()).await;
    let mut socket = node.web_socket("/fn/ws/echo").await;
    assert_eq!(socket.response.headers()["weir-version"], "1");
    assert_eq!(node.metric("weir_websockets", "").await, 1.0);
    for round in 0..20 {
        socket.send(format!("grüezi {round}")).await;
        socket.send(vec![round; usize::from(round) * 1_000]).await;
        assert_eq!(socket.text().await, format!("grüezi {round}"));
        assert_eq!(socket.bytes().await, vec![round; usize::from(round) * 1_000]);
    }
    // The node sends large messages in several frames, which may split a character.
    let large = "aü".repeat(100_000);
    socket.send(large.clone()).await;
    assert_eq!(socket.text().await, large);
    socket.send("").await;
    assert_eq!(socket.text().await, "");
    socket.send(close(4_321, "enough")).await;
    assert_eq!(socket.closed().await, (4_321, "enough".to_owned()), "the node answers with the same code");
    logged(&node, "closed with 4321 enough").await;
    all_ended(&node).await;
    eventually("the end", async || (node.metric("weir_websockets", "").await == 0.0).then_some(())).await;
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"client\"").await, 1.0);
    assert_eq!(node.metric("weir_invocations_total", "code=\"ok\"").await, 1.0);
}

#[tokio::test]
async fn function_sees_the_request_without_the_handshake() {
    let node = start(TestNode::builder()).await;
    let offered = [("sec-websocket-protocol", "chat, echo"), ("x-own", "7")];
    let mut socket = node.try_web_socket("/fn/ws/echo?head", &offered).await.unwrap();
    assert_eq!(socket.protocol(), Some("echo"));
    let head = socket.text().await;
    assert!(head.starts_with("GET /echo Some(\"head\")\n"), "{head}");
    for line in [
        "content-type: application/vnd.weir.websocket",
        "sec-websocket-protocol: chat, echo",
        "x-own: 7",
        "x-forwarded-prefix: /fn/ws",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    for name in ["upgrade", "connection", "sec-websocket-key", "sec-websocket-version"] {
        assert!(!head.lines().any(|line| line.starts_with(&format!("{name}:"))), "{name} in {head}");
    }
    // A function that accepts with another subprotocol than those offered fails.
    let refused = node.try_web_socket("/fn/ws/echo", &[("sec-websocket-protocol", "wrong")]).await;
    assert_eq!(refused.err().unwrap().status, 502);
}

#[tokio::test]
async fn fragments_and_pings_are_handled_by_the_node() {
    let node = start(TestNode::builder()).await;
    let mut socket = node.web_socket("/fn/ws/echo").await;
    let part = |data: Data, text: &'static str, is_last| Frame::message(text, OpCode::Data(data), is_last);
    socket.send_frame(part(Data::Text, "one ", false)).await;
    socket.send_frame(part(Data::Continue, "two ", false)).await;
    // A control frame may be between the parts.
    socket.send(Message::Ping("are you there".into())).await;
    assert_eq!(socket.receive().await, Message::Pong("are you there".into()));
    socket.send_frame(part(Data::Continue, "three", true)).await;
    assert_eq!(socket.text().await, "one two three");
}

#[tokio::test]
async fn function_sends_and_receives_at_the_same_time() {
    let node = start(TestNode::builder()).await;
    let mut socket = node.web_socket("/fn/ws/ticks").await;
    for tick in 0..3 {
        assert_eq!(socket.text().await, tick.to_string());
    }
    socket.send("stop").await;
    let last = loop {
        let text = socket.text().await;
        if text.parse::<u32>().is_err() {
            break text;
        }
    };
    assert_eq!(last, "stop");
    assert_eq!(socket.closed().await.0, 1000, "a function that returns closes normally");
}

#[tokio::test]
async fn client_that_does_not_read_stops_the_function() {
    let node = start(TestNode::builder().set("gateway.answers.stall_ms", 4_000)).await;
    let socket = node.web_socket("/fn/ws/flood").await;
    let sent = async || node.logs("ws").await.len();
    let mut before = 0;
    let stopped = eventually("the function to wait", async || {
        let now = sent().await;
        let last = std::mem::replace(&mut before, now);
        tokio::time::sleep(Duration::from_millis(500)).await;
        (now > 0 && now == last).then_some(now)
    });
    let messages = stopped.await;
    assert!(messages < 500, "{messages} messages of 64 KiB were sent to a client that reads none");
    // The node cuts such a client off.
    eventually("the cut", async || {
        (node.metric("weir_answers_cut_total", "cause=\"stalled\"").await == 1.0).then_some(())
    })
    .await;
    all_ended(&node).await;
    drop(socket);
}

/// The answers to pings took memory without a limit, and nothing noticed that the client reads none.
#[tokio::test]
async fn client_that_sends_pings_and_does_not_read_is_cut_off() {
    let node = start(TestNode::builder().set("gateway.answers.stall_ms", 2_000)).await;
    let mut socket = node.web_socket("/fn/ws/echo").await;
    let ping = Message::Ping(vec![7; 125].into());
    let flooding = async { while socket.try_send(ping.clone()).await.is_ok() {} };
    let is_cut = tokio::time::timeout(Duration::from_secs(60), flooding).await.is_ok();
    assert!(is_cut, "the node answers pings of a client that reads no answers");
    assert_eq!(node.metric("weir_answers_cut_total", "cause=\"stalled\"").await, 1.0);
    all_ended(&node).await;
}

/// A client that has gone was not noticed while the function received nothing.
#[tokio::test]
async fn client_that_leaves_a_function_that_does_not_receive_is_noticed() {
    let node = start(TestNode::builder().set("sandbox.websockets.ping_ms", 300)).await;
    let mut socket = node.web_socket("/fn/ws/idle").await;
    for _ in 0..4 {
        socket.send("unread").await;
    }
    drop(socket);
    all_ended(&node).await;
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"loss\"").await, 1.0);
}

#[tokio::test]
async fn function_that_does_not_read_stops_the_client() {
    let node = start(TestNode::builder()).await;
    let mut socket = node.web_socket("/fn/ws/deaf").await;
    let message = vec![7; 256 << 10];
    let mut sent = 0;
    // The function sleeps for 2 s.
    let sending = async {
        while sent < 200 {
            socket.send(message.clone()).await;
            sent += 1;
        }
    };
    let is_blocked = tokio::time::timeout(Duration::from_millis(1_500), sending).await.is_err();
    assert!(is_blocked, "{sent} messages of 256 KiB were taken although nothing reads them");
    // The message that was cut short by the timeout is sent whole before the next one.
    socket.send("").await;
    let bytes: usize = socket.text().await.parse().unwrap();
    assert!(bytes == sent * message.len() || bytes == (sent + 1) * message.len(), "{bytes} of {sent}");
}

#[tokio::test]
async fn function_chooses_the_code_of_the_close() {
    let node = start(TestNode::builder()).await;
    for (asked, code, reason) in [("1000 bye", 1000, "bye"), ("3001 ", 3001, ""), ("4999 x", 4999, "x")] {
        let mut socket = node.web_socket("/fn/ws/close").await;
        socket.send(asked).await;
        assert_eq!(socket.closed().await, (code, reason.to_owned()));
    }
    // The code 1005 is only for programs.
    assert_eq!(node.web_socket("/fn/ws/code").await.closed().await.0, 1011);
    logged(&node, "a close has a code of two bytes that may be sent").await;
}

#[tokio::test]
async fn failures_of_the_function_close_with_1011() {
    let node = start(TestNode::builder()).await;
    for path in ["trap", "fail", "large"] {
        let mut socket = node.web_socket(&format!("/fn/ws/{path}")).await;
        assert_eq!(socket.closed().await.0, 1011, "{path}");
    }
    logged(&node, "a message has 2097152 bytes, more than 1048576").await;
    logged(&node, "guest-trap").await;
    all_ended(&node).await;
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"function\"").await, 3.0);
}

#[tokio::test]
async fn refusals_of_the_function_answer_the_handshake() {
    let node = start(TestNode::builder()).await;
    for (path, status) in [("/fn/ws/refuse", 403), ("/fn/ws/missing", 404), ("/fn/ws/head", 200)] {
        assert_eq!(node.try_web_socket(path, &[]).await.err().unwrap().status, status, "{path}");
    }
    // A function of another kind, and an ordinary request to this one.
    node.deploy("hello", function("hello")).await;
    assert_eq!(node.try_web_socket("/fn/hello", &[]).await.err().unwrap().status, 200);
    assert_eq!(node.get("/fn/ws/echo").await.status, 426);
    assert_eq!(node.try_web_socket("/fn/none", &[]).await.err().unwrap().status, 404);
}

/// Sends the handshake of a WebSocket, and reads nothing.
async fn send_handshake(node: &TestNode, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        node.address()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The handshake of a WebSocket lifted the limits of functions that answer without accepting it.
#[tokio::test]
async fn handshake_changes_no_limits_of_an_ordinary_function() {
    let node = TestNode::builder().start().await;
    let limits = "limits.deadline_ms=2000&limits.response_body_bytes=3000000";
    node.deploy_with("misbehave", limits, function("misbehave")).await;
    let mut stream = send_handshake(&node, "/fn/misbehave/body").await;
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
    // The node may reset the connection.
    let _ = reading.expect("the function answers without an end");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&answer[..200]));
    assert!(answer.len() < 3_100_000, "{} bytes of at most 3,000,000 were sent", answer.len());
    // The function writes its body until its deadline, because the client does not read.
    let limits = "limits.deadline_ms=2000&limits.response_body_bytes=60000000";
    node.deploy_with("misbehave", limits, function("misbehave")).await;
    let unread = send_handshake(&node, "/fn/misbehave/body").await;
    eventually("the call", async || (node.status().await.running == 1).then_some(())).await;
    let started = Instant::now();
    all_ended(&node).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    drop(unread);
}

#[tokio::test]
async fn invalid_handshakes_are_refused() {
    let node = start(TestNode::builder()).await;
    let refused = async |header: (&'static str, &str)| {
        node.try_web_socket("/fn/ws/echo", &[header]).await.err().unwrap()
    };
    let version = refused(("sec-websocket-version", "8")).await;
    assert_eq!((version.status, version.version.as_deref()), (400, Some("13")));
    assert_eq!(refused(("sec-websocket-key", "short")).await.status, 400);
    assert_eq!(refused(("prefer", "respond-async")).await.status, 400);
    // A page of another origin, on a node without tokens.
    let page = refused(("origin", "https://evil.example")).await;
    assert!(page.status == 403 && page.text.contains(ErrorCode::CrossSite.as_str()), "{page:?}");
    let own = format!("http://{}", node.address());
    assert!(node.try_web_socket("/fn/ws/echo", &[("origin", &own)]).await.is_ok());
}

#[tokio::test]
async fn clients_that_break_the_protocol_are_told_why() {
    let node = start(TestNode::builder().set("sandbox.websockets.message_bytes_max", 1_000)).await;
    let closed = async |message: Message| {
        let mut socket = node.web_socket("/fn/ws/echo").await;
        let _ = socket.try_send(message).await;
        socket.closed().await.0
    };
    assert_eq!(closed(Message::binary(vec![0; 1_001])).await, 1009);
    let broken = Frame::message(&b"\xff"[..], OpCode::Data(Data::Text), true);
    assert_eq!(closed(Message::Frame(broken)).await, 1007);
    let unexpected = Frame::message("a", OpCode::Data(Data::Continue), true);
    assert_eq!(closed(Message::Frame(unexpected)).await, 1002);
    let mut reserved = Frame::message("a", OpCode::Data(Data::Text), true);
    *reserved.header_mut() = frame::FrameHeader { rsv1: true, ..reserved.header().clone() };
    assert_eq!(closed(Message::Frame(reserved)).await, 1002, "no extension was agreed on");
    // Parts count together.
    let mut socket = node.web_socket("/fn/ws/echo").await;
    let part = |data: Data| Frame::message(vec![b'a'; 600], OpCode::Data(data), false);
    socket.send_frame(part(Data::Text)).await;
    socket.send_frame(part(Data::Continue)).await;
    assert_eq!(socket.closed().await.0, 1009);
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"limit\"").await, 5.0);
    logged(&node, "closed with 1009").await;
}

#[tokio::test]
async fn silent_clients_are_pinged_and_disconnected() {
    let settings = TestNode::builder().set("sandbox.websockets.ping_ms", 200);
    let node = start(settings.set("sandbox.websockets.idle_ms", 1_000)).await;
    // Reads, and so answers pings.
    let mut alive = node.web_socket("/fn/ws/echo").await;
    let silent = node.web_socket("/fn/ws/echo").await;
    let mut pings = 0;
    let reading = async {
        loop {
            assert!(alive.receive().await.is_ping());
            pings += 1;
        }
    };
    let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(3), reading).await;
    assert!((5..=15).contains(&pings), "{pings} pings in 3 s");
    logged(&node, "closed with 1006").await;
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"loss\"").await, 1.0);
    alive.send("still here").await;
    while alive.receive().await.is_ping() {}
    drop(silent);
}

#[tokio::test]
async fn lost_connections_end_the_call() {
    let node = start(TestNode::builder()).await;
    drop(node.web_socket("/fn/ws/echo").await);
    logged(&node, "closed with 1006").await;
    drop(node.web_socket("/fn/ws/flood").await);
    all_ended(&node).await;
}

#[tokio::test]
async fn time_of_a_websocket_has_its_own_limit() {
    let node = TestNode::builder().start().await;
    let limits = "limits.deadline_ms=500&limits.websocket_ms=2000";
    node.deploy_with("ws", limits, function("echo-socket")).await;
    let mut socket = node.web_socket("/fn/ws/echo").await;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    socket.send("after the deadline").await;
    assert_eq!(socket.text().await, "after the deadline");
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.contains("limits.websocket_ms")), (1008, true), "{reason}");
    logged(&node, "closed with 1008").await;
    assert_eq!(node.metric("weir_websockets_closed_total", "by=\"expiry\"").await, 1.0);
}

#[tokio::test]
async fn bodies_of_a_websocket_have_no_limit_of_their_size() {
    let node = TestNode::builder().start().await;
    let limits = "limits.request_body_bytes=1000&limits.response_body_bytes=1000";
    node.deploy_with("ws", limits, function("echo-socket")).await;
    let mut socket = node.web_socket("/fn/ws/echo").await;
    for _ in 0..4 {
        socket.send(vec![1; 700]).await;
        assert_eq!(socket.bytes().await.len(), 700);
    }
}

#[tokio::test]
async fn open_websockets_are_limited_for_tenants_and_the_node() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let settings = TestNode::builder().tokens(&lines).set("sandbox.websockets.open_max", 3);
    let node = settings.set("sandbox.websockets.tenant_open_max", 2).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token("other-token-0123456789");
    acme.deploy("ws", function("echo-socket")).await;
    other.deploy("ws", function("echo-socket")).await;
    let mut open = vec![acme.web_socket("/fn/ws/echo").await, acme.web_socket("/fn/ws/echo").await];
    let refused = async |client: &TestClient, setting: &str| {
        let refused = client.try_web_socket("/fn/ws/echo", &[]).await.err().unwrap();
        assert!(refused.status == 429 && refused.text.contains(setting), "{refused:?}");
    };
    refused(&acme, "sandbox.websockets.tenant_open_max").await;
    open.push(other.web_socket("/fn/ws/echo").await);
    refused(&other, "sandbox.websockets.open_max").await;
    // The refusal of a function gives the permit back.
    let mut first = open.remove(0);
    first.send(close(1000, "")).await;
    assert_eq!(first.closed().await.0, 1000);
    eventually("the permit", async || {
        acme.try_web_socket("/fn/ws/refuse", &[]).await.err().filter(|refused| refused.status == 403)
    })
    .await;
    open.push(acme.web_socket("/fn/ws/echo").await);
}

#[tokio::test]
async fn pages_send_their_token_as_a_subprotocol() {
    let node = TestNode::builder().tokens(&["acme-token-0123456789 acme"]).start().await;
    node.with_token(ACME).deploy("ws", function("echo-socket")).await;
    node.with_token(ACME).deploy_with("open", "public=true", function("echo-socket")).await;
    let open = async |path: &str, offered: &str| {
        node.try_web_socket(path, &[("sec-websocket-protocol", offered)]).await
    };
    assert_eq!(node.try_web_socket("/fn/ws/echo", &[]).await.err().unwrap().status, 401);
    assert_eq!(
        open("/fn/ws/echo", "weir, weir.bearer.wrong-token-0123456789").await.err().unwrap().status,
        401
    );
    let mut socket = open("/fn/ws/echo?head", "weir, weir.bearer.acme-token-0123456789").await.unwrap();
    assert_eq!(socket.protocol(), Some("weir"));
    let head = socket.text().await;
    assert!(!head.contains("acme-token") && !head.contains("sec-websocket-protocol"), "{head}");
    let own = open("/fn/ws/echo", "echo, weir.bearer.acme-token-0123456789").await.unwrap();
    assert_eq!(own.protocol(), Some("echo"));
    // A public function needs no token, and does not see one that is sent by mistake.
    let mut public =
        open("/fn/acme:open/echo?head", "weir, weir.bearer.acme-token-0123456789").await.unwrap();
    assert!(!public.text().await.contains("acme-token"));
    assert!(node.try_web_socket("/fn/acme:open/echo", &[]).await.is_ok());
}

#[tokio::test]
async fn stopping_node_closes_with_1001() {
    let node = start(TestNode::builder()).await;
    let mut polite = node.web_socket("/fn/ws/echo").await;
    polite.send("hello").await;
    assert_eq!(polite.text().await, "hello");
    let client = node.client().clone();
    let mut late = client.web_socket("/fn/ws/ticks").await;
    let stopping = tokio::spawn(node.stop());
    assert_eq!(polite.closed().await.0, 1001);
    assert_eq!(late.closed().await.0, 1001);
    stopping.await.unwrap();
}

/// A function that goes on sending does not delay the end of the node for longer than the drain.
#[tokio::test]
async fn function_that_ignores_the_close_is_cut_off_after_the_drain_time() {
    let node = start(TestNode::builder().set("gateway.drain_timeout_ms", 2_000)).await;
    let mut socket = node.web_socket("/fn/ws/flood").await;
    let stopping = tokio::spawn(node.stop());
    let started = Instant::now();
    assert_eq!(socket.closed().await.0, 1001);
    let lasted = started.elapsed();
    assert!((1_000..5_000).contains(&lasted.as_millis()), "{lasted:?}");
    stopping.await.unwrap();
}
