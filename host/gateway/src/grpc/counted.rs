//! Counts memory that tonic allocates for request bodies against the arena.

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tonic::Status;
use weir_device::{Arena, ArenaScope};

/// Bytes that one call has received, reserved in the arena until the call ends.
pub(super) struct ReservedBytes {
    arena: Arena,
    bytes: AtomicU64,
}

impl ReservedBytes {
    pub(super) fn new(arena: Arena) -> Self {
        Self { arena, bytes: AtomicU64::new(0) }
    }

    fn grow(&self, bytes: u64) -> Result<(), Status> {
        self.arena.reserve(bytes).map_err(|error| match error.scope {
            ArenaScope::Tenant => Status::resource_exhausted(error.to_string()),
            ArenaScope::Node => Status::unavailable(error.to_string()),
        })?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Releases the reservation: the received bytes are no longer in use.
    pub(super) fn clear(&self) {
        self.arena.release(self.bytes.swap(0, Ordering::Relaxed));
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Request body that counts the bytes that it yields.
pub(super) struct CountedBody {
    body: Body,
    reserved: Arc<ReservedBytes>,
}

impl CountedBody {
    pub(super) fn new(body: Body, reserved: Arc<ReservedBytes>) -> Self {
        Self { body, reserved }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let frame = frame.map(|frame| {
            let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
            self.reserved.grow(frame.data_ref().map_or(0, Bytes::len) as u64)?;
            Ok(frame)
        });
        Poll::Ready(frame)
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
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn received_bytes_count_until_the_call_ends() {
        let arena = Arena::new(1_000);
        let reserved = Arc::new(ReservedBytes::new(arena.clone()));
        let body = CountedBody::new(Body::from(vec![0; 600]), reserved.clone());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 600);
        assert_eq!(arena.used_bytes(), 600);
        let more = CountedBody::new(Body::from(vec![0; 600]), reserved.clone());
        assert_eq!(more.collect().await.unwrap_err().code(), tonic::Code::Unavailable);
        drop(reserved);
        assert_eq!(arena.used_bytes(), 0);
    }
}
