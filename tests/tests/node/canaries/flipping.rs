//! Changes of versions under load.

use super::{ANSWERS, version_of};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use weir_tests::{TestNode, function};

/// Calls at 300 a second, while another version becomes active a hundred times: each answer is
/// complete, and of the version that it names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_flips_under_load_fail_and_mix_no_answer() {
    const FLIPS: u32 = 100;
    let node = Arc::new(TestNode::start().await);
    for component in ["hello", "misbehave"] {
        node.deploy("f", function(component)).await;
    }
    let calls = tokio::spawn({
        let node = node.clone();
        async move {
            let mut pace = tokio::time::interval(Duration::from_micros(3_333));
            pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut tasks = tokio::task::JoinSet::new();
            let mut answered = [0; 2];
            loop {
                tokio::select! {
                    _ = pace.tick() => {
                        let node = node.clone();
                        tasks.spawn(async move { node.get("/fn/f/behave").await.ok() });
                    }
                    Some(answer) = tasks.join_next() => {
                        let answer = answer.unwrap();
                        let version = version_of(&answer) as usize;
                        assert_eq!(answer.text(), ANSWERS[version - 1], "version {version}");
                        answered[version - 1] += 1;
                        if answered.iter().sum::<u32>() == 3_000 {
                            return answered;
                        }
                    }
                }
            }
        }
    });
    let mut pace = tokio::time::interval(Duration::from_millis(90));
    for flip in 0..FLIPS {
        pace.tick().await;
        node.roll_back("f", Some(1 + flip % 2)).await.ok();
    }
    let answered = calls.await.unwrap();
    assert!(answered.iter().all(|answered| *answered > 300), "{answered:?}");
}
