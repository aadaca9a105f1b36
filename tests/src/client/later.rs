//! Client methods for asynchronous invocations.

use super::{TestClient, send};
use crate::{Answer, eventually};
use reqwest::{Body, Method, RequestBuilder};
use weir_types::AsyncId;
use weir_types::api::{Invocation, InvocationPage, InvocationStatus};

impl TestClient {
    /// Starts building an asynchronous request. The caller adds headers and a body.
    pub fn later(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header("prefer", "respond-async")
    }

    /// Starts an asynchronous `POST`.
    pub async fn post_later(&self, path: &str, body: impl Into<Body>) -> Invocation {
        self.accepted(self.later(Method::POST, path).body(body)).await
    }

    /// Sends an asynchronous request, and checks the status and headers of the 202 response.
    pub async fn accepted(&self, request: RequestBuilder) -> Invocation {
        let answer = send(request).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.header("preference-applied"), Some("respond-async"));
        let invocation: Invocation = answer.json();
        assert_eq!(answer.header("location"), Some(&*format!("/v1/invocations/{}", invocation.id)));
        invocation
    }

    /// Sends a request whose body the node may refuse before it has arrived. The closed connection
    /// can cut off a client that is still sending, which then sends the request again.
    pub async fn send_refusable(&self, request: RequestBuilder) -> Answer {
        for _ in 0..10 {
            let Some(copy) = request.try_clone() else { break };
            if let Ok(response) = copy.send().await
                && let Ok(answer) = Answer::read(response).await
            {
                return answer;
            }
        }
        send(request).await
    }

    /// Sends a request and returns any response.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        send(request).await
    }

    /// Returns the state of an invocation.
    pub async fn invocation(&self, id: AsyncId) -> Invocation {
        self.get(&format!("/v1/invocations/{id}")).await.ok().json()
    }

    /// Waits for the end of an invocation and returns its final state.
    pub async fn ended(&self, id: AsyncId) -> Invocation {
        eventually("the end of an invocation", async || {
            let invocation: Invocation =
                self.get(&format!("/v1/invocations/{id}?wait_ms=1000")).await.ok().json();
            invocation.status.is_end().then_some(invocation)
        })
        .await
    }

    /// Waits until an invocation has the status.
    pub async fn until(&self, id: AsyncId, status: InvocationStatus) -> Invocation {
        eventually(&format!("the status {status}"), async || {
            let invocation = self.invocation(id).await;
            (invocation.status == status).then_some(invocation)
        })
        .await
    }

    /// Returns the response of an invocation, or the error.
    pub async fn result(&self, id: AsyncId) -> Answer {
        self.get(&format!("/v1/invocations/{id}/result")).await
    }

    /// Lists all invocations that match the query, over all pages.
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
