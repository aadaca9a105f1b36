//! Size limits for the bodies of requests and responses.

use crate::Fault;
use axum::body::Body;
use bytes::Bytes;
use futures::task::AtomicWaker;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use weir_device::{Arena, ArenaExhausted, ArenaScope, Buffer};
use weir_types::ErrorCode;

/// Memory reserved ahead for a body of declared length, as a multiple of the bytes received.
const AHEAD: usize = 16;

/// Size limit of a body, and the name of its setting.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimit {
    /// The largest accepted size.
    pub bytes_max: u64,
    /// The setting that limits the size, such as `limits.request_body_bytes`, for the message.
    pub setting: &'static str,
}

/// Receives a whole request body.
pub async fn receive_whole(
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<Buffer, Fault> {
    receive_behind(0, body, length, arena, limit).await
}

/// Receives a whole request body with its trailers, if it has any.
pub async fn receive_with_trailers(
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<(Buffer, Option<HeaderMap>), Fault> {
    receive(0, body, length, arena, limit).await
}

/// Receives a whole request body at offset `lead` of its memory. The memory is aligned, so that the
/// caller can align a part of the body by its choice of `lead`.
pub async fn receive_behind(
    lead: usize,
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<Buffer, Fault> {
    receive(lead, body, length, arena, limit).await.map(|(buffer, _)| buffer)
}

async fn receive(
    lead: usize,
    mut body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<(Buffer, Option<HeaderMap>), Fault> {
    if length.is_some_and(|length| length > limit.bytes_max) {
        return Err(limit.too_large());
    }
    let length = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    let mut buffer = arena.with_capacity(lead).map_err(no_room)?;
    buffer.resize_with_zeroes(lead).map_err(no_room)?;
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Fault::new(ErrorCode::BodyMismatch, format!("the request body ended early or is broken: {error}"))
        })?;
        let frame = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        let received = buffer.len() - lead + frame.len();
        if received as u64 > limit.bytes_max {
            return Err(limit.too_large());
        }
        if lead + received > buffer.capacity() {
            // A declared length is only a promise: reserve at most a multiple of the bytes
            // received.
            let ahead = length.min(received.saturating_mul(AHEAD)).max(received);
            buffer.reserve(lead + ahead - buffer.len()).map_err(no_room)?;
        }
        buffer.extend_from_slice(&frame).map_err(no_room)?;
    }
    Ok((buffer.freeze().slice(lead..), trailers))
}

/// The fault for a body that finds no room in the arena, or in the share of its tenant.
pub fn no_room(error: ArenaExhausted) -> Fault {
    match error.scope {
        ArenaScope::Tenant => {
            Fault::new(ErrorCode::QueueFull, format!("{error}; try again once other calls have ended"))
        }
        ArenaScope::Node => {
            let text = "the node has no memory left for request bodies; try again";
            Fault::new(ErrorCode::Unavailable, text)
        }
    }
}

impl BodyLimit {
    /// The error for a body above the limit.
    pub fn too_large(self) -> Fault {
        let Self { bytes_max, setting } = self;
        Fault::new(
            ErrorCode::BodyTooLarge,
            format!("the request body has more than {bytes_max} bytes ({setting})"),
        )
    }
}

/// Response extension: the whole body is in memory when the response starts.
#[derive(Debug, Clone, Copy)]
pub struct WholeBody;

/// Response extension: tells the connection that the function that writes the body has exceeded a
/// limit of time, and that the rest of the body must not wait for the client. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct BodyOverrun(Arc<OverrunState>);

#[derive(Debug, Default)]
struct OverrunState {
    is_set: AtomicBool,
    /// Wakes the task that serves the answer.
    connection: AtomicWaker,
}

impl BodyOverrun {
    /// Records that a limit of time was exceeded.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.connection.wake();
    }

    /// Is ready once a limit of time was exceeded. Only the last task that polls is woken.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.connection.register(cx.waker());
        if self.0.is_set.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Task of a guest that continues while its response is sent.
pub type Rest<Report> = AbortOnDropHandle<Report>;

/// Response body with a size limit. Dropping the body half-way, as when the client disconnects,
/// stops the guest that writes it. After the whole body was sent, the guest may finish its work.
pub struct Guarded<Report: Send + 'static, Guard: BodyObserver> {
    body: Body,
    bytes_left: u64,
    bytes_max: u64,
    /// Bytes left of the length that the guest declared, if any. The server may stop polling after
    /// these bytes, without polling for the end.
    declared_left: Option<u64>,
    has_ended: bool,
    /// Whether the node or the guest has cut the body off.
    is_cut_off: bool,
    rest: Option<Rest<Report>>,
    /// Time that the guest has to end after its body; `None`: until its deadline.
    rest_time: Option<Duration>,
    guard: Guard,
}

/// Observer of a response body that ends early.
pub trait BodyObserver {
    /// Called when the body was cut off, or when the client disconnected.
    fn cut_off(&self, code: ErrorCode);
}

impl<T: BodyObserver> BodyObserver for Arc<T> {
    fn cut_off(&self, code: ErrorCode) {
        (**self).cut_off(code);
    }
}

