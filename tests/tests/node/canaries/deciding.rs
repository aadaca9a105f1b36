//! The node's decisions about canaries.

use super::{IN_FLIGHT_MAX, active, start, version_of};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use weir_tests::{TestNode, eventually, function, with_custom_section};
use weir_types::api::{Event, EventKind, EventPage};

/// Time between the starts of calls.
const PACE: Duration = Duration::from_micros(3_333);

/// The event of a decision about a canary, once there is one.
async fn decision(node: &TestNode, kind: EventKind) -> Event {
    let path = format!("/v1/events?name=f&kind={kind}");
    eventually("the decision", async || {
        let page: EventPage = node.get(&path).await.ok().json();
        page.events.into_iter().next()
    })
    .await
}

/// Sends `calls` calls at 300 a second, or fewer if the node cannot serve as many. Every fifth fails
/// on version 2. Returns the number of answers of version 2, and the time from the start to the last
/// of them.
async fn load(node: &Arc<TestNode>, calls: u32) -> (u32, Duration) {
    let began = Instant::now();
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut tasks = tokio::task::JoinSet::new();
    let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    for call in 0..calls {
        pace.tick().await;
        let permit = permits.clone().acquire_owned().await.unwrap();
        let node = node.clone();
        tasks.spawn(async move {
            let _permit = permit;
            let path = if call % 5 == 0 { "/fn/f/trap" } else { "/fn/f/behave" };
            let answer = node.get(path).await;
            let version = version_of(&answer);
            assert_eq!(answer.status, if version == 2 && call % 5 == 0 { 500 } else { 200 });
            (version, began.elapsed())
        });
    }
    let ends = tasks.join_all().await;
    let of_canary = ends.iter().filter(|(version, _)| *version == 2).map(|(_, at)| *at);
    (u32::try_from(of_canary.clone().count()).unwrap(), of_canary.max().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_that_fails_a_fifth_of_its_calls_is_rolled_back() {
    const CALLS: u32 = 6_000;
    let node = Arc::new(start("canary=10").await);
    let (of_canary, last) = load(&node, CALLS).await;
    assert!(of_canary * 100 <= CALLS * 3, "{of_canary} of {CALLS} calls saw the canary");
    assert!(last < Duration::from_secs(30), "the canary received calls for {last:?}");
    let event = decision(&node, EventKind::CanaryRolledBack).await;
    assert!(event.text.contains("because more calls fail") && event.text.contains("of version 1, 0 of"));
    let function = node.function("f").await.unwrap();
    assert_eq!((function.active.version.0, function.canary), (1, None));
    println!("{of_canary} of {CALLS} calls saw the canary, for {last:?}: {}", event.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deploy_waits_for_the_promotion_of_a_good_canary() {
    let node = Arc::new(TestNode::start().await);
    node.deploy("f", function("hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("second.wasm");
    std::fs::write(&file, with_custom_section(&function("hello"), "2")).unwrap();
    let calls = tokio::spawn({
        let node = node.clone();
        async move {
            loop {
                node.get("/fn/f/behave").await.ok();
            }
        }
    });
    let file = file.to_str().unwrap();
    let arguments = ["deploy", "f", file, "--canary", "50", "--promote-after", "2s"];
    let told = node.weir(&arguments).await.unwrap();
    assert!(told.contains("f is at version 2 now"), "{told}");
    calls.abort();
    assert_eq!(active(&node).await, 2);
    let event = decision(&node, EventKind::CanaryPromoted).await;
    assert!(event.text.contains("version 2 of function f was promoted: 0 of "), "{}", event.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deploy_fails_with_the_numbers_of_a_bad_canary() {
    let node = Arc::new(TestNode::start().await);
    node.deploy("f", function("hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("second.wasm");
    std::fs::write(&file, function("misbehave")).unwrap();
    let calls = tokio::spawn({
        let node = node.clone();
        async move {
            loop {
                node.get("/fn/f/trap").await;
            }
        }
    });
    let file = file.to_str().unwrap();
    let arguments = ["deploy", "f", file, "--canary", "50", "--promote-after", "1h"];
    let told = node.weir(&arguments).await.unwrap_err();
    assert!(told.contains("canary 2 of function f was rolled back, because more calls fail"), "{told}");
    calls.abort();
    assert_eq!(active(&node).await, 1);
}

#[tokio::test]
async fn canary_that_takes_longer_is_rolled_back() {
    let node = start("canary=50").await;
    eventually("the rollback", async || {
        futures::future::join_all((0..10).map(|_| node.get("/fn/f/nap?60"))).await;
        node.function("f").await.unwrap().canary.is_none().then_some(())
    })
    .await;
    let event = decision(&node, EventKind::CanaryRolledBack).await;
    assert!(event.text.contains("because calls take longer"), "{}", event.text);
}
