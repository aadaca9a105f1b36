//! Blocking HTTP client for the node's API.

mod download;
mod tls;
mod upload;
pub(crate) use download::{Download, DownloadClient};
pub(crate) use upload::UploadReader;

use crate::error::{Exit, Problem};
use crate::settings::NodeEndpoint;
use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read};
use std::time::Duration;
use ureq::config::ConfigBuilder;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body, BodyReader, SendBody};
use weir_types::api::ErrorBody;

/// Header for the node's token. `authorization` stays free for the functions.
const TOKEN_HEADER: &str = "weir-token";
/// Timeout for the TCP connection to the node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a response of the management API.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of the excerpt of a non-Weir response in an error message.
const FOREIGN_TEXT_CHARS: usize = 200;

/// Sends the body only after the node's `100 Continue`. A rejected request then gets the node's
/// error instead of a broken connection.
pub(crate) fn ask_first(headers: &mut HeaderMap) {
    headers.insert("expect", HeaderValue::from_static("100-continue"));
}

/// Client for one node.
pub(crate) struct Client {
    agent: Agent,
    endpoint: NodeEndpoint,
}

impl Client {
    /// Creates a client for `endpoint`. The connection opens with the first request.
    pub(crate) fn new(endpoint: NodeEndpoint) -> Result<Self> {
        Ok(Self { agent: config(&endpoint)?.build().new_agent(), endpoint })
    }

    /// Creates a client that sends up to `connections` requests at the same time, each for at most
    /// `timeout`.
    pub(crate) fn for_load(endpoint: NodeEndpoint, connections: usize, timeout: Duration) -> Result<Self> {
        let config = config(&endpoint)?
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .timeout_global(Some(timeout));
        Ok(Self { agent: config.build().new_agent(), endpoint })
    }

    /// The node's URL.
    pub(crate) fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.endpoint.token.is_some()
    }

    /// Sends a GET request and parses the JSON response. `what` completes the error "cannot ...".
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str, what: &str) -> Result<T> {
        self.call(Method::GET, path, what, SendBody::none())
    }

    /// Sends `body` as JSON in a POST request to `path` and parses the JSON response.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.call(Method::POST, path, what, SendBody::from_json(body)?)
    }

    /// Sends a DELETE request to `path`.
    pub(crate) fn delete(&self, path: &str, what: &str) -> Result<()> {
        let request = self.request(Method::DELETE, path, SendBody::none())?;
        self.send(request).and_then(|answer| accepted(answer, what)).map(drop)
    }

    /// Sends `body` as JSON in a PUT request to `path` and parses the JSON response.
    pub(crate) fn put_json<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.call(Method::PUT, path, what, SendBody::from_json(body)?)
    }

    /// Uploads a file to `path` in a PUT request with extra `headers`.
    pub(crate) fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        headers: &[(&str, String)],
        upload: &mut UploadReader,
    ) -> Result<T> {
        let length = upload.length_bytes();
        let mut request = self.request(Method::PUT, path, SendBody::from_reader(upload))?;
        let map = request.headers_mut();
        map.insert("content-length", length.into());
        map.insert("content-type", HeaderValue::from_static("application/octet-stream"));
        ask_first(map);
        for (name, value) in headers {
            map.insert(HeaderName::try_from(*name)?, value.parse()?);
        }
        read(accepted(self.send(request)?, what)?)
    }

    /// Sends a PUT request without a body, with extra `headers`.
    pub(crate) fn put_empty<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        headers: &[(&str, String)],
    ) -> Result<T> {
        let mut request = self.request(Method::PUT, path, SendBody::none())?;
        for (name, value) in headers {
            request.headers_mut().insert(HeaderName::try_from(*name)?, value.parse()?);
        }
        read(accepted(self.send(request)?, what)?)
    }

    /// Opens the response to a GET request as a stream.
    pub(crate) fn stream(&self, path: &str, what: &str) -> Result<impl Read + use<>> {
        let request = self.request(Method::GET, path, SendBody::none())?;
        Ok(accepted(self.send(request)?, what)?.into_body().into_reader())
    }

    /// Sends `body` as JSON in a POST request and opens the response as a stream.
    pub(crate) fn post_stream(
        &self,
        path: &str,
        what: &str,
        body: &impl Serialize,
    ) -> Result<BodyReader<'static>> {
        let request = self.request(Method::POST, path, SendBody::from_json(body)?)?;
        Ok(accepted(self.send(request)?, what)?.into_body().into_reader())
    }

    /// Builds a request to this node, with the token.
    pub(crate) fn request<'a>(
        &self,
        method: Method,
        path: &str,
        body: SendBody<'a>,
    ) -> Result<Request<SendBody<'a>>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.endpoint.url));
        if let Some(token) = &self.endpoint.token {
            request = request.header(TOKEN_HEADER, token);
        }
        Ok(request
            .body(body)
            .map_err(|error| Problem::usage(format!("cannot ask for {path:?}")).because(error))?)
    }

    /// Sends a request and returns the response for any status. The body is unread.
    pub(crate) fn send(&self, request: Request<SendBody<'_>>) -> Result<Response<Body>> {
        Ok(self.agent.run(request).map_err(|error| self.unanswered(error))?)
    }

    fn unanswered(&self, error: ureq::Error) -> Problem {
        if let Some((message, hint)) = tls::explain(&error, self.url()) {
            return Problem::new(message).because(error).exit(Exit::Unreachable).hint(hint);
        }
        if let ureq::Error::Io(io) = &error
            && matches!(io.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        {
            let message = format!("the node at {} stopped reading the upload", self.url());
            let hint = "the upload may exceed the node's limit (sandbox.component_bytes_max, models.model_bytes_max, gateway.infer_body_bytes_max, limits.request_body_bytes of a function); its log says more";
            return Problem::new(message).because(error).exit(Exit::Refused).hint(hint);
        }
        Problem::new(format!("no answer from the node at {}", self.url()))
            .because(error)
            .exit(Exit::Unreachable)
            .hint("start a node with `weir up`, or say where one is with --url or WEIR_URL")
    }

    /// Sends a request and parses the JSON response. `what` completes the error "cannot ...".
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        what: &str,
        body: SendBody<'_>,
    ) -> Result<T> {
        read(accepted(self.send(self.request(method, path, body)?)?, what)?)
    }
}

