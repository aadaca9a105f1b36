//! Forwards a call to the node on which it is placed.

use super::Cluster;
use super::auth::NodeAuth;
use super::connector::NodeConnector;
use crate::placement::{ForwardStep, RemotePlacement};
use crate::wire::ForwardGrant;
use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use weir_telemetry::Span;
use weir_tls::NodeIdentity;
use weir_types::NodeId;

/// The grant for a forwarded call, as JSON.
pub const GRANT: HeaderName = HeaderName::from_static("weir-grant");
/// Marks the response of a node that has not started the call: the call can be placed again.
pub const REFUSED: HeaderName = HeaderName::from_static("weir-refused");

/// The host that the client named; the connection between nodes names another.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("weir-forwarded-host");
/// The scheme of the client's connection, if it is `https`.
const FORWARDED_SCHEME: HeaderName = HeaderName::from_static("weir-forwarded-scheme");

/// The flow-control windows, in bytes, of one response and of all responses of one node. An unread
/// response does not block the others.
const ANSWER_WINDOW_BYTES: u32 = 256 << 10;
const NODE_WINDOW_BYTES: u32 = 64 << 20;

/// A response up to this length is sent once it is complete: until then, the call can still be
/// placed again.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

/// Hop-by-hop headers of the client's connection, which must not be forwarded over HTTP/2.
const OF_CONNECTIONS: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The time after the deadline in which another node may still report that the deadline has passed.
pub const GRACE: Duration = Duration::from_secs(1);

/// An HTTP/2 client for the other nodes, with one connection to each, and one for each WebSocket.
pub(super) struct ForwardClient {
    http: Mutex<Http>,
    auth: NodeAuth,
    silence_max: Duration,
}

/// The connections, and the changes of certificates since they were opened.
struct Http {
    connections: legacy::Client<NodeConnector, Body>,
    changes: Option<watch::Receiver<u64>>,
}

/// A call as received, without its body.
pub struct ForwardedCall<'a> {
    /// The HTTP method.
    pub method: &'a Method,
    /// The request target, as received.
    pub uri: &'a Uri,
    /// The request headers; hop-by-hop headers are not forwarded.
    pub headers: &'a HeaderMap,
    /// The span of the forwarding, whose trace the other node continues.
    pub span: Option<&'a Span>,
}

/// The reason why a forwarded call has no response.
#[derive(Debug, thiserror::Error)]
pub enum NotForwarded {
    /// The call has not started there.
    #[error("the node that was to run it did not take it: {0}")]
    Refused(String),
    /// The call may have started, and may even have ended.
    #[error("the node that ran it was lost: {0}")]
    Lost(String),
}

impl ForwardClient {
    /// Creates a client with separate connections.
    pub(super) fn new(auth: &NodeAuth, silence_max: Duration) -> Self {
        Self { http: Mutex::new(Http::new(auth, silence_max)), auth: auth.clone(), silence_max }
    }

    /// Returns the connections to use. Replaces them after a change of certificates, so that no
    /// request goes to a node that is no longer trusted. Requests in progress keep their
    /// connections.
    fn connections(&self) -> legacy::Client<NodeConnector, Body> {
        let mut http = self.http.lock();
        if http.changes.as_ref().is_some_and(|changes| changes.has_changed().unwrap_or(false)) {
            *http = Http::new(&self.auth, self.silence_max);
        }
        http.connections.clone()
    }

    /// Sends `request` to `target` on the node at `address`.
    pub(super) async fn send(
        &self,
        address: &str,
        target: &str,
        request: Request<Body>,
    ) -> Result<http::Response<hyper::body::Incoming>, legacy::Error> {
        self.send_over(self.connections(), address, target, request).await
    }

