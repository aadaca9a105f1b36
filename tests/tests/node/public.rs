//! Public functions: calls without a token, and nothing else without one.

use reqwest::Method;
use weir_tests::{TestNode, function};
use weir_types::ErrorCode;

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

async fn start() -> TestNode {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    acme.deploy_with("open", "public=true", function("echo-http")).await;
    acme.deploy("closed", function("hello")).await;
    node
}

#[tokio::test]
async fn public_function_needs_no_token_and_its_other_routes_do() {
    let node = start().await;
    assert_eq!(node.post("/fn/acme:open", "hello").await.ok().text(), "hello");
    assert_eq!(node.with_token(OTHER).post("/fn/acme:open/a", "hello").await.ok().text(), "hello");
    for path in [
        "/fn/open",
        "/v1/functions/open",
        "/v1/functions/open/logs",
        "/v1/functions/acme:open",
        "/v2/models/open",
    ] {
        assert_eq!(node.get(path).await.code(), ErrorCode::Unauthorized, "{path}");
    }
    // Functions that are not public look missing.
    let text = async |path: &str| {
        let answer = node.get(path).await;
        assert_eq!((answer.status, answer.code()), (404, ErrorCode::FunctionNotFound), "{path}");
        answer.refusal().text.replace("closed", "NAME").replace("missing", "NAME").replace("nobody", "acme")
    };
    let missing = text("/fn/acme:missing").await;
    assert_eq!([text("/fn/acme:closed").await, text("/fn/nobody:missing").await], [missing.clone(), missing]);
    assert_eq!(text("/fn/:x").await, "there is no public function x of ");
    // A later version without the flag closes the function.
    node.with_token(ACME).deploy("open", function("hello")).await;
    assert_eq!(node.get("/fn/acme:open").await.code(), ErrorCode::FunctionNotFound);
}

#[tokio::test]
async fn public_calls_have_no_options_of_the_tenant() {
    let node = start().await;
    let later = node.later(Method::POST, "/fn/acme:open").body("now");
    let answer = node.send(later.header("weir-explain", "1").header("weir-priority", "x")).await.ok();
    assert_eq!((answer.status, answer.text()), (200, "now"));
    assert!(answer.header("weir-placement").is_none());
    let listed = node.with_token(ACME).get("/v1/invocations").await.ok();
    assert!(listed.text().contains("\"invocations\":[]"), "{}", listed.text());
}

#[tokio::test]
async fn tensor_functions_cannot_be_public() {
    let node = TestNode::start().await;
    let refused = node.try_deploy("t", "public=true", function("echo-tensor")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidManifest);
    node.deploy_with("open", "public=true", function("hello")).await;
    assert_eq!(node.get("/fn/default:open/x").await.ok().text(), "hello, x\n", "a node without tokens");
}
