//! Streamed bodies that can be sent again while none of them was read.

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use weir_sandbox::instance::GuestRequestBody;

/// A streamed body, for several attempts of which one reads it. The body of a WebSocket begins once the
/// function has answered, so a node that refuses the call has read nothing. Cheap to clone.
#[derive(Clone)]
pub(super) struct ResendableBody(Arc<ResendableState>);

struct ResendableState {
    body: Mutex<Body>,
    is_read: AtomicBool,
}

impl ResendableBody {
    fn new(body: Body) -> Self {
        Self(Arc::new(ResendableState { body: Mutex::new(body), is_read: AtomicBool::new(false) }))
    }

    /// Shares a streamed body; `None` for other bodies.
    pub(super) fn share(body: &mut Option<GuestRequestBody>) -> Option<Self> {
        let Some(GuestRequestBody::Stream(stream)) = body else { return None };
        let shared = Self::new(std::mem::take(stream));
        *stream = shared.body();
        Some(shared)
    }

    /// The body for one attempt. Attempts follow each other.
    pub(super) fn body(&self) -> Body {
        Body::new(self.clone())
    }

    /// Whether an attempt has read a part of the body, or its end.
    pub(super) fn is_read(&self) -> bool {
        self.0.is_read.load(Ordering::Acquire)
    }
}

impl HttpBody for ResendableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut *self.0.body.lock()).poll_frame(cx));
        self.0.is_read.store(true, Ordering::Release);
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt as _, stream};
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn unread_body_is_sent_again() {
        let (sender, receiver) = futures::channel::mpsc::unbounded::<Result<Bytes, axum::Error>>();
        let body = ResendableBody::new(Body::from_stream(stream::StreamExt::fuse(receiver)));
        let mut first = body.body();
        assert!(first.frame().now_or_never().is_none());
        drop(first);
        assert!(!body.is_read());
        sender.unbounded_send(Ok(Bytes::from_static(b"abc"))).unwrap();
        drop(sender);
        assert_eq!(body.body().collect().await.unwrap().to_bytes(), "abc");
        assert!(body.is_read());
    }
}
