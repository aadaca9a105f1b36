//! Downloads from servers that are not nodes.

use super::CONNECT_TIMEOUT;
use crate::error::{Exit, Problem};
use anyhow::Result;
use std::io::Read;
use std::time::Duration;
use ureq::http::{HeaderMap, Method, Request, StatusCode, header};
use ureq::{Agent, SendBody};

/// Time limit of a response's head, and of a whole response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const BODY_TIMEOUT: Duration = Duration::from_hours(6);
/// The most redirects of one request.
const REDIRECTS_MAX: u32 = 10;

/// Client for servers that have files.
pub(crate) struct DownloadClient {
    agent: Agent,
    /// For requests about a file itself, not about its copy on another server.
    unredirected: Agent,
}

/// A response, with its body unread.
pub(crate) struct Download {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Box<dyn Read + Send>,
}

impl DownloadClient {
    /// Creates a client that accepts certificates of the public authorities.
    pub(crate) fn new() -> Result<Self> {
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .timeout_connect(Some(CONNECT_TIMEOUT))
                .timeout_recv_response(Some(HEAD_TIMEOUT))
                .timeout_recv_body(Some(BODY_TIMEOUT))
                .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        };
        let agent = config().max_redirects(REDIRECTS_MAX).build().new_agent();
        let unredirected = config().max_redirects(0).max_redirects_will_error(false).build().new_agent();
        Ok(Self { agent, unredirected })
    }

    /// Requests a file. Other hosts than that of `url` do not get the token.
    pub(crate) fn get(&self, url: &str, token: Option<&str>, headers: &HeaderMap) -> Result<Download> {
        send(&self.agent, Method::GET, url, token, headers)
    }

    /// Requests the headers of a file, without following redirects.
    pub(crate) fn head(&self, url: &str, token: Option<&str>) -> Result<Download> {
        send(&self.unredirected, Method::HEAD, url, token, &HeaderMap::new())
    }
}

impl Download {
    /// The length of the body, if the server states it.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Whether a partial response begins at `offset` of the file.
    pub(crate) fn starts_at(&self, offset: u64) -> bool {
        self.range().is_some_and(|range| range.starts_with(&format!("{offset}-")))
    }

    /// Whether the server states this length of the whole file.
    pub(crate) fn length_is(&self, bytes: u64) -> bool {
        let stated = self.range().and_then(|range| range.rsplit_once('/')?.1.parse().ok());
        stated == Some(bytes)
    }

    /// The header `content-range`, without its unit.
    fn range(&self) -> Option<&str> {
        self.headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")
    }
}

fn send(
    agent: &Agent,
    method: Method,
    url: &str,
    token: Option<&str>,
    headers: &HeaderMap,
) -> Result<Download> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let mut request = request
        .body(SendBody::none())
        .map_err(|error| Problem::usage(format!("cannot request {url}")).because(error))?;
    request.headers_mut().extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let response = agent.run(request).map_err(|error| {
        Problem::new(format!("no answer from {url}"))
            .because(error)
            .exit(Exit::Unreachable)
            .hint("check the address and the network; HTTPS_PROXY names a proxy")
    })?;
    let (head, body) = response.into_parts();
    Ok(Download { status: head.status, headers: head.headers, body: Box::new(body.into_reader()) })
}
