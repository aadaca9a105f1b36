//! Models and kernel graphs.

use super::{ResponseChecker, fake, workflow};
use crate::kernel_graphs::{packed, with_kernel_graphs};
use serde_json::json;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    checker.put(("pushNextModel", 200), "/v1/models/n", fake(0)).await;
    let manifest = "slots=2&device=cpu&precision=fp32&slo_ms=60000&cost_slo=1&cache_ttl_ms=1000&autosize.slo_ms=50\
                    &batching.size_max=4&batching.preferred_sizes=2,4";
    let settings = format!("/v1/models/n/versions/7?{manifest}");
    checker.put(("pushModel", 200), &settings, fake(0)).await;
    let labels = [("labels", "a"), ("labels.y", "a")].map(|(field, text)| {
        reqwest::multipart::Form::new()
            .text(field, text)
            .part("model", reqwest::multipart::Part::text(fake(0)))
    });
    for form in labels {
        let path = "/v1/models/labelled/versions/1";
        checker.send(("pushModel", 200), path, |request| request.multipart(form)).await;
    }
    checker.call(("showConfig", 200), "/v2/models/labelled/config").await;
    checker.call(("showModel", 200), "/v1/models/labelled").await;
    checker.put(("pushModel", 409), "/v1/models/n/versions/7", fake(1)).await;
    checker.put(("pushModel", 400), "/v1/models/n/versions/8?slots=none", fake(0)).await;
    checker.put(("pushModel", 422), "/v1/models/n/versions/8", "no model").await;
    checker.put(("pushNextModel", 400), "/v1/models/n?unknown=1", fake(0)).await;
    checker.put(("pushNextModel", 422), "/v1/models/n", "no model").await;
    checker.call(("listModels", 200), "/v1/models").await;
    checker.call(("showModel", 200), "/v1/models/n").await;
    checker.call(("showModelVersion", 200), "/v1/models/n/versions/7").await;
    checker.call(("showModelVersion", 400), "/v1/models/n/versions/seven").await;
    checker.call(("releaseModelVersion", 409), "/v1/models/n/versions/7/release").await;
    sizing(checker).await;
    canary(checker).await;
    super::aliases(checker, "Model", "/v1/models/n", 7).await;

    checker.put(("deployWorkflow", 200), "/v1/workflows/w-of-n", workflow("n")).await;
    checker.put(("pushNextModel", 409), "/v1/models/w-of-n", fake(0)).await;
    checker.call(("deleteModel", 409), "/v1/models/n").await;
    checker.call(("deleteModelVersion", 409), "/v1/models/n/versions/7").await;
    checker.call(("deleteWorkflow", 204), "/v1/workflows/w-of-n").await;
    checker.call(("deleteModelVersion", 204), "/v1/models/n/versions/7").await;
    checker.put(("rollBackModel", 409), "/v1/models/n/rollback", "{}").await;
    checker.put(("rollBackModel", 200), "/v1/models/n/rollback", r#"{"version": 1}"#).await;
    checker.put(("rollBackModel", 400), "/v1/models/n/rollback", "{]").await;
    checker.call(("deleteModel", 204), "/v1/models/n").await;
}

