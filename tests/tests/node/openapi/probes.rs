//! Errors that many operations share, provoked by requests that follow from the document.

use super::checker::ResponseChecker;
use super::document::Operation;
use futures::stream;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, RequestBuilder};
use weir_tests::TestNode;
use weir_types::ErrorCode;

const TENANT: &str = "acme-token-0123456789";
const OPERATOR: &str = "operator-token-0123456789";

/// Largest upload and inference of the node in [`large_bodies`].
const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest request for embeddings.
const EMBEDDINGS_BYTES_MAX: usize = 16 << 20;

fn documents(operation: &Operation, status: u16) -> bool {
    operation.statuses().any(|documented| documented == status)
}

/// Sends invalid names, and names of missing resources.
pub(super) async fn names(checker: &mut ResponseChecker<'_>) {
    let document = checker.document();
    let named = document.operations.iter().filter(|operation| operation.has_path_parameter("name"));
    for operation in named {
        let invalid =
            checker.any(operation, &operation.target(&[("name", "UPPER")]), |request| request).await;
        assert_eq!(invalid.status, 400, "{}: {invalid:?}", operation.id);
        if operation.method != "HEAD" {
            assert_eq!(invalid.code(), ErrorCode::InvalidName, "{}", operation.id);
        }
        // These make the name that is missing; their 404 is for an unknown digest or target.
        if documents(operation, 404) && !["deployFunction", "putTrigger"].contains(&&*operation.id) {
            let missing = operation.target(&[("name", "missing")]);
            let missing = checker.any(operation, &missing, |request| request).await;
            assert_eq!(missing.status, 404, "{}: {missing:?}", operation.id);
        }
    }
}

/// Sends ids of invocations that are invalid, unknown and expired.
pub(super) async fn invocations(checker: &mut ResponseChecker<'_>) {
    let document = checker.document();
    let of_invocation = document.operations.iter().filter(|operation| operation.has_path_parameter("id"));
    for operation in of_invocation {
        for (id, status) in [
            ("x", 400),
            ("00000000000000000000000000000000", 404),
            // An id from 2020.
            ("fe90a19917ff00000000000000000000", 410),
        ] {
            let answer = checker.any(operation, &operation.target(&[("id", id)]), |request| request).await;
            assert_eq!(answer.status, status, "{}: {answer:?}", operation.id);
        }
    }
}

/// Sends bodies above the limit of each operation.
pub(super) async fn large_bodies(checker: &mut ResponseChecker<'_>) {
    let mut node = crate::kernel_graphs::with_kernel_graphs();
    for setting in [
        "sandbox.component_bytes_max",
        "models.model_bytes_max",
        "objects.object_bytes_max",
        "gateway.infer_body_bytes_max",
    ] {
        node = node.set(setting, BODY_BYTES_MAX);
    }
    let node = node.start().await;
    let graph = crate::kernel_graphs::packed("jacobi").to_string();
    node.put("/v1/kernel-graphs/digits", graph).await.ok();
    checker.use_client(node.client());
    let document = checker.document();
    for operation in document.operations.iter().filter(|operation| documents(operation, 413)) {
        let with_body = |request: RequestBuilder| match operation.id.as_str() {
            // Announced and never sent: the node refuses the body unread and closes the connection,
            // which could cut off a client that is still sending.
            "createEmbeddings" => request
                .header(CONTENT_LENGTH, EMBEDDINGS_BYTES_MAX + 1)
                .body(Body::wrap_stream(stream::pending::<std::io::Result<Vec<u8>>>())),
            _ => request.body(vec![b' '; BODY_BYTES_MAX + 1]),
        };
        let answer = checker.any(operation, &target_of_large(operation), with_body).await;
        assert_eq!((answer.status, operation.id.as_str()), (413, operation.id.as_str()), "{answer:?}");
    }
}

/// A model and a kernel graph cannot share a name.
fn target_of_large(operation: &Operation) -> String {
    let name = if operation.path.starts_with("/v1/models/") { "other" } else { "digits" };
    operation.target(&[("name", name)])
}

/// Sends requests without a token, and with the operator's.
pub(super) async fn authentication(checker: &mut ResponseChecker<'_>) {
    let node =
        TestNode::builder().tokens(&[&format!("{TENANT} acme"), &format!("{OPERATOR} *")]).start().await;
    let document = checker.document();
    for operation in &document.operations {
        let target = operation.target(&[]);
        checker.use_client(node.client());
        let anonymous = checker.any(operation, &target, |request| request).await;
        assert_eq!(anonymous.status == 401, !operation.is_open(), "{}: {anonymous:?}", operation.id);
        let is_operators = ["/metrics", "/v1/tenants"].contains(&operation.path.as_str());
        if !operation.is_open() {
            checker.use_client(&node.with_token(OPERATOR));
            let operator = checker.any(operation, &target, |request| request).await;
            assert_eq!(operator.status, if is_operators { 200 } else { 403 }, "{}", operation.id);
        }
    }
}