impl<Report: Send + 'static, Guard: BodyObserver + Send + Unpin + 'static> Guarded<Report, Guard> {
    /// Limits `body` to `bytes_max` and to its `declared` length. Holds the guest's task `rest`;
    /// `guard` observes a body that is cut off. After the body, the guest may continue for `rest_time`,
    /// or until its deadline.
    pub fn body(
        body: Body,
        bytes_max: u64,
        declared: Option<u64>,
        rest: Rest<Report>,
        rest_time: Option<Duration>,
        guard: Guard,
    ) -> Body {
        let rest = Some(rest);
        Body::new(Self {
            body,
            bytes_left: bytes_max,
            bytes_max,
            declared_left: declared,
            has_ended: declared == Some(0),
            is_cut_off: false,
            rest,
            rest_time,
            guard,
        })
    }
}

impl<Report: Send + 'static, Guard: BodyObserver + Unpin> HttpBody for Guarded<Report, Guard> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose();
        let Some(frame) = frame.inspect_err(|_| self.is_cut_off = true)? else {
            if let Some(left) = self.declared_left.filter(|left| *left > 0) {
                self.is_cut_off = true;
                self.guard.cut_off(ErrorCode::GuestError);
                let text = format!("the function's answer ended {left} bytes short of its content-length");
                return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(text)))));
            }
            self.has_ended = true;
            return Poll::Ready(None);
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        if bytes > self.bytes_left {
            // The head was already sent: cutting the body off shows the client that the response is
            // incomplete.
            tracing::warn!(
                bytes_max = self.bytes_max,
                "response cut: it is larger than the function's limit"
            );
            let text =
                format!("the response has more than {} bytes (limits.response_body_bytes)", self.bytes_max);
            self.is_cut_off = true;
            self.guard.cut_off(ErrorCode::ResponseTooLarge);
            return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(text)))));
        }
        self.bytes_left -= bytes;
        self.declared_left = self.declared_left.map(|left| left.saturating_sub(bytes));
        self.has_ended = self.declared_left == Some(0) || self.body.is_end_stream();
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<Report: Send + 'static, Guard: BodyObserver> Drop for Guarded<Report, Guard> {
    fn drop(&mut self) {
        if self.has_ended || self.body.is_end_stream() {
            match (self.rest.take(), self.rest_time) {
                // The guest is stopped when `rest` is dropped.
                (Some(rest), Some(time)) => {
                    if let Ok(runtime) = Handle::try_current() {
                        runtime.spawn(async move { timeout(time, rest).await.is_ok() });
                    }
                }
                // The guest's deadline ends its remaining work.
                (Some(rest), None) => drop(rest.detach()),
                (None, _) => {}
            }
        } else if !self.is_cut_off {
            // The client disconnected, perhaps before the first byte.
            self.guard.cut_off(ErrorCode::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use weir_types::TenantId;

    impl BodyObserver for OnceLock<ErrorCode> {
        fn cut_off(&self, code: ErrorCode) {
            let _ = self.set(code);
        }
    }

    fn guarded(body: &'static str) -> (Body, Arc<OnceLock<ErrorCode>>) {
        let code = Arc::<OnceLock<ErrorCode>>::default();
        let rest = AbortOnDropHandle::new(tokio::spawn(std::future::pending::<()>()));
        (Guarded::body(Body::from(body), 4, None, rest, None, code.clone()), code)
    }

    #[tokio::test]
    async fn body_without_room_names_the_limit_of_its_tenant() {
        let arena = Arena::with_shares(1 << 20, |_| 100 << 10);
        let tenant = arena.tenant(&TenantId::default());
        let limit = BodyLimit { bytes_max: 10 << 20, setting: "limit" };
        let receiving = |bytes: usize, arena| receive_whole(Body::from(vec![0; bytes]), None, arena, limit);
        let fault = receiving(200 << 10, &tenant).await.unwrap_err();
        assert_eq!(fault.code, ErrorCode::QueueFull);
        assert!(fault.text.contains("arena_bytes_max of [node.tenants]"), "{}", fault.text);
        assert_eq!(receiving(200 << 10, &arena).await.unwrap().len(), 200 << 10);
        assert_eq!(receiving(2 << 20, &arena).await.unwrap_err().code, ErrorCode::Unavailable);
    }

    #[tokio::test]
    async fn body_dropped_before_the_first_read_counts_as_cancelled() {
        let (body, code) = guarded("body");
        drop(body);
        assert_eq!(code.get(), Some(&ErrorCode::Cancelled));
    }

    #[tokio::test]
    async fn body_read_to_its_end_counts_as_complete() {
        let (body, code) = guarded("body");
        assert_eq!(body.collect().await.unwrap().to_bytes(), "body");
        assert_eq!(code.get(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn guest_that_continues_after_its_body_is_stopped_in_time() {
        for (rest_time, is_stopped) in [(Some(Duration::from_secs(5)), true), (None, false)] {
            let guest = tokio::spawn(std::future::pending::<()>());
            let handle = guest.abort_handle();
            let code = Arc::<OnceLock<ErrorCode>>::default();
            let rest = AbortOnDropHandle::new(guest);
            Guarded::body(Body::from("body"), 4, None, rest, rest_time, code).collect().await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(!handle.is_finished());
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(handle.is_finished(), is_stopped);
        }
    }

    #[tokio::test]
    async fn body_above_its_limit_keeps_its_own_code() {
        let (body, code) = guarded("large");
        assert!(body.collect().await.is_err());
        assert_eq!(code.get(), Some(&ErrorCode::ResponseTooLarge));
    }
}
