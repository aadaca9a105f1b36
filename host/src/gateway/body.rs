//! Size limits for the bodies of requests and responses.

use super::error::ApiError;
use crate::instance::RequestBody;
use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio_util::task::AbortOnDropHandle;
use weir_device::{Arena, Buffer};
use weir_types::ErrorCode;

/// Size up to which a request body is received before its function gets an instance, so that a slow
/// sender holds no instance. Larger bodies, and bodies of unknown length, are streamed to the
/// running guest.
const WHOLE_BYTES_MAX: u64 = 8 << 20;
/// Memory reserved ahead for a body of declared length, as a multiple of the bytes received.
const AHEAD: usize = 16;

/// Size limit of a body, and the name of its setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit {
    pub(crate) bytes_max: u64,
    pub(crate) setting: &'static str,
}

/// Receives a request body, or prepares to stream it.
pub(crate) async fn receive(
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<RequestBody, ApiError> {
    if body.is_end_stream() || length.is_some_and(|length| length <= WHOLE_BYTES_MAX) {
        return receive_whole(body, length, arena, limit).await.map(RequestBody::Whole);
    }
    if length.is_some_and(|length| length > limit.bytes_max) {
        return Err(limit.too_large());
    }
    let bytes_max = usize::try_from(limit.bytes_max).unwrap_or(usize::MAX);
    Ok(RequestBody::Stream(Body::new(Limited::new(body, bytes_max))))
}

/// Receives a whole request body.
pub(crate) async fn receive_whole(
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<Buffer, ApiError> {
    receive_behind(0, body, length, arena, limit).await
}

/// Receives a whole request body at offset `lead` of its memory. The memory is aligned, so that the
/// caller can align a part of the body by its choice of `lead`.
pub(crate) async fn receive_behind(
    lead: usize,
    body: Body,
    length: Option<u64>,
    arena: &Arena,
    limit: BodyLimit,
) -> Result<Buffer, ApiError> {
    if length.is_some_and(|length| length > limit.bytes_max) {
        return Err(limit.too_large());
    }
    let full = |_| {
        ApiError::new(ErrorCode::Unavailable, "the node has no memory left for request bodies; try again")
    };
    let length = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    let mut buffer = arena.with_capacity(lead).map_err(full)?;
    buffer.resize_with_zeroes(lead).map_err(full)?;
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| {
            ApiError::new(
                ErrorCode::BodyMismatch,
                format!("the request body ended early or is broken: {error}"),
            )
        })?;
        let received = buffer.len() - lead + frame.len();
        if received as u64 > limit.bytes_max {
            return Err(limit.too_large());
        }
        if lead + received > buffer.capacity() {
            // A declared length is only a promise: reserve at most a multiple of the bytes
            // received.
            let ahead = length.min(received.saturating_mul(AHEAD)).max(received);
            buffer.reserve(lead + ahead - buffer.len()).map_err(full)?;
        }
        buffer.extend_from_slice(&frame).map_err(full)?;
    }
    Ok(buffer.freeze().slice(lead..))
}

impl BodyLimit {
    pub(crate) fn too_large(self) -> ApiError {
        let Self { bytes_max, setting } = self;
        ApiError::new(
            ErrorCode::BodyTooLarge,
            format!("the request body has more than {bytes_max} bytes ({setting})"),
        )
    }
}

/// Task of a guest that continues while its response is sent.
pub(crate) type Rest<Report> = AbortOnDropHandle<Report>;

/// Response body with a size limit. Dropping the body half-way, as when the client disconnects,
/// stops the guest that writes it. After the whole body was sent, the guest may finish its work.
pub(crate) struct Guarded<Report, Guard: Witness> {
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
    guard: Guard,
}

/// Observer of a response body that ends early.
pub(crate) trait Witness {
    /// Called when the body was cut off, or when the client disconnected.
    fn cut_off(&self, code: ErrorCode);
}

impl<Report: Send + 'static, Guard: Witness + Send + Unpin + 'static> Guarded<Report, Guard> {
    pub(crate) fn body(
        body: Body,
        bytes_max: u64,
        declared: Option<u64>,
        rest: Rest<Report>,
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
            guard,
        })
    }
}

impl<Report, Guard: Witness + Unpin> HttpBody for Guarded<Report, Guard> {
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

impl<Report, Guard: Witness> Drop for Guarded<Report, Guard> {
    fn drop(&mut self) {
        if self.has_ended || self.body.is_end_stream() {
            // The guest's deadline ends its remaining work.
            if let Some(rest) = self.rest.take() {
                drop(rest.detach());
            }
        } else if !self.is_cut_off {
            // The client disconnected, perhaps before the first byte.
            self.guard.cut_off(ErrorCode::Cancelled);
        }
    }
}

/// Collects the body of a request with small JSON.
pub(crate) async fn small(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let collected = Limited::new(body, bytes_max).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            return ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("the request body has more than {bytes_max} bytes"),
            );
        }
        ApiError::new(ErrorCode::BodyMismatch, format!("the request body ended early or is broken: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, OnceLock};

    impl Witness for Arc<OnceLock<ErrorCode>> {
        fn cut_off(&self, code: ErrorCode) {
            let _ = self.set(code);
        }
    }

    fn guarded(body: &'static str) -> (Body, Arc<OnceLock<ErrorCode>>) {
        let code = Arc::default();
        let rest = AbortOnDropHandle::new(tokio::spawn(std::future::pending::<()>()));
        (Guarded::body(Body::from(body), 4, None, rest, Arc::clone(&code)), code)
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

    #[tokio::test]
    async fn body_above_its_limit_keeps_its_own_code() {
        let (body, code) = guarded("large");
        assert!(body.collect().await.is_err());
        assert_eq!(code.get(), Some(&ErrorCode::ResponseTooLarge));
    }
}
