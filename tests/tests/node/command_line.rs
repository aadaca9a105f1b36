//! Errors, warnings and exit codes of the command line.

use serde_json::{Value, json};
use std::process::Output;
use tokio::process::Command;
use weir_tests::{TestNode, function, model};

/// Result of a command.
#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn weir(node: &TestNode, arguments: &[&str]) -> Ended {
    let url = node.url("").to_string();
    let mut command = Command::new(node.binary());
    command.args(arguments).env("WEIR_URL", url.trim_end_matches('/')).env_remove("WEIR_JSON");
    let Output { status, stdout, stderr } = command.kill_on_drop(true).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

#[tokio::test]
async fn argument_errors_are_json_on_request_and_show_only_given_arguments() {
    let node = TestNode::start().await;
    let refused = weir(&node, &["models", "run", "lin", "--json"]).await;
    let error: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!(refused.status, Some(2));
    assert_eq!(error["error"], "the following required arguments were not provided: --data <DATA>");
    let refused = weir(&node, &["models", "run", "lin"]).await;
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("Usage: weir models run"), "{refused:?}");
    assert!(!refused.stderr.contains("--url"), "an argument of the environment is shown: {refused:?}");
    let help = weir(&node, &["models", "run", "--help", "--json"]).await;
    assert!(help.status == Some(0) && help.stdout.contains("Usage:"), "{help:?}");
}

#[tokio::test]
async fn unreadable_and_existing_files_have_the_exit_code_of_local_failures() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let existing = folder.path().join("weir.tar");
    std::fs::write(&existing, "").unwrap();
    for arguments in [
        &["invoke", "hello", "-d", "@missing"][..],
        &["models", "push", "m", "missing.onnx"],
        &["apply", "-f", "missing.yaml"],
        &["status", "--token-from", "missing"],
        &["backup", existing.to_str().unwrap()],
        &["new", "hello", "--dir", folder.path().to_str().unwrap()],
    ] {
        let failed = weir(&node, arguments).await;
        assert_eq!(failed.status, Some(1), "{arguments:?}: {failed:?}");
    }
    for arguments in [&["trace", "unknown"], &["why", "unknown"]] {
        let refused = weir(&node, arguments).await;
        assert_eq!(refused.status, Some(4), "{arguments:?}: {refused:?}");
        assert!(!refused.stderr.contains("weir invocations"), "{refused:?}");
    }
}

#[tokio::test]
async fn empty_selection_of_lines_is_refused() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    for arguments in [&["logs", "hello", "-n", "0"][..], &["events", "-n", "0"]] {
        let refused = weir(&node, arguments).await;
        assert_eq!(refused.status, Some(2), "{arguments:?}: {refused:?}");
    }
}

/// The hint named `weir models show`, which failed, too.
#[tokio::test]
async fn refused_runs_have_a_hint_for_their_cause() {
    let node = TestNode::start().await;
    node.push_model("lin", 1, model("good/matmul.onnx")).await;
    node.deploy("hello", function("hello")).await;
    let run = async |name: &str, body: &str| {
        let refused = weir(&node, &["models", "run", name, "-d", body]).await;
        assert_eq!(refused.status, Some(4), "{refused:?}");
        refused.stderr
    };
    let request = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
    let missing = run("ln", request).await;
    assert!(missing.contains("hint: `weir models`, `weir workflows`"), "{missing}");
    assert!(!missing.contains("/v2/repository"), "{missing}");
    assert!(run("hello", request).await.contains("hint: `weir invoke hello`"));
    for body in ["{", "[1, 2]", "[]", &format!(r#"["a", {{}}, [{request}], []]"#)] {
        let refused = run("lin", body).await;
        assert!(refused.contains("not an inference request"), "{body}: {refused}");
        assert!(refused.contains("hint: write it as {\"inputs\""), "{body}: {refused}");
    }
    let other = run("lin", &request.replace("\"x\"", "\"z\"")).await;
    assert!(other.contains("hint: `weir models show lin`"), "{other}");
}

#[tokio::test]
async fn copies_that_no_device_can_keep_are_reported() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.onnx");
    std::fs::write(&file, model("good/matmul.onnx")).unwrap();
    let pushed = weir(&node, &["models", "push", "m", file.to_str().unwrap(), "--copies-min", "5"]).await;
    assert_eq!(pushed.status, Some(0), "{pushed:?}");
    assert!(pushed.stderr.contains("warning: --copies-min 5 cannot be met"), "{pushed:?}");
    let shown = weir(&node, &["models", "show", "m"]).await.stdout;
    let copies = shown.lines().find(|line| line.starts_with("copies")).unwrap();
    assert!(copies.ends_with(" of 5 kept in the memory of devices"), "{copies}");
    assert!(shown.contains("version      1 (active)\n"), "{shown}");
    let refused = weir(&node, &["models", "push", "m", file.to_str().unwrap(), "--device", "gpu"]).await;
    assert!(!refused.stderr.contains("possible values"), "{refused:?}");
    let refused = weir(&node, &["models", "push", "m", file.to_str().unwrap(), "--device", "tpu"]).await;
    assert!(refused.stderr.contains("[possible values: any, cpu, cuda]"), "{refused:?}");
}

