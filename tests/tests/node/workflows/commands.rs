//! Tests for the `weir workflows` command.

use super::{fake_node, infer, rows, step, workflow};
use serde_json::Value;

#[tokio::test]
async fn workflows_are_managed_from_the_command_line() {
    let node = fake_node(&["m"], &[]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, workflow(&step("a", "m", "x"), "a")).unwrap();

    assert!(node.weir(&["workflows", "check", path]).await.unwrap().contains("is sound: 1 step"));
    let tried = node.weir(&["workflows", "deploy", "w", path, "--dry-run"]).await.unwrap();
    assert!(tried.starts_with("would deploy w:1\n"), "{tried}");
    assert!(node.weir(&["workflows"]).await.unwrap().starts_with("no workflows are deployed"));
    let deployed = node.weir(&["workflows", "deploy", "w", path]).await.unwrap();
    assert!(deployed.starts_with("deployed w:1\ninputs       x: FP32[?, 4]\n"), "{deployed}");
    assert!(node.weir(&["workflows", "deploy", "w", path]).await.unwrap().starts_with("unchanged: w:1"));
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();

    std::fs::write(&file, workflow(&(step("a", "m", "x") + &step("b", "m", "a")), "b")).unwrap();
    let deployed = node.weir(&["workflows", "deploy", "w", path, "--json"]).await.unwrap();
    let deployed: Value = serde_json::from_str(&deployed).unwrap();
    assert_eq!((&deployed["version"], &deployed["created"]), (&2.into(), &true.into()));
    let shown = node.weir(&["workflows", "show", "w"]).await.unwrap();
    assert!(shown.contains("version      2 (active)") && shown.contains("b      run m:1   a"), "{shown}");
    let document = node.weir(&["workflows", "show", "w", "--document"]).await.unwrap();
    assert_eq!(document, std::fs::read_to_string(&file).unwrap());
    let versions = node.weir(&["workflows", "versions", "w", "--json"]).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&versions).unwrap().as_array().unwrap().len(), 2);
    assert_eq!(node.weir(&["workflows", "rollback", "w"]).await.unwrap(), "w is at version 1 now\n");
    assert_eq!(node.weir(&["workflows", "rm", "w", "--version", "2"]).await.unwrap(), "removed w:2\n");

    let refused = node.weir(&["models", "rm", "m"]).await.unwrap_err();
    assert!(refused.contains("workflow w:1 runs it"), "{refused}");
    std::fs::write(&file, workflow(&step("a", "m", "b"), "a")).unwrap();
    let unsound = node.weir(&["workflows", "deploy", "w", path]).await.unwrap_err();
    assert!(unsound.contains("is not a workflow: step a, input x: there is no b"), "{unsound}");
    assert_eq!(node.weir(&["workflows", "rm", "w"]).await.unwrap(), "removed w\n");
    let gone = node.weir(&["workflows", "show", "w"]).await.unwrap_err();
    assert!(gone.contains("code: workflow-not-found (HTTP 404)"), "{gone}");
}
