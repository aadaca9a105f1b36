//! Response caching for functions and models with `cache_ttl_ms`. `dice` returns a new value on
//! every run.

mod inferences;

use reqwest::Method;
use reqwest::header::HeaderMap;
use std::collections::HashSet;
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;

const KEPT: &str = "cache_ttl_ms=600000";

/// Starts a node with `dice` and its response cache.
async fn node() -> TestNode {
    let node = TestNode::start().await;
    node.deploy_with("dice", KEPT, function("dice")).await;
    node
}

async fn ask(
    client: &TestClient,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> Answer {
    let request = client.request(method, path).body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.unwrap();
    let status: u16 = response.status().as_u16();
    let headers: HeaderMap = response.headers().clone();
    Answer { status, headers, body: response.bytes().await.unwrap() }
}

/// Returns the cache verdict and the rolled value.
async fn roll(client: &TestClient, path: &str, headers: &[(&str, &str)]) -> (String, String) {
    let answer = ask(client, Method::GET, path, headers, "").await;
    (answer.header("weir-cache").unwrap_or("none").to_owned(), answer.text().to_owned())
}

#[tokio::test]
async fn truncated_responses_are_not_cached() {
    let node = TestNode::start().await;
    node.deploy_with("busy", &format!("{KEPT}&limits.cpu_time_ms=20"), function("misbehave")).await;
    node.deploy_with("torn", KEPT, function("misanswer")).await;
    for path in ["/fn/busy/body", "/fn/torn/half"] {
        for _ in 0..3 {
            // The error comes before or after the response head, depending on the guest's progress.
            if let Ok(response) = node.request(Method::GET, path).send().await {
                assert!(
                    response.headers().get("weir-cache").is_none_or(|verdict| verdict != "hit"),
                    "{path}"
                );
                let status = response.status().as_u16();
                let body = response.bytes().await;
                assert!(status >= 500 || body.is_err(), "{path}: {status} with a complete body");
            }
        }
    }
    assert_eq!(node.metric("weir_response_cache_answers", "").await, 0.0);
    // Other connections are unaffected.
    assert_eq!(node.get("/fn/torn/behave").await.ok().text(), "ok\n");
}

#[tokio::test]
async fn second_equal_call_is_a_cache_hit() {
    let node = node().await;
    let (first, rolled) = roll(&node, "/fn/dice/a?b=c", &[]).await;
    assert_eq!(first, "miss");
    let again = ask(&node, Method::GET, "/fn/dice/a?b=c", &[("user-agent", "another")], "").await.ok();
    assert_eq!((again.text(), again.header("weir-cache")), (rolled.as_str(), Some("hit")));
    assert!(again.header("age").is_some() && again.header("weir-request-id").is_some());
    // A hit is counted like any other call, except for guest time.
    let count = async |name: &str, label: &str| node.metric(name, label).await;
    let counted = async || (count("weir_invocations_total", "code=\"ok\"").await == 2.0).then_some(());
    eventually("the count", counted).await;
    assert_eq!(count("weir_phase_seconds_count", "phase=\"guest\"").await, 1.0);
    assert_eq!(count("weir_function_cache_hits_total", "function=\"dice\"").await, 1.0);
    assert_eq!(count("weir_response_cache_hits_total", "").await, 1.0);
    assert_eq!(count("weir_response_cache_misses_total", "").await, 1.0);
    assert_eq!(count("weir_response_cache_answers", "").await, 1.0);
    assert!(count("weir_response_cache_bytes", "").await > 0.0);

    // Every part of the cache key makes a different call.
    let mut all = HashSet::from([rolled]);
    let get = [
        ("/fn/dice/a?b=d", ("accept", "*/*")),
        ("/fn/dice/b?b=c", ("accept", "*/*")),
        ("/fn/dice/a?b=c", ("accept", "text/plain")),
        ("/fn/dice/a?b=c", ("accept-encoding", "br")),
        ("/fn/dice/a?b=c", ("authorization", "Basic eDp5")),
        ("/fn/dice/a?b=c", ("cookie", "user=1")),
        ("/fn/dice/a?b=c", ("cookie", "user=2")),
    ];
    for (path, header) in get {
        let (verdict, rolled) = roll(&node, path, &[header]).await;
        assert!(verdict == "miss" && all.insert(rolled), "{path} {header:?}: {verdict}");
    }
    for (method, body) in [(Method::POST, "x"), (Method::POST, "y"), (Method::POST, "")] {
        let answer = ask(&node, method.clone(), "/fn/dice/a?b=c", &[], body).await;
        assert!(all.insert(answer.text().to_owned()), "{method} {body}");
        let again = ask(&node, method, "/fn/dice/a?b=c", &[], body).await;
        assert_eq!((again.text(), again.header("weir-cache")), (answer.text(), Some("hit")));
    }
    // A version without `cache_ttl_ms` is not cached, regardless of earlier manifests.
    node.deploy("dice", function("dice")).await;
    let (verdict, rolled) = roll(&node, "/fn/dice/a?b=c", &[]).await;
    assert!(verdict == "none" && all.insert(rolled));
}

#[tokio::test]
async fn uncacheable_responses_are_not_cached() {
    let node = node().await;
    for (path, verdict, headers) in [
        ("?status=404", "miss", &[][..]),
        ("?status=302", "miss", &[]),
        ("?cache-control=no-store", "miss", &[]),
        ("?cache-control=private", "miss", &[]),
        ("?set-cookie=a", "miss", &[]),
        ("?vary=user-agent", "miss", &[]),
        ("?content-type=text/event-stream", "miss", &[]),
        ("", "bypass", &[("cache-control", "no-store")]),
        ("", "bypass", &[("range", "bytes=0-3")]),
        ("", "bypass", &[("if-none-match", "\"x\"")]),
    ] {
        let path = format!("/fn/dice/{path}");
        let rolls = [roll(&node, &path, headers).await, roll(&node, &path, headers).await];
        assert_eq!([&rolls[0].0, &rolls[1].0], [verdict, verdict], "{path} {headers:?}");
        assert_ne!(rolls[0].1, rolls[1].1, "{path} {headers:?}");
    }
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        let answer = ask(&node, method.clone(), "/fn/dice/", &[], "x").await;
        assert_eq!(answer.header("weir-cache"), Some("bypass"), "{method}");
    }
    // A body of unknown length is streamed to the function and bypasses the cache.
    assert_eq!(node.hold("/fn/dice/").let_go().await.ok().header("weir-cache"), Some("bypass"));
    // Failed calls are not cached.
    node.deploy_with("bad", KEPT, function("misbehave")).await;
    for _ in 0..2 {
        let answer = node.get("/fn/bad/trap").await;
        assert_eq!((answer.status, answer.code()), (500, ErrorCode::GuestTrap));
    }
    assert_eq!(node.metric("weir_response_cache_hits_total", "").await, 0.0);
    assert_eq!(node.metric("weir_response_cache_answers", "").await, 0.0);

    // `no-cache` runs the call and stores the new response for other callers.
    let (_, old) = roll(&node, "/fn/dice/", &[]).await;
    let (verdict, new) = roll(&node, "/fn/dice/", &[("cache-control", "no-cache")]).await;
    assert!(verdict == "miss" && new != old);
    assert_eq!(roll(&node, "/fn/dice/", &[("cache-control", "max-age=3600")]).await, ("hit".to_owned(), new));
}

