//! `weir deploy --watch` against a running node.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use weir_tests::{Language, TestNode, TestProject, eventually_within, signal};

/// Time limit for the first build and deployment on a busy machine.
const BUILD_TIME_MAX: Duration = Duration::from_secs(300);
/// Time limit for an edit. Building the interpreter again takes longer, also on an idle machine.
const EDIT_TIME_MAX: Duration = Duration::from_secs(10);

/// Process that is killed at the end of a failed test.
struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn edits_of_a_watched_python_function_replace_its_modules() {
    if !Language::Python.is_here() {
        return;
    }
    let builder = TestNode::builder();
    let project = TestProject::new(&builder, Language::Python, "http", "shout").await;
    let node = builder.start().await;
    let app = project.folder().join("app.py");
    let original = fs::read_to_string(&app).unwrap();
    let printed = project.folder().join(".printed");
    let mut command = project.against(&node, &["deploy", "--watch"]);
    command.stdout(fs::File::create(&printed).unwrap()).stderr(Stdio::inherit());
    let mut watch = Watch(command.spawn().unwrap());

    let deployed = async || node.function("shout").await.ok();
    eventually_within(BUILD_TIME_MAX, "the function on the node", deployed).await;
    assert_eq!(node.get("/fn/shout/").await.ok().text(), "hello from shout\n");

    let edit = async |text: &str, answer: &str| {
        fs::write(&app, text).unwrap();
        let answered = async || (node.get("/fn/shout/").await.text() == answer).then_some(());
        eventually_within(EDIT_TIME_MAX, answer, answered).await;
    };
    fs::write(project.folder().join("words.py"), "WORD = 'one'\n").unwrap();
    let changed = original.replace("from weir import", "from words import WORD\nfrom weir import");
    let changed = changed.replace("\"hello from shout\\n\"", "f\"{WORD} more\"");
    edit(&changed, "one more").await;
    // An error in a module is an answer, and the next edit repairs it.
    fs::write(&app, format!("{changed}\nraise ValueError('not yet')\n")).unwrap();
    let failed = async || (node.get("/fn/shout/").await.status == 502).then_some(());
    eventually_within(EDIT_TIME_MAX, "the error", failed).await;
    edit(&changed.replace("more", "at last"), "one at last").await;
    assert_eq!(node.function("shout").await.unwrap().versions.len(), 1);

    node.post("/fn/shout/shout", "hi").await.ok();
    let shown = async || {
        let printed = fs::read_to_string(&printed).unwrap();
        (printed.contains("shouted 2 bytes") && printed.contains("ValueError: not yet")).then_some(())
    };
    eventually_within(EDIT_TIME_MAX, "the log", shown).await;

    let interrupted = Instant::now();
    signal(watch.0.id(), "INT");
    let status = tokio::task::spawn_blocking(move || watch.0.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    assert!(interrupted.elapsed() < EDIT_TIME_MAX);
}
