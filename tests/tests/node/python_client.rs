//! The Python client in `clients/python`.

use weir_tests::{TestNode, python_client_tests};

#[tokio::test]
async fn tests_of_the_python_client_pass() {
    let output = python_client_tests(TestNode::builder().binary()).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let summary = text.lines().next_back().unwrap_or_default();
    assert!(summary.contains(" passed") && !summary.contains("skipped"), "{text}");
}
