//! Misbehaving functions: each failure has its own code, and other functions are unaffected.

use std::time::{Duration, Instant};
use weir_tests::{TestClient, TestNode, function};
use weir_types::ErrorCode;

/// Paths of `misbehave` with limits, expected status and expected code.
const CASES: [(&str, &str, u16, ErrorCode); 11] = [
    ("/spin", "limits.cpu_time_ms=300", 504, ErrorCode::CpuTimeLimit),
    ("/sleep", "limits.deadline_ms=400", 504, ErrorCode::DeadlineExceeded),
    ("/spin", "limits.deadline_ms=400", 504, ErrorCode::DeadlineExceeded),
    ("/hoard", "limits.memory_bytes=67108864", 507, ErrorCode::MemoryLimit),
    ("/hoard", "", 507, ErrorCode::MemoryLimit),
    ("/recurse", "", 500, ErrorCode::StackOverflow),
    ("/handles", "limits.handles=500", 507, ErrorCode::HandleLimit),
    ("/list", "limits.host_call_bytes=1048576", 507, ErrorCode::HostCallLimit),
    ("/declare", "", 502, ErrorCode::ResponseTooLarge),
    ("/trap", "", 500, ErrorCode::GuestTrap),
    ("/exit", "", 502, ErrorCode::NoResponse),
];

/// Deploys one function per case, each with its own limits.
async fn deploy_all(node: &TestNode) {
    for (at, (_, query, ..)) in CASES.iter().enumerate() {
        node.deploy_with(&format!("bad{at}"), query, function("misbehave")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failure_has_its_code_and_other_functions_succeed() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    deploy_all(&node).await;
    let client = node.client().clone();
    let neighbours = tokio::spawn(async move {
        let mut calls = 0;
        while calls < 200 {
            assert_eq!(client.get("/fn/hello/ann").await.ok().text(), "hello, ann\n");
            calls += 1;
        }
    });
    let misdeeds = CASES.iter().enumerate().map(|(at, (path, query, status, code))| {
        let client = node.client().clone();
        async move {
            let answer = client.get(&format!("/fn/bad{at}{path}")).await;
            let refusal = answer.refusal();
            assert_eq!((refusal.status, refusal.code), (*status, *code), "{path}?{query}: {}", refusal.text);
            // A panic is described as one.
            assert!(!refusal.text.contains("unreachable"), "{}", refusal.text);
        }
    });
    futures::future::join_all(misdeeds).await;
    neighbours.await.unwrap();
    // The functions still work in fresh instances.
    for at in 0..CASES.len() {
        assert_eq!(node.get(&format!("/fn/bad{at}/behave")).await.ok().text(), "ok\n");
    }
    for (at, (path, _, _, code)) in CASES.iter().enumerate() {
        let counted = weir_tests::eventually("the count of the failure", async || {
            let label = format!("function=\"bad{at}\",code=\"{code}\"");
            Some(node.metric("weir_invocations_total", &label).await).filter(|count| *count > 0.0)
        });
        assert_eq!(counted.await, 1.0, "{path}");
    }
}

#[tokio::test]
async fn endless_response_is_cut_off() {
    let node = TestNode::start().await;
    node.deploy_with("bad", "limits.response_body_bytes=5000000", function("misbehave")).await;
    let response = node.request(reqwest::Method::GET, "/fn/bad/body").send().await.unwrap();
    let body = response.bytes().await;
    // The status is already sent, so only an aborted connection marks the response as incomplete.
    assert!(body.is_err(), "the client accepted {} bytes as a complete response", body.unwrap().len());
    idle(&node).await;
    assert_eq!(node.get("/fn/bad/behave").await.ok().text(), "ok\n");
}

#[tokio::test]
async fn recoverable_failures_are_errors_instead_of_traps() {
    let node = TestNode::start().await;
    node.deploy_with("bad", "limits.tensor_bytes=8388608", function("misbehave")).await;
    let tensors = node.get("/fn/bad/tensors").await;
    assert_eq!(tensors.status, 418);
    assert!(
        tensors.text().contains("ResourceExhausted") && tensors.text().contains("after 8"),
        "{}",
        tensors.text()
    );
    let open = node.get("/fn/bad/open?somebody-elses").await;
    assert_eq!(open.status, 418);
    assert!(open.text().contains("NotGranted"), "{}", open.text());
}

#[tokio::test]
async fn excess_log_output_is_dropped_and_counted() {
    let node = TestNode::start().await;
    node.deploy_with("bad", "limits.log_bytes=10000", function("misbehave")).await;
    assert_eq!(node.get("/fn/bad/log").await.ok().text(), "logged\n");
    // The last line is written at the guest's end, possibly after the response.
    let lines = weir_tests::eventually("the line about the truncated log", async || {
        let lines = node.logs("bad").await;
        lines.iter().any(|line| line.stream == "weir").then_some(lines)
    })
    .await;
    let kept: usize = lines.iter().filter(|line| line.stream == "stdout").map(|line| line.text.len()).sum();
    assert!((9_000..=10_000).contains(&kept), "{kept} bytes were kept");
    let words = lines.iter().find(|line| line.stream == "weir").unwrap();
    let dropped = node.metric("weir_function_log_dropped_bytes_total", "function=\"bad\"").await;
    assert!(dropped > 0.0);
    assert_eq!(words.text, format!("log limit reached: {dropped} bytes dropped (limits.log_bytes)"));
}

#[tokio::test]
async fn time_limits_end_a_guest_promptly() {
    let node = TestNode::start().await;
    node.deploy_with("cpu", "limits.cpu_time_ms=200", function("misbehave")).await;
    node.deploy_with("late", "limits.deadline_ms=200", function("misbehave")).await;
    for path in ["/fn/cpu/spin", "/fn/late/sleep", "/fn/late/spin"] {
        node.get(&path.replace("/spin", "/behave").replace("/sleep", "/behave")).await.ok();
        let began = Instant::now();
        assert_eq!(node.get(path).await.status, 504);
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(190) && took < Duration::from_secs(3), "{path} took {took:?}");
    }
    idle(&node).await;
}

/// Waits until nothing runs.
async fn idle(node: &TestClient) {
    weir_tests::eventually("the end of all guests", async || {
        (node.status().await.running == 0).then_some(())
    })
    .await;
}