/// A second `create` resumed the trigger without a word.
#[tokio::test]
async fn replaced_trigger_stays_paused() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let create = ["triggers", "create", "t", "--every", "1h", "--function", "hello"];
    let created = weir(&node, &create).await;
    assert!(created.status == Some(0) && !created.stderr.contains("replaced"), "{created:?}");
    assert!(weir(&node, &create).await.stderr.contains("replaced t"));
    assert_eq!(weir(&node, &["triggers", "pause", "t"]).await.status, Some(0));
    let replaced = weir(&node, &create).await;
    assert!(replaced.stderr.contains("stays paused"), "{replaced:?}");
    let trigger: Value = node.get("/v1/triggers/t").await.ok().json();
    assert_eq!(trigger["spec"]["enabled"], false, "{trigger}");
    let refused = weir(&node, &["triggers", "create", "u", "--every", "1h"]).await;
    assert!(refused.stderr.contains("--function <NAME>|--inference <NAME>"), "{refused:?}");
    let removed = weir(&node, &["triggers", "delete", "t", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&removed.stdout).unwrap(), json!({"removed": "t"}));
}

#[tokio::test]
async fn limit_of_zero_has_no_hint_about_caps() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hello.wasm");
    std::fs::write(&file, function("hello")).unwrap();
    let deploy = ["deploy", "hello", file.to_str().unwrap(), "--limit", "deadline_ms=0"];
    let refused = weir(&node, &deploy).await;
    assert!(refused.stderr.contains("limits.deadline_ms must be at least 1"), "{refused:?}");
    assert!(!refused.stderr.contains("limit_caps"), "{refused:?}");
}

#[tokio::test]
async fn check_of_a_workflow_warns_of_outputs_that_a_step_does_not_declare() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.toml");
    let document = r#"
inputs = { x = "FP32[n, 4]" }
outputs = { y = "lin.y" }
[steps.scale]
run = "scale"
inputs = { x = "x" }
outputs = { y = "FP32[n, 4]" }
[steps.lin]
run = "lin"
inputs = { x = "scale.OUTPUT" }
"#;
    let check = async |output: &str| {
        std::fs::write(&file, document.replace("OUTPUT", output)).unwrap();
        weir(&node, &["workflows", "check", file.to_str().unwrap()]).await.stderr
    };
    assert_eq!(check("y").await, "");
    assert!(check("z").await.contains("warning: scale.z is read"));
    // A step cannot run an HTTP function, and the error says so.
    node.deploy("scale", function("hello")).await;
    node.push_model("lin", 1, model("good/matmul.onnx")).await;
    let deployed = weir(&node, &["workflows", "deploy", "w", file.to_str().unwrap()]).await;
    assert!(deployed.stderr.contains("scale is an HTTP function"), "{deployed:?}");
}
