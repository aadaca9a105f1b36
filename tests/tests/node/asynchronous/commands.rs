//! Asynchronous invocations on the command line.

use serde_json::Value;
use std::process::Output;
use tokio::process::Command;
use weir_tests::{TestNode, function};
use weir_types::api::{Invocation, InvocationStatus};

async fn weir(node: &TestNode, arguments: &[&str]) -> Output {
    let mut command = Command::new(node.binary());
    command.args(arguments).env("WEIR_URL", node.url("").as_str().trim_end_matches('/')).kill_on_drop(true);
    command.output().await.unwrap()
}

async fn stdout(node: &TestNode, arguments: &[&str]) -> String {
    let output = weir(node, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "weir {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn invoke_show_and_result_commands_work() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    let id = stdout(&node, &["invoke", "echo", "/x", "-d", "hello", "--async"]).await;
    let id = id.trim();
    let shown = stdout(&node, &["invocations", "show", id, "--wait"]).await;
    assert!(shown.contains("done") && shown.contains("echo"), "{shown}");
    assert_eq!(stdout(&node, &["invocations", "result", id]).await, "hello");
    assert!(stdout(&node, &["invocations"]).await.contains(id));
    let list: Value =
        serde_json::from_str(&stdout(&node, &["invocations", "list", "--status", "done", "--json"]).await)
            .unwrap();
    assert_eq!(list["invocations"][0]["id"], id);
    // An equal call with the same key is the same invocation; `--wait` returns the response.
    let keyed = ["invoke", "echo", "-d", "once", "--async", "--idempotency-key", "k", "--json"];
    let [first, again]: [Invocation; 2] = [
        serde_json::from_str(&stdout(&node, &keyed).await).unwrap(),
        serde_json::from_str(&stdout(&node, &keyed).await).unwrap(),
    ];
    assert_eq!(first.id, again.id);
    assert_eq!(
        stdout(&node, &["invoke", "echo", "-d", "waited for", "--async", "--wait", "-q"]).await,
        "waited for"
    );
    stdout(&node, &["invocations", "rm", id]).await;
    let gone = weir(&node, &["invocations", "show", id]).await;
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert_eq!(gone.status.code(), Some(4), "{said}");
    assert!(said.contains("invocation-not-found") && said.contains("weir invocations"), "{said}");
}

#[tokio::test]
async fn failed_invocations_are_shown_retried_and_cancelled() {
    let node = TestNode::builder().set("async.attempts_max", 1).set("async.running_max", 1).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let failed = weir(&node, &["invoke", "f", "/trap", "--async", "--wait"]).await;
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(4), "{said}");
    assert!(said.contains("guest-trap"), "{said}");
    let dead = node.invocations("status=dead").await[0].id.to_string();
    let running = node.post_later("/fn/f/sleep", "").await;
    node.until(running.id, InvocationStatus::Running).await;
    let retried = stdout(&node, &["invocations", "retry", &dead]).await;
    assert!(retried.contains("restarted"), "{retried}");
    let early = weir(&node, &["invocations", "result", &dead]).await;
    assert!(String::from_utf8_lossy(&early.stderr).contains("not-ended"));
    let refused = weir(&node, &["invocations", "rm", &dead]).await;
    assert!(!refused.status.success(), "an invocation that has not ended was removed");
    for id in [&dead, &running.id.to_string()] {
        stdout(&node, &["invocations", "cancel", id]).await;
        let again = weir(&node, &["invocations", "cancel", id]).await;
        assert_eq!(again.status.code(), Some(4));
    }
    for wrong in [
        &["invocations", "show", "x"] as &[_],
        &["invocations", "list", "--status", "asleep"],
        &["invoke", "f", "--wait"],
    ] {
        assert_eq!(weir(&node, wrong).await.status.code(), Some(2), "{wrong:?}");
    }
}
