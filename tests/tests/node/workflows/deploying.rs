//! Workflow versions and their references.

use super::{deploy, fake, fake_node, infer, rows, step, workflow};
use serde_json::{Value, json};
use weir_tests::{TestNode, function, with_custom_section};
use weir_types::api::{ModelPushed, Workflow, WorkflowDeployed, WorkflowVersion};
use weir_types::{ErrorCode, Version};

#[tokio::test]
async fn deployed_workflow_is_described() {
    let node = fake_node(&["m"], &[]).await;
    let document =
        format!("description = \"twice\"\n{}", workflow(&(step("a", "m", "x") + &step("b", "m", "a")), "b"));
    let deployed: WorkflowDeployed = deploy(&node, "twice", &document).await.ok().json();
    assert!(deployed.created);
    assert_eq!(deployed.path, "/v2/models/twice/infer");
    let version = deployed.workflow;
    assert_eq!(
        (version.version, version.active, version.ready, version.reason.as_deref()),
        (Version(1), true, true, None)
    );
    assert_eq!((version.description.as_str(), &version.document), ("twice", &document));
    let steps: Vec<_> = version
        .steps
        .iter()
        .map(|step| (step.name.as_str(), step.action.as_str(), step.reads.clone()))
        .collect();
    assert_eq!(steps, [("a", "run m:1", vec!["x".to_owned()]), ("b", "run m:1", vec!["a".to_owned()])]);
    let shown: Workflow = node.get("/v1/workflows/twice").await.ok().json();
    assert_eq!((&shown.active, &shown.versions[..]), (&version, &[Version(1)][..]));
    let listed: Vec<Workflow> = node.get("/v1/workflows").await.ok().json();
    assert_eq!(listed, [shown]);
    assert_eq!(node.metric("weir_workflows", "").await, 1.0);

    // An identical document is the same version; equal JSON is another document.
    let same: WorkflowDeployed = deploy(&node, "twice", &document).await.ok().json();
    assert_eq!((same.created, same.workflow.version), (false, Version(1)));
    let json = json!({
        "inputs": {"x": "FP32[n, 4]"}, "outputs": {"y": "a"}, "steps": {"a": {"run": "m", "inputs": {"x": "x"}}},
    });
    let tried =
        node.put("/v1/workflows/twice?dry_run=true", json.to_string()).await.ok().json::<WorkflowDeployed>();
    assert_eq!((tried.created, tried.workflow.version, tried.workflow.active), (false, Version(2), false));
    assert_eq!(node.get("/v1/workflows/twice/versions/2").await.code(), ErrorCode::VersionNotFound);
    let next: WorkflowDeployed = deploy(&node, "twice", &json.to_string()).await.ok().json();
    assert_eq!((next.created, next.workflow.version), (true, Version(2)));
}