#[tokio::test]
async fn cache_entries_are_per_tenant_and_version_and_expire() {
    let acme = "token-of-acme-0123";
    let other = "token-of-other-0123";
    let node =
        TestNode::builder().tokens(&["token-of-acme-0123 acme", "token-of-other-0123 other"]).start().await;
    let acme = node.with_token(acme);
    let other = node.with_token(other);
    for client in [&acme, &other] {
        client.deploy_with("dice", KEPT, function("dice")).await;
    }
    let (_, one) = roll(&acme, "/fn/dice/", &[]).await;
    let (verdict, two) = roll(&other, "/fn/dice/", &[]).await;
    assert!(verdict == "miss" && one != two, "a tenant received the cached response of another tenant");
    // A new version has its own cache entries, and a rollback finds the old entries.
    acme.deploy_with("dice", &format!("{KEPT}&env.A=b"), function("dice")).await;
    let (verdict, three) = roll(&acme, "/fn/dice/", &[]).await;
    assert!(verdict == "miss" && three != one);
    acme.roll_back("dice", None).await.ok();
    assert_eq!(roll(&acme, "/fn/dice/", &[]).await, ("hit".to_owned(), one.clone()));
    // A function that is deleted and deployed again has the same version number but new cache
    // entries.
    acme.delete("/v1/functions/dice").await.ok();
    acme.deploy_with("dice", KEPT, function("dice")).await;
    let (verdict, four) = roll(&acme, "/fn/dice/", &[]).await;
    assert!(verdict == "miss" && four != one);
    let kept = async || (acme.metric("weir_response_cache_answers", "").await == 2.0).then_some(());
    eventually("the end of the deleted versions' answers", kept).await;

    acme.deploy_with("brief", "cache_ttl_ms=50", function("dice")).await;
    let (_, first) = roll(&acme, "/fn/brief/", &[]).await;
    eventually("the end of its time", async || {
        let (_, rolled) = roll(&acme, "/fn/brief/", &[]).await;
        (rolled != first).then_some(())
    })
    .await;
}

