//! Requests that Schemathesis generates from the document.

use super::calls::{fake, minilm, workflow};
use crate::kernel_graphs::packed;
use serde_json::json;
use weir_tests::{TestClient, TestNode, function, schemathesis};

const TOKEN: &str = "acme-token-0123456789";

/// Makes the resources that the dictionaries of `tests/clients/schemathesis.toml` and the examples
/// of the document name.
async fn prepare(node: &TestClient) {
    let trigger = json!({"source": {"cron": "@daily"}, "target": {"function": "digits"}}).to_string();
    node.push_model("minilm", 1, minilm()).await;
    for name in ["digits", "embed-text", "spare-1", "spare-2"] {
        for version in [1, 2] {
            node.push_model(name, version, fake(0)).await;
        }
        for settings in ["", "&limits.deadline_ms=5000", "&limits.deadline_ms=6000&canary=10"] {
            node.deploy_with(name, &format!("models=minilm{settings}"), function("embed-text")).await;
        }
        node.put(&format!("/v1/objects/{name}"), "text").await.ok();
        node.put(&format!("/v1/triggers/{name}"), trigger.clone()).await.ok();
        node.put(&format!("/v1/keys/{name}"), r#"{"scopes": ["read"]}"#).await.ok();
    }
    for name in ["API_KEY", "SPARE"] {
        node.put(&format!("/v1/secrets/{name}"), "value").await.ok();
    }
    for name in ["steps", "spare-steps"] {
        for model in ["digits", "digits:1"] {
            node.put(&format!("/v1/workflows/{name}"), workflow(model)).await.ok();
        }
    }
    for name in ["jacobi", "spare-graph"] {
        for version in [1, 2] {
            let path = format!("/v1/kernel-graphs/{name}/versions/{version}");
            node.put(&path, packed("jacobi").to_string()).await.ok();
        }
    }
}

#[tokio::test]
async fn generated_requests_get_documented_answers() {
    let node = TestNode::builder()
        .tokens(&[&format!("{TOKEN} acme")])
        .set("models.backend", "fake")
        .set("kernel_graphs.enabled", true)
        .start()
        .await;
    prepare(&node.with_token(TOKEN)).await;
    // Hypothesis writes into its working directory.
    let folder = tempfile::tempdir().unwrap();
    let output = schemathesis()
        .args(["run", node.url("/v1/openapi.yaml").as_str(), "--url", node.url("/").as_str()])
        .env("WEIR_TOKEN", TOKEN)
        .current_dir(folder.path())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("No issues found"), "{text}\n{errors}");
}