#[tokio::test]
async fn workflow_versions_pin_their_models_across_restarts() {
    let node = fake_node(&["m"], &[]).await;
    deploy(&node, "w", &workflow(&step("a", "m", "x"), "a")).await.ok();
    // A workflow uses a newer model only after a new deployment.
    node.push_model("m", 2, fake(1.0)).await;
    let ran = async |node: &TestNode| {
        let shown: Workflow = node.get("/v1/workflows/w").await.ok().json();
        infer(node, "w", &rows(&[0.0; 4])).await.ok();
        (shown.active.version.0, shown.active.steps[0].action.clone())
    };
    assert_eq!(ran(&node).await, (1, "run m:1".to_owned()));
    deploy(&node, "w", &workflow(&step("a", "m", "x"), "a")).await.ok();
    assert_eq!(ran(&node).await, (2, "run m:2".to_owned()));
    deploy(&node, "w", &workflow(&step("a", "m:1", "x"), "a")).await.ok();
    assert_eq!(ran(&node).await, (3, "run m:1".to_owned()));

    let node = node.kill().await.start().await;
    assert_eq!(ran(&node).await.0, 3);
    let back: Workflow = node.post("/v1/workflows/w/rollback", "").await.ok().json();
    assert_eq!(back.active.version, Version(2));
    assert_eq!(ran(&node).await, (2, "run m:2".to_owned()));
    node.post("/v1/workflows/w/rollback", r#"{"version": 1}"#).await.ok();
    assert_eq!(ran(&node).await.0, 1);
    assert_eq!(node.post("/v1/workflows/w/rollback", "").await.code(), ErrorCode::VersionNotFound);
    // An inactive version is called by its number.
    let answer: Value =
        node.post("/v2/models/w/versions/3/infer", rows(&[0.0; 4]).to_string()).await.ok().json();
    assert_eq!(answer["model_version"], "3");
    assert_eq!(node.delete("/v1/workflows/w/versions/1").await.code(), ErrorCode::Conflict);
    assert_eq!(node.delete("/v1/workflows/w/versions/3").await.status, 204);
    let versions: Vec<WorkflowVersion> = node.get("/v1/workflows/w/versions").await.ok().json();
    assert_eq!(versions.iter().map(|version| version.version.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(node.delete("/v1/workflows/w").await.status, 204);
    assert_eq!(infer(&node, "w", &rows(&[0.0; 4])).await.code(), ErrorCode::ModelNotFound);
    assert_eq!(node.get("/v1/workflows/w").await.code(), ErrorCode::WorkflowNotFound);
}

#[tokio::test]
async fn referenced_models_and_functions_cannot_be_deleted() {
    let node = fake_node(&["m"], &[]).await;
    node.push_model("m", 2, fake(0.0)).await;
    node.deploy("echo", function("echo-tensor")).await;
    let echo = "[steps.f]\nrun = \"echo\"\ninputs = { y = \"x\" }\noutputs = { y = \"FP32[n, 4]\" }\n";
    deploy(&node, "inner", &workflow(&format!("{echo}{}", step("a", "m:1", "f")), "a")).await.ok();
    deploy(&node, "outer", &workflow(&step("a", "inner", "x"), "a")).await.ok();
    for (path, user) in [
        ("/v1/models/m", "inner:1"),
        ("/v1/models/m/versions/1", "inner:1"),
        ("/v1/functions/echo", "inner:1"),
        ("/v1/workflows/inner", "outer:1"),
    ] {
        let refused = node.delete(path).await.refusal();
        assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict), "{path}");
        assert!(refused.text.contains(&format!("workflow {user} runs it")), "{path}: {}", refused.text);
    }
    assert_eq!(
        node.delete("/v1/models/m/versions/2").await.status,
        204,
        "a version that no workflow runs could not be deleted"
    );
    infer(&node, "outer", &rows(&[0.0; 4])).await.ok();
    for path in ["/v1/workflows/outer", "/v1/workflows/inner", "/v1/functions/echo", "/v1/models/m"] {
        assert_eq!(node.delete(path).await.status, 204, "{path}");
    }
}

#[tokio::test]
async fn versions_that_a_workflow_runs_are_kept() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.versions_keep", 1)
        .set("sandbox.versions_keep", 1)
        .start()
        .await;
    node.push_model("m", 1, fake(0.0)).await;
    node.deploy("echo", function("echo-tensor")).await;
    let echo = "[steps.f]\nrun = \"echo\"\ninputs = { y = \"x\" }\noutputs = { y = \"FP32[n, 4]\" }\n";
    deploy(&node, "w", &workflow(&format!("{echo}{}", step("a", "m", "f")), "a")).await.ok();
    let other = with_custom_section(&function("echo-tensor"), "2");
    assert_eq!(node.deploy("echo", other).await.removed_versions, []);
    let push =
        async |run_time_ms| -> ModelPushed { node.put("/v1/models/m", fake(run_time_ms)).await.ok().json() };
    assert_eq!(push(1.0).await.removed_versions, []);
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();
    node.delete("/v1/workflows/w").await.ok();
    assert_eq!(push(2.0).await.removed_versions, [Version(1), Version(2)]);
    let other = with_custom_section(&function("echo-tensor"), "3");
    assert_eq!(node.deploy("echo", other).await.removed_versions, [Version(1), Version(2)]);
}

#[tokio::test]
async fn names_are_unique_across_models_functions_and_workflows() {
    let node = fake_node(&["m"], &[]).await;
    node.deploy("f", function("hello")).await;
    let document = workflow(&step("a", "m", "x"), "a");
    for (name, what) in [("m", "model"), ("f", "function")] {
        let refused = deploy(&node, name, &document).await.refusal();
        assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict));
        assert!(refused.text.contains(&format!("a {what} {name} exists already")), "{}", refused.text);
    }
    deploy(&node, "w", &document).await.ok();
    assert_eq!(node.try_push_model("w", 1, fake(0.0)).await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(node.try_deploy("w", "", function("hello")).await.unwrap_err().code, ErrorCode::Conflict);
}

#[tokio::test]
async fn workflows_are_separate_per_tenant() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .tokens(&["one-token-of-one one", "one-token-of-two two"])
        .start()
        .await;
    let one = node.with_token("one-token-of-one");
    let two = node.with_token("one-token-of-two");
    one.push_model("m", 1, fake(0.0)).await;
    deploy(&one, "w", &workflow(&step("a", "m", "x"), "a")).await.ok();
    infer(&one, "w", &rows(&[0.0; 4])).await.ok();
    assert_eq!(infer(&two, "w", &rows(&[0.0; 4])).await.code(), ErrorCode::ModelNotFound);
    assert_eq!(two.get("/v1/workflows/w").await.code(), ErrorCode::WorkflowNotFound);
    let refused = deploy(&two, "w", &workflow(&step("a", "m", "x"), "a")).await.refusal();
    assert!(refused.text.contains("there is no model, tensor function or workflow m"), "{}", refused.text);
}