async fn canary(checker: &mut ResponseChecker<'_>) {
    checker.put(("pushNextModel", 200), "/v1/models/split", fake(0)).await;
    checker.call(("showModelCanary", 404), "/v1/models/split/canary").await;
    checker.call(("promoteModelCanary", 404), "/v1/models/split/promote").await;
    checker.put(("pushNextModel", 400), "/v1/models/split?canary=100", fake(1)).await;
    checker.put(("pushModel", 409), "/v1/models/split/versions/1?canary=10", fake(0)).await;
    let path = "/v1/models/split?canary=10&promote_after_ms=600000";
    checker.put(("pushNextModel", 200), path, fake(1)).await;
    checker.call(("showModel", 200), "/v1/models/split").await;
    checker.call(("showModelCanary", 200), "/v1/models/split/canary").await;
    checker.call(("showModelCanary", 400), "/v1/models/UPPER/canary").await;
    checker.call(("showModelShadow", 404), "/v1/models/split/shadow").await;
    checker.call(("showModelShadow", 400), "/v1/models/UPPER/shadow").await;
    checker.call(("promoteModelCanary", 200), "/v1/models/split/promote").await;
    checker.put(("pushNextModel", 200), "/v1/models/split?preview=true", fake(2)).await;
    checker.put(("promoteModelCanary", 200), "/v1/models/split/promote", r#"{"version": 3}"#).await;
    checker.put(("promoteModelCanary", 404), "/v1/models/split/promote", r#"{"version": 9}"#).await;
    checker.call(("promoteModelCanary", 400), "/v1/models/UPPER/promote").await;
    checker.put(("pushNextModel", 400), "/v1/models/split?shadow=101", fake(3)).await;
    checker.put(("pushNextModel", 200), "/v1/models/split?shadow=100", fake(3)).await;
    checker.call(("showModel", 200), "/v1/models/split").await;
    checker.call(("showModelShadow", 200), "/v1/models/split/shadow").await;
    checker.call(("deleteModel", 204), "/v1/models/split").await;
}

async fn sizing(checker: &mut ResponseChecker<'_>) {
    let capacity = "/v1/models/m/capacity?rate=10";
    checker.call(("planCapacity", 422), &format!("{capacity}&slo_ms=60000")).await;
    checker.call(("planCapacity", 400), capacity).await;
    let request = json!({"threads": [1], "batch": [1, 2], "concurrency": [1], "duration_ms": 20});
    let profiled = checker.put(("profileModel", 200), "/v1/models/m/profile", request.to_string()).await;
    for event in ["started", "measured", "done"] {
        assert!(profiled.text().contains(&format!("\"event\":\"{event}\"")), "{profiled:?}");
    }
    checker.put(("profileModel", 400), "/v1/models/m/profile", r#"{"thread": 1}"#).await;
    checker.call(("planCapacity", 200), &format!("{capacity}&slo_ms=60000&version=1")).await;
    checker.call(("showModel", 200), "/v1/models/m").await;
}

/// Uses another node, which has a GPU.
pub(in super::super) async fn call_kernel_graphs(checker: &mut ResponseChecker<'_>) {
    let node = with_kernel_graphs().start().await;
    checker.use_client(node.client());
    let graph = packed("sgemm-chain").to_string();
    let other = packed("jacobi").to_string();
    checker.put(("pushNextKernelGraph", 200), "/v1/kernel-graphs/g", graph.clone()).await;
    checker.put(("rollBackKernelGraph", 409), "/v1/kernel-graphs/g/rollback", "{}").await;
    checker
        .put(
            ("pushKernelGraph", 200),
            "/v1/kernel-graphs/g/versions/2?slo_ms=60000&allow_signature_change=true",
            other.clone(),
        )
        .await;
    checker.put(("pushKernelGraph", 409), "/v1/kernel-graphs/g/versions/2", graph.clone()).await;
    checker.put(("pushKernelGraph", 422), "/v1/kernel-graphs/g/versions/3", "{}").await;
    checker.put(("pushNextKernelGraph", 422), "/v1/kernel-graphs/g", "{}").await;
    checker.put(("rollBackKernelGraph", 200), "/v1/kernel-graphs/g/rollback", "{}").await;
    checker.put(("rollBackKernelGraph", 400), "/v1/kernel-graphs/g/rollback", "{]").await;
    checker.call(("listKernelGraphs", 200), "/v1/kernel-graphs").await;
    checker.call(("showKernelGraph", 200), "/v1/kernel-graphs/g").await;
    checker.call(("showKernelGraphVersion", 200), "/v1/kernel-graphs/g/versions/2").await;

    let shape = json!({"inputs": {"a": "FP32[n, n]", "b": "FP32[n, n]", "c": "FP32[n, n]"}, "outputs": {"d": "s"},
                       "steps": {"s": {"run": "g", "inputs": {"a": "a", "b": "b", "c": "c"}}}});
    checker.put(("deployWorkflow", 200), "/v1/workflows/w", shape.to_string()).await;
    checker.put(("pushNextKernelGraph", 409), "/v1/kernel-graphs/w", graph).await;
    checker.call(("deleteKernelGraph", 409), "/v1/kernel-graphs/g").await;
    checker.call(("deleteKernelGraphVersion", 409), "/v1/kernel-graphs/g/versions/3").await;
    checker.call(("deleteWorkflow", 204), "/v1/workflows/w").await;
    checker.call(("deleteKernelGraphVersion", 204), "/v1/kernel-graphs/g/versions/1").await;
    checker.call(("deleteKernelGraph", 204), "/v1/kernel-graphs/g").await;
}