    /// Sends `request` over a separate connection, which ends with the response. The body may stay
    /// unread for long: on a shared connection, a few such bodies use up the flow-control window, and
    /// block the bodies of all other requests.
    async fn send_apart(
        &self,
        address: &str,
        target: &str,
        request: Request<Body>,
    ) -> Result<http::Response<hyper::body::Incoming>, legacy::Error> {
        let connection = connections(&self.auth, self.silence_max);
        self.send_over(connection, address, target, request).await
    }

    async fn send_over(
        &self,
        connections: legacy::Client<NodeConnector, Body>,
        address: &str,
        target: &str,
        mut request: Request<Body>,
    ) -> Result<http::Response<hyper::body::Incoming>, legacy::Error> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = address.parse::<Authority>().ok();
        uri.path_and_query = target.parse().ok();
        // An invalid address fails like a connection.
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        self.auth.sign(request.headers_mut());
        connections.request(request).await
    }
}

impl Http {
    fn new(auth: &NodeAuth, silence_max: Duration) -> Self {
        // Subscribes before the connections are opened, so that no later change of certificates is
        // missed.
        let changes = auth.identity().map(NodeIdentity::changes);
        Self { connections: connections(auth, silence_max), changes }
    }
}

/// Creates a client without connections.
fn connections(auth: &NodeAuth, silence_max: Duration) -> legacy::Client<NodeConnector, Body> {
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_only(true)
        .http2_initial_stream_window_size(ANSWER_WINDOW_BYTES)
        .http2_initial_connection_window_size(NODE_WINDOW_BYTES)
        // The dispatcher has to notice first and report it, so that a call that is placed again goes
        // elsewhere.
        .http2_keep_alive_interval(silence_max)
        .http2_keep_alive_timeout(silence_max)
        .http2_keep_alive_while_idle(true)
        .build(NodeConnector::new(auth.identity().cloned()))
}

impl Cluster {
    /// Forwards the call to the node at the other end of `remote`. `held` is dropped when the
    /// response has been sent or dropped, and at `latest` in any case: by then the node has ended
    /// the call, so a slow client does not delay other calls.
    pub async fn forward<Held: Send + 'static>(
        &self,
        remote: &RemotePlacement,
        grant: &ForwardGrant,
        call: &ForwardedCall<'_>,
        body: Body,
        held: Held,
        latest: Instant,
    ) -> Result<Response, NotForwarded> {
        let mut request = Request::new(body);
        *request.method_mut() = call.method.clone();
        let headers = request.headers_mut();
        headers.clone_from(call.headers);
        for hop in OF_CONNECTIONS.iter().chain([&HOST]) {
            headers.remove(hop);
        }
        let authority = || HeaderValue::from_str(call.uri.authority()?.as_str()).ok();
        let host = call.headers.get(HOST).cloned().or_else(authority);
        // A client must not set these headers.
        headers.remove(FORWARDED_HOST);
        headers.remove(FORWARDED_SCHEME);
        headers.extend(host.map(|host| (FORWARDED_HOST, host)));
        if call.uri.scheme() == Some(&Scheme::HTTPS) {
            headers.insert(FORWARDED_SCHEME, HeaderValue::from_static("https"));
        }
        let json = serde_json::to_string(grant).unwrap_or_default();
        let json = HeaderValue::from_str(&json).map_err(|error| NotForwarded::Refused(error.to_string()))?;
        headers.insert(GRANT, json);
        if let Some(span) = call.span {
            span.inject(headers);
        }
        let target = call.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        remote.progress.set(ForwardStep::Sent);
        let sending = async {
            match grant.is_websocket {
                true => self.client.send_apart(&remote.address, target, request).await,
                false => self.client.send(&remote.address, target, request).await,
            }
        };
        let answer = unless_lost(remote, sending).await?;
        let answer = answer.map_err(|error| {
            let text = causes(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
            match error.is_connect() || has_not_begun(&error) {
                true => {
                    remote.progress.set(ForwardStep::Unsent);
                    NotForwarded::Refused(text)
                }
                false => NotForwarded::Lost(text),
            }
        })?;
        if answer.headers().contains_key(REFUSED) {
            remote.progress.set(ForwardStep::Unsent);
            return Err(NotForwarded::Refused(format!("it answered {}", answer.status())));
        }
        remote.answered();
        let (mut head, body) = answer.into_parts();
        head.version = http::Version::HTTP_11;
        if body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX) {
            let whole = unless_lost(remote, body.collect()).await?;
            let whole = whole.map_err(|error| NotForwarded::Lost(error.to_string()))?;
            return Ok(Response::from_parts(head, Body::new(whole)));
        }
        let (ended, end) = oneshot::channel::<Infallible>();
        // Ends with the body, and at the latest soon after the deadline.
        tokio::spawn(async move {
            let _held = held;
            let _ = tokio::time::timeout_at(latest.into(), end).await;
        });
        Ok(Response::from_parts(head, Body::new(Holding { body, _ended: ended })))
    }
}

