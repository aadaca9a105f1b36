//! Asynchronous invocations.

use super::{ResponseChecker, fake, row};
use weir_tests::{Answer, component_of_0_1_0};
use weir_types::api::Invocation;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    checker.put(("pushModel", 200), "/v1/models/held/versions/1", fake(3_600_000)).await;
    checker.put(("deployFunction", 200), "/v1/functions/trap", component_of_0_1_0("everything-http")).await;

    let done = path(&later(checker, "infer", "/v2/models/m/infer").await);
    checker.call(("showInvocation", 200), &format!("{done}?wait_ms=60000")).await;
    checker.call(("showResult", 200), &format!("{done}/result")).await;
    let events = checker.call(("followInvocation", 200), &format!("{done}/events")).await;
    assert!(events.text().contains("event: done"), "{events:?}");
    checker.call(("showInvocation", 400), &format!("{done}?wait_ms=long")).await;
    checker.call(("cancelInvocation", 409), &format!("{done}/cancel")).await;
    checker.call(("retryInvocation", 409), &format!("{done}/retry")).await;

    let dead = path(&later(checker, "callPost", "/fn/trap/path").await);
    checker.call(("showInvocation", 200), &format!("{dead}?wait_ms=60000")).await;
    checker.call(("showResult", 500), &format!("{dead}/result")).await;
    checker.call(("retryInvocation", 200), &format!("{dead}/retry")).await;

    let held = path(&later(checker, "infer", "/v2/models/held/infer").await);
    checker.call(("showResult", 409), &format!("{held}/result")).await;
    checker.call(("cancelInvocation", 200), &format!("{held}/cancel")).await;
    checker.call(("showResult", 499), &format!("{held}/result")).await;
    checker.call(("deleteInvocation", 204), &held).await;
    let held = path(&later(checker, "inferVersion", "/v2/models/held/versions/1/infer").await);
    checker.call(("deleteInvocation", 200), &held).await;

    checker.call(("listInvocations", 200), "/v1/invocations").await;
    checker.call(("listInvocations", 200), "/v1/invocations?limit=1&status=cancelled&name=held").await;
    checker.call(("listInvocations", 400), "/v1/invocations?limit=0").await;
    checker.call(("deleteInvocation", 204), &done).await;
    checker.call(("deleteFunction", 204), "/v1/functions/trap").await;
}

async fn later(checker: &mut ResponseChecker<'_>, operation: &str, target: &str) -> Answer {
    let change =
        |request: reqwest::RequestBuilder| request.header("prefer", "respond-async").body(row().to_string());
    checker.send((operation, 202), target, change).await
}

fn path(accepted: &Answer) -> String {
    format!("/v1/invocations/{}", accepted.json::<Invocation>().id)
}
