//! `weir demo`.

use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use weir_tests::{TestClient, TestNode, signal};

#[tokio::test]
async fn demo_classifies_its_picture_and_removes_its_data() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(TestNode::builder().binary());
    command.args(["demo", "--listen", "127.0.0.1:0", "--json"]).env("TMPDIR", scratch.path());
    // Libraries, too, leave nothing.
    command.env("HOME", scratch.path()).env_remove("XDG_CACHE_HOME").env_remove("ORT_DISABLE_TELEMETRY");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut demo = command.spawn().unwrap();
    let mut stdout = BufReader::new(demo.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).await.unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap();
    let mut text = String::new();
    while serde_json::from_str::<Value>(&text).is_err() {
        let read = tokio::time::timeout(Duration::from_secs(120), stdout.read_line(&mut text));
        assert!(read.await.unwrap().unwrap() > 0, "the demo ended after {text}");
    }
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["answer"]["digit"], 7, "{result}");
    let url = listening["listening"].as_str().unwrap();
    assert_eq!(result["dashboard"], format!("{url}/ui"));

    // The command that the demo prints.
    let picture = std::fs::read(Path::new(result["picture"].as_str().unwrap())).unwrap();
    let answer = TestClient::new(url.to_owned()).post("/fn/classify-digits/", picture).await.ok();
    assert_eq!(answer.json::<Value>()["digit"], 7);

    signal(demo.id().unwrap(), "INT");
    let status = tokio::time::timeout(Duration::from_secs(60), demo.wait()).await.unwrap().unwrap();
    let mut notes = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut notes).await.unwrap();
    assert!(status.success(), "{status}: {notes}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the demo left its data");
}

/// A first Ctrl-C during the set-up had no effect.
#[tokio::test]
async fn interrupt_during_setup_ends_demo_and_removes_its_data() {
    for step in ["optimising the model", "compiling the function"] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new(TestNode::builder().binary());
        command.args(["demo", "--listen", "127.0.0.1:0", "--no-open"]).env("TMPDIR", scratch.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut demo = command.spawn().unwrap();
        let mut notes = BufReader::new(demo.stderr.take().unwrap()).lines();
        while let Some(note) = notes.next_line().await.unwrap() {
            if note.contains(step) {
                break;
            }
        }
        signal(demo.id().unwrap(), "INT");
        let ended = tokio::time::timeout(Duration::from_secs(20), demo.wait());
        let status = ended.await.expect("the demo did not end").unwrap();
        assert!(status.success(), "{step}: {status}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "{step}: the demo left its data");
    }
}