fn config(endpoint: &NodeEndpoint) -> Result<ConfigBuilder<AgentScope>> {
    Ok(Agent::config_builder()
        .tls_config(tls::config(&endpoint.trust)?)
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        // Wait for `100 Continue`, so that a body that the node rejects is not sent. The timeout is
        // for old proxies, which never send it.
        .timeout_await_100(Some(Duration::from_secs(1)))
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION"))))
}

/// Returns a response with a success status, or the node's error.
pub(crate) fn accepted(answer: Response<Body>, what: &str) -> Result<Response<Body>> {
    if answer.status().is_success() { Ok(answer) } else { Err(refusal(answer, what).into()) }
}

/// Converts an error response into a [`Problem`].
pub(crate) fn refusal(mut answer: Response<Body>, what: &str) -> Problem {
    let status = answer.status();
    let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().unwrap_or_default();
    match serde_json::from_slice::<ErrorBody>(&text) {
        Ok(body) => Problem::refused(what, status.as_u16(), body),
        Err(_) => foreign(status, &text, what),
    }
}

fn foreign(status: StatusCode, text: &[u8], what: &str) -> Problem {
    let text: String = String::from_utf8_lossy(text).chars().take(FOREIGN_TEXT_CHARS).collect();
    Problem::new(format!(
        "cannot {what}: the answer is {status}, which is not a response of Weir: {:?}",
        text.trim()
    ))
    .exit(Exit::Refused)
    .hint("check that the address is that of a Weir node of this version, or of a proxy in front of a node")
}

fn read<T: DeserializeOwned>(mut answer: Response<Body>) -> Result<T> {
    answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_json().map_err(|error| {
        Problem::new("the node's answer cannot be read")
            .because(error)
            .exit(Exit::Refused)
            .hint("the node and this program may be of different versions; `weir status` and `weir --version` show them")
            .into()
    })
}

#[cfg(test)]
mod tests;
