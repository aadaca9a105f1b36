//! HTTP client of one node, for one tenant.

mod later;

use crate::{Answer, Authority, ErrorResponse, HeldCall};
use bytes::Bytes;
use reqwest::{Body, Method, RequestBuilder, Url};
use std::collections::BTreeMap;
use weir_types::Version;
use weir_types::api::{
    Deployed, Function, FunctionVersion, LogLine, Model, ModelVersion, Status, VersionRequest,
};

/// Client of a node. Cheap to clone.
///
/// Methods that return a parsed result panic on an error response; `try_` methods return the error.
#[derive(Debug, Clone)]
pub struct TestClient {
    url: String,
    token: Option<String>,
    http: reqwest::Client,
}

impl TestClient {
    /// Returns a client for the node at `url`.
    #[must_use]
    pub fn new(url: String) -> Self {
        Self { url, token: None, http: http_client() }
    }

    /// Returns a client that accepts only certificates of `authority`, under this host name, and
    /// opens a connection for each request.
    #[must_use]
    pub fn trusting(&self, authority: &Authority, host: &str) -> Self {
        let port = self.address().rsplit_once(':').expect("the address has a port").1;
        let address = self.address().parse().expect("the node listens on an IP address");
        let http = http_builder()
            .tls_certs_only([authority.as_root()])
            .resolve(host, address)
            .pool_max_idle_per_host(0)
            .build();
        Self {
            url: format!("https://{host}:{port}"),
            token: self.token.clone(),
            http: http.expect("the authority's certificate is valid"),
        }
    }

    /// Returns a client that sends a bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The bearer token that the client sends.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Calls `path` with a request body that stays open until [`HeldCall::let_go`].
    pub fn hold(&self, path: &str) -> HeldCall {
        HeldCall::call(self.clone(), path.to_owned())
    }

    /// URL of `path` on the node.
    #[must_use]
    pub fn url(&self, path: &str) -> Url {
        format!("{}{path}", self.url).parse().unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    /// `127.0.0.1:PORT`, for tests that use raw TCP.
    #[must_use]
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_start_matches("https://")
    }

    /// Starts building a request to the node.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, self.url(path));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a `GET` request.
    pub async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.unwrap_or_else(|error| panic!("GET {path}: {error:?}"))
    }

    /// Sends a `GET` request to a node that may be unreachable.
    pub async fn try_get(&self, path: &str) -> reqwest::Result<Answer> {
        Answer::read(self.request(Method::GET, path).send().await?).await
    }

    /// Sends a `POST` request.
    pub async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        send(self.request(Method::POST, path).body(body)).await
    }

    /// Sends a `PUT` request.
    pub async fn put(&self, path: &str, body: impl Into<Body>) -> Answer {
        send(self.request(Method::PUT, path).body(body)).await
    }

    /// Sends a `DELETE` request.
    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    /// Deploys a component with the default manifest.
    pub async fn deploy(&self, name: &str, component: impl Into<Bytes>) -> Deployed {
        self.deploy_with(name, "", component).await
    }

    /// Deploys a component with a manifest in the query, such as `limits.deadline_ms=500`.
    pub async fn deploy_with(&self, name: &str, query: &str, component: impl Into<Bytes>) -> Deployed {
        let deployed = self.try_deploy(name, query, component).await;
        deployed.unwrap_or_else(|refusal| panic!("{name} was not deployed: {refusal:?}"))
    }

    /// Deploys a component, or returns the error.
    pub async fn try_deploy(
        &self,
        name: &str,
        query: &str,
        component: impl Into<Bytes>,
    ) -> Result<Deployed, ErrorResponse> {
        let answer = self.put(&format!("/v1/functions/{name}?{query}"), component.into()).await;
        if answer.is_ok() { Ok(answer.json()) } else { Err(answer.refusal()) }
    }

    /// Returns a function, or the error.
    pub async fn function(&self, name: &str) -> Result<Function, ErrorResponse> {
        let answer = self.get(&format!("/v1/functions/{name}")).await;
        if answer.is_ok() { Ok(answer.json()) } else { Err(answer.refusal()) }
    }

    /// Returns one version of a function.
    pub async fn function_version(&self, name: &str, version: Version) -> FunctionVersion {
        self.get(&format!("/v1/functions/{name}/versions/{version}")).await.ok().json()
    }

    /// Lists the tenant's functions.
    pub async fn functions(&self) -> Vec<Function> {
        self.get("/v1/functions").await.ok().json()
    }

    /// Rolls a function back.
    pub async fn roll_back(&self, name: &str, to: Option<u32>) -> Answer {
        let rollback = VersionRequest { version: to.map(Version) };
        let request = self.request(Method::POST, &format!("/v1/functions/{name}/rollback"));
        send(request.json(&rollback)).await
    }

    /// Returns the log of a function.
    pub async fn logs(&self, name: &str) -> Vec<LogLine> {
        let answer = self.get(&format!("/v1/functions/{name}/logs?lines=1000")).await.ok();
        answer
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a log line is not JSON"))
            .collect()
    }

    /// Pushes a version of a model.
    pub async fn push_model(&self, name: &str, version: u32, onnx: impl Into<Bytes>) -> ModelVersion {
        let pushed = self.try_push_model(name, version, onnx).await;
        pushed.unwrap_or_else(|refusal| panic!("{name}:{version} was not pushed: {refusal:?}"))
    }

    /// Pushes a version of a model, with any inputs and outputs, or returns the error.
    pub async fn try_push_model(
        &self,
        name: &str,
        version: u32,
        onnx: impl Into<Bytes>,
    ) -> Result<ModelVersion, ErrorResponse> {
        let answer = self
            .put(&format!("/v1/models/{name}/versions/{version}?allow_signature_change=true"), onnx.into())
            .await;
        if answer.is_ok() { Ok(answer.json()) } else { Err(answer.refusal()) }
    }

    /// Lists the tenant's models.
    pub async fn models(&self) -> Vec<Model> {
        self.get("/v1/models").await.ok().json()
    }

    /// Returns the node's status.
    pub async fn status(&self) -> Status {
        self.get("/v1/status").await.ok().json()
    }

    /// Returns all samples of `/metrics` by name with labels.
    pub async fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics").await.ok();
        let samples = answer.text().lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        samples.collect()
    }

    /// Returns the sum of all samples of the counter or gauge `name` whose labels contain `label`.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let is_it = |sample: &str| {
            let rest = sample.strip_prefix(name)?;
            ((rest.is_empty() || rest.starts_with('{')) && rest.contains(label)).then_some(())
        };
        self.metrics()
            .await
            .iter()
            .filter(|(sample, _)| is_it(sample).is_some())
            .map(|(_, value)| value)
            .sum()
    }
}

async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap_or_else(|error| panic!("{error:?}"));
    Answer::read(response).await.unwrap_or_else(|error| panic!("{error:?}"))
}

/// HTTP client that ignores the environment's proxy settings.
pub(crate) fn http_client() -> reqwest::Client {
    http_builder().build().expect("an HTTP client without certificates can be built")
}

fn http_builder() -> reqwest::ClientBuilder {
    // With the S3 client in the same build, reqwest requires a TLS provider even for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy()
}
