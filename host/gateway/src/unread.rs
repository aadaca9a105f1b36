//! Unread bodies of rejected requests.
//!
//! A response that is sent before the body was read leaves bytes on the connection. Closing the
//! connection then makes the client's kernel discard the response, and leaving it open without
//! notice makes the client's next request fail. Therefore, the gateway reads the bytes that have
//! already arrived. If the body has more, the response announces that the connection closes, and
//! `server/linger.rs` lets the client read the response.

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::Version;
use http::header::EXPECT;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of a rejected body that are read before the response.
const BYTES_MAX: usize = 256 << 10;
/// Time for which a rejected body is read before the response.
const TIME_MAX: Duration = Duration::from_millis(20);

/// Body of a request that may be rejected before the body is read.
pub(super) struct Unread(Option<SharedBody>);

type SharedBody = Arc<Mutex<Option<Body>>>;

impl Unread {
    /// Watches the body of `request`.
    pub(super) fn watch(request: Request) -> (Request, Self) {
        // HTTP/2 resets only the stream. A client that waits for `100 Continue` has sent nothing
        // yet, and does not get that response.
        let is_simple = request.version() > Version::HTTP_11 || request.headers().contains_key(EXPECT);
        if request.body().is_end_stream() || is_simple {
            return (request, Self(None));
        }
        let (head, body) = request.into_parts();
        let shared = SharedBody::new(Mutex::new(Some(body)));
        (Request::from_parts(head, Body::new(Watched(shared.clone()))), Self(Some(shared)))
    }

    /// Reads the rest of the body. Returns false if the rest is too large or too slow.
    pub(super) async fn drain(self) -> bool {
        let Some(mut body) = self.0.and_then(|shared| shared.lock().take()) else { return true };
        let reading = async {
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                bytes += frame.data_ref().map_or(0, Bytes::len);
                if bytes > BYTES_MAX {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(TIME_MAX, reading).await.unwrap_or(false)
    }
}

struct Watched(SharedBody);

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut shared = self.0.lock();
        let Some(body) = &mut *shared else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            *shared = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn request(bytes: usize) -> Request {
        let pieces = (0..bytes.div_ceil(1_000)).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![0; 1_000])));
        Request::new(Body::from_stream(stream::iter(pieces)))
    }

    #[tokio::test]
    async fn unread_body_is_drained_up_to_a_limit() {
        for (bytes, is_drained) in [(0, true), (10_000, true), (BYTES_MAX + 10_000, false)] {
            let (request, unread) = Unread::watch(request(bytes));
            let mut body = request.into_body();
            let _ = body.frame().await;
            drop(body);
            assert_eq!(unread.drain().await, is_drained, "{bytes}");
        }
    }

    #[tokio::test]
    async fn watched_body_passes_through_unchanged() {
        let (request, unread) = Unread::watch(request(10_000));
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes().len(), 10_000);
        assert!(unread.drain().await);
    }

    #[tokio::test]
    async fn client_that_expects_continue_is_not_drained() {
        let mut waiting = request(10_000);
        waiting.headers_mut().insert(EXPECT, http::HeaderValue::from_static("100-continue"));
        let (_, unread) = Unread::watch(waiting);
        assert!(unread.0.is_none());
    }
}
