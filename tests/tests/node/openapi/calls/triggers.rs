//! Triggers of the function `f`.

use super::ResponseChecker;
use serde_json::json;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    let spec = |every_ms: u64, function: &str| {
        json!({
            "source": {"every_ms": every_ms},
            "target": {"function": function},
            "request": {"headers": {"x-a": "b"}, "body": "x"},
        })
        .to_string()
    };
    checker.put(("putTrigger", 201), "/v1/triggers/t", spec(3_600_000, "f")).await;
    checker.put(("putTrigger", 200), "/v1/triggers/t", spec(7_200_000, "f")).await;
    checker.put(("putTrigger", 400), "/v1/triggers/t", "{}").await;
    checker.put(("putTrigger", 404), "/v1/triggers/t", spec(3_600_000, "missing")).await;
    checker.put(("putTrigger", 422), "/v1/triggers/t", spec(1, "f")).await;
    checker.call(("runTrigger", 202), "/v1/triggers/t/run").await;
    checker.call(("showTrigger", 200), "/v1/triggers/t").await;
    checker.call(("listTriggers", 200), "/v1/triggers").await;
    checker.call(("pauseTrigger", 200), "/v1/triggers/t/pause").await;
    checker.call(("resumeTrigger", 200), "/v1/triggers/t/resume").await;
    checker.call(("deleteTrigger", 204), "/v1/triggers/t").await;
}
