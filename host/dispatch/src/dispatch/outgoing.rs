//! A guest's response on its way to the client, with its size limit and accounting.

use super::Account;
use super::GuestThreads;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;
use weir_call::Fault;
use weir_call::body::{BodyOverrun, Guarded};
use weir_call::headers::ERROR_CODE;
use weir_call::websocket;
use weir_cluster::REFUSED;
use weir_sandbox::instance::{DeadlineExtension, InvocationReport, OutputSink};
use weir_types::ErrorCode;

/// The terms under which a response is sent.
pub(super) struct Outgoing<'a> {
    pub(super) guests: &'a GuestThreads,
    pub(super) account: &'a Arc<Account>,
    pub(super) log: Arc<OutputSink>,
    pub(super) bytes_max: u64,
    /// Time that the guest has to end after its body; `None`: until its deadline.
    pub(super) rest_time: Option<Duration>,
    /// The terms of a WebSocket, for a response that accepts it.
    pub(super) websocket: Option<WebSocketTerms>,
    /// Whether the response must not have a body, regardless of the guest (for example, to a HEAD
    /// request).
    pub(super) is_bodiless: bool,
}

/// The terms of a function that serves a WebSocket.
pub(super) struct WebSocketTerms {
    /// The time of the WebSocket.
    pub(super) time: DeadlineExtension,
    /// Time that the function has to end after its messages.
    pub(super) close_time: Duration,
}

/// Whether a response of gRPC consists of its head only. Clients expect such a response to end with
/// its head, and functions cannot say so: an empty body ends after the head.
fn is_trailers_only(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
        && headers.contains_key("grpc-status")
}

/// The whole body of a guest that has ended.
struct CollectedBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl CollectedBody {
    async fn collect(body: Body) -> Result<Self, Fault> {
        let collected = body.collect().await.map_err(|error| {
            Fault::new(ErrorCode::GuestError, format!("the function broke off its answer: {error}"))
        })?;
        let trailers = collected.trailers().cloned();
        Ok(Self { data: collected.to_bytes(), trailers })
    }

    fn into_body(self) -> Body {
        let Self { data, trailers } = self;
        match trailers {
            None => Body::from(data),
            // Without an exact size hint: HTTP/1 has trailers only in chunked bodies.
            Some(trailers) => {
                let frames = [Frame::data(data), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
                Body::new(StreamBody::new(stream::iter(frames)))
            }
        }
    }
}

impl Outgoing<'_> {
    /// Sends `response`. `rest` is the guest, if it has not ended yet.
    ///
    /// Records its status, and logs a server error, which clients get without the node's own text.
    pub(super) async fn send(
        mut self,
        response: Response,
        rest: Option<AbortOnDropHandle<InvocationReport>>,
    ) -> Result<Response, Fault> {
        if let Some(websocket) = &self.websocket
            && websocket::is_accepted(response.status(), response.headers())
        {
            websocket.time.grant();
            // Each message has its limit.
            self.bytes_max = u64::MAX;
            self.rest_time = Some(websocket.close_time);
            self.account.serve_websocket();
        }
        let account = self.account.clone();
        let log = self.log.clone();
        let response = self.checked(response, rest).await?;
        account.answered(response.status());
        if response.status().is_server_error() {
            log.note(format!("the function answered with status {}", response.status()));
        }
        Ok(response)
    }

    async fn checked(
        self,
        response: Response,
        rest: Option<AbortOnDropHandle<InvocationReport>>,
    ) -> Result<Response, Fault> {
        let (mut head, body) = response.into_parts();
        // The node's own headers, which clients and other nodes trust; a guest must not set them.
        head.headers.remove(ERROR_CODE);
        head.headers.remove(REFUSED);
        // A client does not poll the end of a body that is known to be empty.
        let is_empty = http_body::Body::size_hint(&body).exact() == Some(0);
        if self.is_bodiless
            || is_empty
            || is_trailers_only(&head.headers)
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        {
            if let Some(rest) = rest {
                self.discard(body, rest);
            }
            return Ok(Response::from_parts(head, Body::empty()));
        }
        let declared = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if http_body::Body::size_hint(&body).lower().max(declared.unwrap_or(0)) > self.bytes_max {
            return Err(self.too_large());
        }
        let Some(rest) = rest else {
            // The guest has ended: the whole body is here, so it is sent in one piece with its
            // length.
            let whole = CollectedBody::collect(body).await?;
            head.extensions.remove::<BodyOverrun>();
            let len = whole.data.len() as u64;
            if len > self.bytes_max {
                return Err(self.too_large());
            }
            if let Some(declared) = declared.filter(|declared| *declared != len) {
                let text = format!("the function's answer has {len} of {declared} bytes");
                return Err(Fault::new(ErrorCode::GuestError, text));
            }
            return Ok(Response::from_parts(head, whole.into_body()));
        };
        let body = Guarded::body(body, self.bytes_max, declared, rest, self.rest_time, self.account.clone());
        Ok(Response::from_parts(head, body))
    }

    /// Reads an unwanted body, so that the guest can finish: a guest cannot distinguish a dropped
    /// body from a disconnected client. The guest's own limits bound this.
    fn discard(&self, mut body: Body, rest: AbortOnDropHandle<InvocationReport>) {
        self.guests.spawn(async move {
            while let Some(Ok(_)) = body.frame().await {}
            // The account already has the guest's outcome.
            let _ = rest.await;
        });
    }

    fn too_large(&self) -> Fault {
        let bytes_max = self.bytes_max;
        let text =
            format!("the function's answer has more than {bytes_max} bytes (limits.response_body_bytes)");
        Fault::new(ErrorCode::ResponseTooLarge, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;

    /// The body of a guest that ended before its response was sent lost its trailers, and with them
    /// the status of a gRPC call.
    #[tokio::test]
    async fn collected_body_keeps_trailers() {
        let frames = |trailers: Option<HeaderMap>| {
            let data = [b"ab", b"cd"].map(|piece| Frame::data(Bytes::from_static(piece)));
            let frames = data.into_iter().chain(trailers.map(Frame::trailers)).map(Ok::<_, Infallible>);
            Body::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())))
        };
        let status = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("5"),
        )]);
        for (trailers, exact) in [(None, Some(4)), (Some(status), None)] {
            let body = CollectedBody::collect(frames(trailers.clone())).await.unwrap().into_body();
            assert_eq!(body.size_hint().exact(), exact);
            let sent = body.collect().await.unwrap();
            assert_eq!(sent.trailers(), trailers.as_ref());
            assert_eq!(sent.to_bytes(), "abcd");
        }
    }

    #[test]
    fn only_heads_with_a_grpc_status_are_trailers_only() {
        let is_it = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|&(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
            is_trailers_only(&headers.collect())
        };
        let grpc = ("content-type", "application/grpc+proto");
        assert!(is_it(&[grpc, ("grpc-status", "12")]));
        assert!(!is_it(&[grpc]) && !is_it(&[("grpc-status", "12")]) && !is_it(&[]));
        assert!(!is_it(&[("content-type", "text/plain"), ("grpc-status", "12")]));
    }
}