#[tokio::test]
async fn concurrent_equal_calls_run_once_despite_a_disconnected_caller() {
    let node = TestNode::start().await;
    let limits = "limits.concurrency_max=1&limits.queue_len_max=1";
    node.deploy_with("f", &format!("{KEPT}&{limits}"), function("misbehave")).await;
    // The open body bypasses the cache; the call occupies the only permit.
    let held = node.hold("/fn/f/wait");
    let status = async |running: u64, queued: u64| {
        eventually("the queue", async || {
            let status = node.status().await;
            ((status.running, status.queued) == (running, queued)).then_some(())
        })
        .await;
    };
    status(1, 0).await;
    let call = || {
        let client = node.client().clone();
        tokio::spawn(async move { client.get("/fn/f/behave").await })
    };
    let first = call();
    status(1, 1).await;
    // The queue has room for one call: the other calls wait for the first one's response.
    let others: Vec<_> = (0..8).map(|_| call()).collect();
    let connections = async || node.metric("weir_connections", "").await;
    let before =
        eventually("the calls", async || Some(connections().await).filter(|open| *open >= 10.0)).await;
    first.abort();
    // Otherwise the first call might still get the permit.
    eventually("the disconnect", async || (connections().await < before).then_some(())).await;
    held.let_go().await.ok();
    let mut verdicts = Vec::new();
    for other in others {
        let answer = other.await.unwrap().ok();
        assert_eq!(answer.text(), "ok\n");
        verdicts.push(answer.header("weir-cache").unwrap().to_owned());
    }
    verdicts.sort();
    assert_eq!(verdicts, [vec!["hit"; 7], vec!["miss"]].concat());
    // Guests of the held call and of one other call, counted at their end, possibly after the
    // response.
    let guests = async || node.metric("weir_phase_seconds_count", "phase=\"guest\"").await;
    eventually("the guests' end", async || (guests().await >= 2.0).then_some(())).await;
    assert_eq!(guests().await, 2.0);
}

#[tokio::test]
async fn cache_stays_within_its_size_limit() {
    let node = TestNode::builder().set("gateway.response_cache_bytes_max", 256 << 10).start().await;
    node.deploy_with("dice", KEPT, function("dice")).await;
    // One response may take at most a sixteenth of the cache; larger responses are not cached.
    let large = ask(&node, Method::GET, "/fn/dice/?bytes=17000", &[], "").await.ok();
    assert_eq!((large.body.len(), large.header("weir-cache")), (17_016, Some("miss")));
    assert_eq!(roll(&node, "/fn/dice/?bytes=17000", &[]).await.0, "miss");
    for i in 0..60 {
        let path = format!("/fn/dice/{i}?bytes=12000");
        roll(&node, &path, &[]).await;
        assert!(node.metric("weir_response_cache_bytes", "").await <= f64::from(256 << 10));
    }
    assert!(node.metric("weir_response_cache_answers", "").await >= 10.0);
    assert!(node.metric("weir_response_cache_evictions_total", "").await >= 20.0);
    // A cache size of 0 disables caching.
    let without = TestNode::builder().set("gateway.response_cache_bytes_max", 0).start().await;
    without.deploy_with("dice", KEPT, function("dice")).await;
    let rolls = [roll(&without, "/fn/dice/", &[]).await, roll(&without, "/fn/dice/", &[]).await];
    assert!(rolls[0].0 == "none" && rolls[0].1 != rolls[1].1);
}

#[tokio::test]
async fn invalid_cache_ttl_is_rejected() {
    let node = TestNode::start().await;
    for (query, code) in [
        ("cache_ttl_ms=0", ErrorCode::LimitOverCap),
        ("cache_ttl_ms=2592000001", ErrorCode::LimitOverCap),
        ("cache_ttl_ms=-1", ErrorCode::InvalidManifest),
        ("cache_ttl_ms=soon", ErrorCode::InvalidManifest),
        ("cache_ttl=1", ErrorCode::InvalidManifest),
    ] {
        let refusal = node.try_deploy("f", query, function("hello")).await.unwrap_err();
        assert_eq!(refusal.code, code, "{query}: {refusal:?}");
        let refusal =
            node.put(&format!("/v1/models/m?{query}"), weir_tests::model("good/matmul.onnx")).await.refusal();
        assert_eq!(refusal.code, code, "{query}: {refusal:?}");
    }
    let deployed = node.deploy_with("f", "cache_ttl_ms=7", function("hello")).await;
    assert_eq!(deployed.function.manifest.cache_ttl_ms, Some(7));
}
