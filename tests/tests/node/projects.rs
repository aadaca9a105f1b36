//! From `weir new` to a call, outside the repository: what is in the binary and on crates.io is enough.

use std::path::{Path, PathBuf};
use std::process::Command;
use weir_tests::{Client, Node, function};

/// Run `weir` and see that it succeeds.
async fn weir(node: &Node, folder: &Path, arguments: &[&str]) {
    // The program that the node runs is the one to test.
    let program: PathBuf = std::fs::read_link(format!("/proc/{}/exe", node.pid())).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("WEIR_URL", format!("http://{}", node.address()));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "weir {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn shout(client: &Client) -> String {
    client.post("/fn/my.shout/shout", "grüezi").await.ok().text().to_owned()
}

#[tokio::test]
async fn a_new_http_function_is_built_deployed_and_called() {
    let node = Node::start().await;
    let folder = tempfile::tempdir().unwrap();
    weir(&node, folder.path(), &["new", "my.shout"]).await;
    weir(&node, &folder.path().join("my.shout"), &["deploy"]).await;
    assert_eq!(shout(&node).await, "GRÜEZI");
    assert_eq!(node.get("/fn/my.shout/").await.ok().text(), "hello from my.shout\n");
    assert_eq!(node.get("/fn/my.shout/else").await.status, 404);
    let logged = weir_tests::eventually("the log line", async || {
        node.logs("my.shout").await.into_iter().find(|line| line.stream == "stdout")
    });
    assert_eq!(logged.await.text, "shouted 7 bytes");
}

#[tokio::test]
async fn a_new_tensor_function_is_built_deployed_and_called() {
    let node = Node::start().await;
    let folder = tempfile::tempdir().unwrap();
    weir(&node, folder.path(), &["new", "scale", "--kind", "tensor"]).await;
    weir(&node, &folder.path().join("scale"), &["deploy"]).await;
    let call = |inputs: &str| {
        let (client, body) = (node.client().clone(), format!(r#"{{"inputs":[{inputs}]}}"#));
        async move { client.post("/fn/scale", body).await }
    };
    let answer = call(r#"{"name":"x","datatype":"FP32","shape":[3],"data":[1,2,5]}"#).await.ok();
    let answer: serde_json::Value = answer.json();
    assert_eq!(answer["outputs"][0]["name"], "y");
    assert_eq!(answer["outputs"][0]["data"], serde_json::json!([0.0, 0.25, 1.0]));
    for (wrong, why) in [
        (r#"{"name":"z","datatype":"FP32","shape":[1],"data":[1]}"#, "there is no tensor x"),
        (r#"{"name":"x","datatype":"INT64","shape":[1],"data":[1]}"#, "holds int64 and not fp32"),
    ] {
        let refusal = call(wrong).await.refusal();
        assert_eq!(refusal.status, 400, "{wrong}: {}", refusal.text);
        assert!(refusal.text.contains(why), "{}", refusal.text);
    }
}

/// The node's part of that, so that a failure above is the project's.
#[tokio::test]
async fn functions_may_have_dots_in_their_names() {
    let node = Node::start().await;
    node.deploy("my.shout", function("hello")).await;
    assert_eq!(node.get("/fn/my.shout").await.ok().text(), "hello\n");
}
