//! Calls of operations, whose responses are checked against the document and counted.

use super::document::{OpenApiDocument, Operation};
use reqwest::{Body, Method, RequestBuilder};
use std::collections::BTreeSet;
use weir_tests::{Answer, TestClient};

/// Checks responses, and records which documented responses were seen.
pub(super) struct ResponseChecker<'a> {
    document: &'a OpenApiDocument,
    client: TestClient,
    /// Operation and status of each response.
    seen: BTreeSet<(String, u16)>,
    /// Operations with a response that is no error of Weir.
    answered: BTreeSet<String>,
}

impl<'a> ResponseChecker<'a> {
    pub(super) fn new(document: &'a OpenApiDocument, client: &TestClient) -> Self {
        Self { document, client: client.clone(), seen: BTreeSet::new(), answered: BTreeSet::new() }
    }

    /// Sends the following requests to `client`.
    pub(super) fn use_client(&mut self, client: &TestClient) {
        self.client = client.clone();
    }

    pub(super) fn document(&self) -> &'a OpenApiDocument {
        self.document
    }

    /// Sends a request of the operation `id`, which must be answered with `status`.
    pub(super) async fn send(
        &mut self,
        (id, status): (&str, u16),
        target: &str,
        change: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Answer {
        let answer = self.any(self.document.operation(id), target, change).await;
        assert_eq!(answer.status, status, "{id} {target}: {answer:?}");
        answer
    }

    /// Sends a request without a body.
    pub(super) async fn call(&mut self, expected: (&str, u16), target: &str) -> Answer {
        self.send(expected, target, |request| request).await
    }

    /// Sends a request with a body.
    pub(super) async fn put(&mut self, expected: (&str, u16), target: &str, body: impl Into<Body>) -> Answer {
        self.send(expected, target, |request| request.body(body)).await
    }

    /// Sends a request that may be answered with any documented status.
    pub(super) async fn any(
        &mut self,
        operation: &Operation,
        target: &str,
        change: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Answer {
        assert!(operation.matches(target), "{target} is not a target of {}", operation.id);
        let method = Method::from_bytes(operation.method.as_bytes()).expect("a method");
        let request = change(self.client.request(method, target));
        let answer = self.client.send_refusable(request).await;
        self.document.check(operation, &answer);
        self.seen.insert((operation.id.clone(), answer.status));
        if answer.header("weir-error").is_none() {
            self.answered.insert(operation.id.clone());
        }
        answer
    }

    /// Documented responses that were not seen, as `operation status`.
    pub(super) fn unseen(&self) -> Vec<String> {
        let all = self
            .document
            .operations
            .iter()
            .flat_map(|operation| operation.statuses().map(|status| (operation.id.clone(), status)));
        all.filter(|one| !self.seen.contains(one)).map(|(id, status)| format!("{id} {status}")).collect()
    }

    /// Operations whose every response was an error of Weir.
    pub(super) fn unanswered(&self) -> Vec<&'a str> {
        let ids = self.document.operations.iter().map(|operation| operation.id.as_str());
        ids.filter(|id| !self.answered.contains(*id)).collect()
    }
}
