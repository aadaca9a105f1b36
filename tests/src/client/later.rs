//! Asynchronous invocations, as a test asks for them.

use super::{Client, send};
use crate::{Answer, eventually};
use reqwest::{Body, Method, RequestBuilder};
use weir_types::AsyncId;
use weir_types::api::{Invocation, InvocationPage, InvocationStatus};

impl Client {
    /// A request whose answer nobody waits for, to add headers and a body to.
    pub fn later(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header("prefer", "respond-async")
    }

    /// `POST` something to be run later.
    pub async fn post_later(&self, path: &str, body: impl Into<Body>) -> Invocation {
        self.accepted(self.later(Method::POST, path).body(body)).await
    }

    /// Send a request that must be accepted. Everything that such an answer must have is checked.
    pub async fn accepted(&self, request: RequestBuilder) -> Invocation {
        let answer = send(request).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.header("preference-applied"), Some("respond-async"));
        let invocation: Invocation = answer.json();
        assert_eq!(answer.header("location"), Some(&*format!("/v1/invocations/{}", invocation.id)));
        invocation
    }

    /// Send a request, whatever is answered.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        send(request).await
    }

    /// How an invocation is.
    pub async fn invocation(&self, id: AsyncId) -> Invocation {
        self.get(&format!("/v1/invocations/{id}")).await.ok().json()
    }

    /// How an invocation is once it has ended.
    pub async fn ended(&self, id: AsyncId) -> Invocation {
        eventually("the end of an invocation", async || {
            let invocation: Invocation =
                self.get(&format!("/v1/invocations/{id}?wait_ms=1000")).await.ok().json();
            invocation.status.is_end().then_some(invocation)
        })
        .await
    }

    /// How an invocation is once it has that status.
    pub async fn until(&self, id: AsyncId, status: InvocationStatus) -> Invocation {
        eventually(&format!("the status {status}"), async || {
            let invocation = self.invocation(id).await;
            (invocation.status == status).then_some(invocation)
        })
        .await
    }

    /// The answer of an invocation, or the refusal.
    pub async fn result(&self, id: AsyncId) -> Answer {
        self.get(&format!("/v1/invocations/{id}/result")).await
    }

    /// All invocations that the query asks for, page by page.
    pub async fn invocations(&self, query: &str) -> Vec<Invocation> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let page: InvocationPage = self.get(&format!("/v1/invocations?{query}{after}")).await.ok().json();
            all.extend(page.invocations);
            match page.next {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    }
}
