//! Changes of versions under load.

use super::{ANSWERS, IN_FLIGHT_MAX, version_of};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use weir_tests::{TestNode, function};

/// Calls at 300 a second, or fewer if the node cannot serve as many, while another version becomes
/// active a hundred times: each answer is complete, and of the version that it names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_flips_under_load_fail_and_mix_no_answer() {
    const FLIPS: u32 = 100;
    let node = Arc::new(TestNode::start().await);
    for component in ["hello", "misbehave"] {
        node.deploy("f", function(component)).await;
    }
    let began = Instant::now();
    let (end, ended) = oneshot::channel();
    let calls = tokio::spawn(call_until(ended, node.clone()));
    let mut pace = tokio::time::interval(Duration::from_millis(90));
    for flip in 0..FLIPS {
        pace.tick().await;
        node.roll_back("f", Some(1 + flip % 2)).await.ok();
    }
    let took = began.elapsed();
    end.send(()).unwrap();
    let answered = calls.await.unwrap();
    println!("{FLIPS} flips in {took:?}; answers of the versions: {answered:?}");
    assert!(answered.iter().all(|answered| *answered > 300), "{answered:?}");
}

/// Returns the number of answers of each version.
async fn call_until(mut ended: oneshot::Receiver<()>, node: Arc<TestNode>) -> [u32; 2] {
    let mut pace = tokio::time::interval(Duration::from_micros(3_333));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut tasks = JoinSet::new();
    let mut answered = [0; 2];
    let mut count = |version: usize| answered[version - 1] += 1;
    loop {
        tokio::select! {
            biased;
            _ = &mut ended => break,
            _ = pace.tick(), if tasks.len() < IN_FLIGHT_MAX => {
                let node = node.clone();
                tasks.spawn(async move {
                    let answer = node.get("/fn/f/behave").await.ok();
                    let version = version_of(&answer) as usize;
                    assert_eq!(answer.text(), ANSWERS[version - 1], "version {version}");
                    version
                });
            }
            Some(version) = tasks.join_next() => count(version.unwrap()),
        }
    }
    tasks.join_all().await.into_iter().for_each(count);
    answered
}