impl Cluster {
    /// Requests a resource of the internal API from another node. The error is text.
    pub async fn ask(&self, node: NodeId, method: Method, target: &str) -> Result<Response, String> {
        let address = self.view.borrow().nodes.get(&node).map(|member| member.address.clone());
        let address = address.ok_or_else(|| format!("node {} has left the cluster", node.0))?;
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        let answer = self.client.send(&address, target, request).await;
        answer.map(|answer| answer.map(Body::new)).map_err(|error| {
            let text = causes(&error).map(ToString::to_string).collect::<Vec<_>>().join(": ");
            format!("node {} cannot be asked: {text}", node.0)
        })
    }
}

/// Awaits `doing`, unless the node at the other end of `remote` is lost first.
async fn unless_lost<T>(remote: &RemotePlacement, doing: impl Future<Output = T>) -> Result<T, NotForwarded> {
    tokio::select! {
        done = doing => Ok(done),
        () = remote.lost.cancelled() => Err(NotForwarded::Lost("it has been silent".to_owned())),
    }
}

/// The response to a call that has not started here and is to be placed again.
pub fn refused(why: &'static str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(REFUSED, "true")], why).into_response()
}

/// Whether the call was not processed: its connection had ended before it was sent, or a node that
/// shuts down has reported that it does not start the call (RFC 9113, sections 6.8 and 8.7).
fn has_not_begun(error: &legacy::Error) -> bool {
    causes(error).any(|cause| {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let is_farewell =
                error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
            return is_farewell || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
    })
}

/// An error and its chain of causes.
pub(super) fn causes(error: &legacy::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source())
}

/// Restores the host, scheme and target of a forwarded call as the first node received them.
pub fn restore_host<B>(request: &mut Request<B>) {
    if let Some(host) = request.headers_mut().remove(FORWARDED_HOST) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    if request.headers_mut().remove(FORWARDED_SCHEME).is_some()
        && let Some(host) =
            request.headers().get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok())
    {
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(host);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// A body that signals its end.
struct Holding<B> {
    body: B,
    /// Dropped at the end of the body, which completes the receiver.
    _ended: oneshot::Sender<Infallible>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Holding<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_and_host_of_the_client_are_restored() {
        let restored = |scheme: Option<&str>| {
            let mut request = Request::builder().uri("https://10.0.0.2:9347/fn/hello?a");
            request = request.header(FORWARDED_HOST, "weir.test");
            if let Some(scheme) = scheme {
                request = request.header(FORWARDED_SCHEME, scheme);
            }
            let mut request = request.body(()).unwrap();
            restore_host(&mut request);
            assert_eq!(request.headers().len(), 1);
            assert_eq!(request.headers()[HOST], "weir.test");
            request.uri().to_string()
        };
        assert_eq!(restored(None), "/fn/hello?a");
        assert_eq!(restored(Some("https")), "https://weir.test/fn/hello?a");
    }
}
