//! Bodies of answers on a connection: counted while the client takes them.

use super::activity::RequestInProgress;
use super::connection::ConnectionState;
use super::progress::{StallTimer, WriteProgress};
use crate::answers::{CountedBytes, Scopes};
use axum::body::Body;
use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use weir_call::body::BodyOverrun;
use weir_telemetry::CutCause;

/// Bytes that may wait in an HTTP/2 connection after the end of their answer. The stream of a
/// larger answer stays open until the client has taken it, so that the node can reset the stream.
const H2_TAIL_BYTES_MAX: u64 = 64 << 10;

/// One answer, from its head until the connection has written or dropped its last byte.
#[derive(Debug)]
pub(super) struct ResponseTracker {
    connection: ConnectionState,
    /// Bytes of this answer that wait for the client.
    progress: WriteProgress,
    /// Set when the function that writes the answer exceeds its limit of time.
    overrun: Option<BodyOverrun>,
    scopes: Arc<Scopes>,
    /// Memory of an answer that was complete from its start.
    whole: Option<CountedBytes>,
    /// Wakes the body when no bytes wait any more.
    drained: AtomicWaker,
    _under_way: RequestInProgress,
}

/// Body of an answer.
pub(super) struct AnswerBody {
    body: Body,
    answer: Arc<ResponseTracker>,
    /// Whether the end waits until few bytes are left.
    is_end_held: bool,
    /// Trailers that follow bytes that still wait.
    trailers: Option<HeaderMap>,
    has_ended: bool,
}

/// Piece of an answer's body. Counts until it is written or dropped.
pub(super) struct Piece {
    bytes: Bytes,
    answer: Arc<ResponseTracker>,
    _counted: Option<CountedBytes>,
}

impl ResponseTracker {
    /// Creates the record of an answer, whose memory counts in `scopes`.
    pub(super) fn new(
        connection: ConnectionState,
        under_way: RequestInProgress,
        scopes: Arc<Scopes>,
        whole: Option<CountedBytes>,
        overrun: Option<BodyOverrun>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connection,
            progress: WriteProgress::default(),
            overrun,
            scopes,
            whole,
            drained: AtomicWaker::new(),
            _under_way: under_way,
        })
    }

    /// Is ready with the reason once the answer must be cut off.
    pub(super) fn poll_cut(&self, timer: &mut StallTimer, cx: &mut Context<'_>) -> Poll<CutCause> {
        poll_cut(&self.progress, self.overrun.as_ref(), timer, cx)
    }

    fn add(self: &Arc<Self>, bytes: Bytes) -> Piece {
        let len = bytes.len() as u64;
        self.progress.add(len);
        self.connection.progress().add(len);
        let counted = (self.whole.is_none() && len > 0).then(|| CountedBytes::new(&self.scopes, len));
        Piece { bytes, answer: self.clone(), _counted: counted }
    }
}

/// Is ready with the reason once an answer must be cut off: bytes wait in `progress`, and the
/// client takes too few, or the function that writes the answer has exceeded its time.
pub(super) fn poll_cut(
    progress: &WriteProgress,
    overrun: Option<&BodyOverrun>,
    timer: &mut StallTimer,
    cx: &mut Context<'_>,
) -> Poll<CutCause> {
    // Without waiting bytes, the body itself reports the overrun.
    if overrun.is_some_and(|overrun| overrun.poll(cx).is_ready()) && progress.waiting_bytes() > 0 {
        return Poll::Ready(CutCause::Overrun);
    }
    timer.poll(progress, cx).map(|()| CutCause::Stalled)
}

impl AnswerBody {
    /// Wraps the body of `answer`. `is_h2`: whether it is sent on a stream of HTTP/2.
    pub(super) fn new(body: Body, answer: Arc<ResponseTracker>, is_h2: bool) -> Self {
        Self { body, answer, is_end_held: is_h2, trailers: None, has_ended: false }
    }

    /// Waits until few enough bytes wait for the client.
    fn poll_tail(&self, cx: &mut Context<'_>) -> Poll<()> {
        let is_short = || self.answer.progress.waiting_bytes() <= H2_TAIL_BYTES_MAX;
        if !self.is_end_held || is_short() {
            return Poll::Ready(());
        }
        self.answer.drained.register(cx.waker());
        if is_short() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl HttpBody for AnswerBody {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let this = self.get_mut();
        if !this.has_ended {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                None => this.has_ended = true,
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(this.answer.add(bytes))))),
                    // The type of the data changes, and trailers have none.
                    Err(frame) => {
                        this.trailers = frame.into_trailers().ok();
                        this.has_ended = true;
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            }
        }
        ready!(this.poll_tail(cx));
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let is_ended = self.trailers.is_none() && (self.has_ended || self.body.is_end_stream());
        is_ended && (!self.is_end_held || self.answer.progress.waiting_bytes() <= H2_TAIL_BYTES_MAX)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(slices)
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        let bytes = bytes as u64;
        self.answer.connection.progress().take(bytes);
        self.answer.progress.take(bytes);
        if self.answer.progress.waiting_bytes() <= H2_TAIL_BYTES_MAX {
            self.answer.drained.wake();
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let bytes = self.bytes.len() as u64;
        if bytes > 0 {
            self.answer.connection.progress().remove(bytes);
            self.answer.progress.remove(bytes);
            self.answer.drained.wake();
        }
    }
}

#[cfg(test)]
mod tests;
