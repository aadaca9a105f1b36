//! HTTP requests of the clients, with outcomes as the history has them.

use anyhow::Result;
use bytes::Bytes;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::time::Duration;
use weir_torture::history::{Action, Answer, Outcome, Refusal};

/// Time limit of a client for an answer: longer than the longest fault and the deadlines of calls.
const PATIENCE: Duration = Duration::from_secs(25);
/// Deadline of the functions.
const DEADLINE_MS: u64 = 15_000;

/// HTTP client of all nodes. Every request opens a connection, because a client that reuses
/// connections may send a request twice.
#[derive(Clone)]
pub(crate) struct Requests {
    http: reqwest::Client,
    urls: Vec<String>,
}

impl Requests {
    pub(crate) fn new(urls: Vec<String>) -> Result<Self> {
        let http =
            reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(PATIENCE).build()?;
        Ok(Self { http, urls })
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.urls.len()
    }

    /// Starts building a request to a node.
    pub(crate) fn request(&self, node: usize, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.urls[node]))
    }

    /// Sends a request, and reads the answer of the action.
    pub(crate) async fn send(&self, action: &Action, request: RequestBuilder) -> Outcome {
        let answered = async { outcome(action, request.send().await?).await };
        answered.await.unwrap_or_else(|error| match error {
            error if error.is_timeout() => Outcome::GivenUp,
            error if error.is_connect() => Outcome::Unreachable,
            error => Outcome::Unknown { why: format!("{:#}", anyhow::Error::from(error)) },
        })
    }

    /// Request of a deploy. The versions differ by their mark, and by the component.
    pub(crate) fn deploy(&self, node: usize, function: &str, mark: &str, component: Bytes) -> RequestBuilder {
        let query = format!("env.MARK={mark}&idempotent=true&limits.deadline_ms={DEADLINE_MS}");
        self.request(node, Method::PUT, &format!("/v1/functions/{function}?{query}")).body(component)
    }

    /// Request of a rollback.
    pub(crate) fn roll_back(&self, node: usize, function: &str, version: u32) -> RequestBuilder {
        let path = format!("/v1/functions/{function}/rollback");
        self.request(node, Method::POST, &path).json(&json!({ "version": version }))
    }

    /// Call of a function that sleeps first.
    pub(crate) fn call(&self, node: usize, function: &str, nap_ms: u64, body: &str) -> RequestBuilder {
        self.request(node, Method::POST, &format!("/fn/{function}/?nap={nap_ms}")).body(body.to_owned())
    }

    /// Push of a version of a model.
    pub(crate) fn push(&self, node: usize, model: &str, version: u32) -> RequestBuilder {
        // Small versions are exact in fp32.
        let onnx = weir_tests::model_adding(version as f32);
        self.request(node, Method::PUT, &format!("/v1/models/{model}/versions/{version}")).body(onnx)
    }

    /// Inference of the newest or a named version.
    pub(crate) fn infer(&self, node: usize, model: &str, version: Option<u32>) -> RequestBuilder {
        let version = version.map(|version| format!("/versions/{version}")).unwrap_or_default();
        let x = json!({ "name": "x", "shape": [1], "datatype": "FP32", "data": [0] });
        let path = format!("/v2/models/{model}{version}/infer");
        self.request(node, Method::POST, &path).json(&json!({ "inputs": [x] }))
    }

    /// Put of a named object.
    pub(crate) fn put_object(&self, node: usize, object: &str, value: &str) -> RequestBuilder {
        self.request(node, Method::PUT, &format!("/v1/objects/{object}")).body(value.to_owned())
    }

    /// Read of a named object.
    pub(crate) fn get_object(&self, node: usize, object: &str) -> RequestBuilder {
        self.request(node, Method::GET, &format!("/v1/objects/{object}/data"))
    }

    /// Result of an asynchronous invocation.
    pub(crate) fn fetch_result(&self, node: usize, id: &str) -> RequestBuilder {
        self.request(node, Method::GET, &format!("/v1/invocations/{id}/result"))
    }
}

async fn outcome(action: &Action, response: Response) -> reqwest::Result<Outcome> {
    let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
    let status = response.status();
    let code = header("weir-error");
    let version = header("weir-version").and_then(|version| version.parse().ok());
    let body = response.bytes().await?;
    let text = || String::from_utf8_lossy(&body).into_owned();
    if !status.is_success() {
        return Ok(Outcome::Refused(Refusal { status: status.as_u16(), code, text: text() }));
    }
    let json = || serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let answer = match action {
        Action::Deploy { .. } => {
            let version = json()["version"].as_u64().and_then(|version| u32::try_from(version).ok());
            Answer { version, ..Answer::default() }
        }
        Action::Call { .. } => {
            let mark = text().split(' ').next().map(str::to_owned);
            Answer { version, value: mark, id: None }
        }
        Action::Submit { .. } => Answer { id: json()["id"].as_str().map(str::to_owned), ..Answer::default() },
        Action::FetchResult { .. } | Action::GetObject { .. } => {
            Answer { value: Some(text()), ..Answer::default() }
        }
        Action::Infer { .. } => {
            let json = json();
            let version = json["model_version"].as_str().and_then(|version| version.parse().ok());
            let output = json["outputs"][0]["data"][0].as_f64().map(|output| output.to_string());
            Answer { version, value: output, id: None }
        }
        Action::RollBack { .. } | Action::PutObject { .. } | Action::Push { .. } => Answer::default(),
    };
    Ok(Outcome::Acknowledged(answer))
}
