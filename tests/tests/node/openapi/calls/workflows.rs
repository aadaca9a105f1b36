//! Workflows of the model `m`.

use super::{ResponseChecker, workflow};

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    let deploy = ("deployWorkflow", 200);
    checker.put(deploy, "/v1/workflows/w", workflow("m")).await;
    checker.put(deploy, "/v1/workflows/w?dry_run=true", workflow("m:1")).await;
    checker.put(deploy, "/v1/workflows/w?slo_ms=60000&cost_slo=1", workflow("m:1")).await;
    checker.put(deploy, "/v1/workflows/outer", workflow("w")).await;
    checker.put(("deployWorkflow", 400), "/v1/workflows/w?dryrun=true", workflow("m")).await;
    checker.put(("deployWorkflow", 409), "/v1/workflows/m", workflow("m")).await;
    checker.put(("deployWorkflow", 422), "/v1/workflows/w", "{}").await;
    checker.put(("deployWorkflow", 413), "/v1/workflows/w", vec![b' '; 1 << 20]).await;

    checker.call(("listWorkflows", 200), "/v1/workflows").await;
    checker.call(("showWorkflow", 200), "/v1/workflows/w").await;
    checker.call(("listWorkflowVersions", 200), "/v1/workflows/w/versions").await;
    checker.call(("showWorkflowVersion", 200), "/v1/workflows/w/versions/1").await;
    checker.call(("showWorkflowVersion", 400), "/v1/workflows/w/versions/0").await;
    checker.call(("deleteWorkflow", 409), "/v1/workflows/w").await;
    checker.call(("deleteWorkflow", 204), "/v1/workflows/outer").await;
    super::aliases(checker, "Workflow", "/v1/workflows/w", 2).await;
    checker.put(("rollBackWorkflow", 200), "/v1/workflows/w/rollback", "{}").await;
    checker.put(("rollBackWorkflow", 400), "/v1/workflows/w/rollback", "{]").await;
    checker.call(("deleteWorkflowVersion", 409), "/v1/workflows/w/versions/1").await;
    checker.call(("deleteWorkflowVersion", 204), "/v1/workflows/w/versions/2").await;
    checker.call(("deleteWorkflow", 204), "/v1/workflows/w").await;
}
