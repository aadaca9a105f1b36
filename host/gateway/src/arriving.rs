//! Request bodies that stop arriving.
//!
//! The gateway reads most bodies as a whole before it does anything. A client that sends half of
//! such a body would hold its connection, and an upload its permit, for as long as it likes.
//! Therefore, a body must arrive at a minimum rate, measured while the gateway waits for more of
//! it. Bodies that are streamed to functions are limited by the function's deadline instead, since
//! silence may be part of their protocol. For the same reason, the rule does not apply to links
//! between nodes and to streams of inferences over gRPC.

use super::error::ApiError;
use super::grpc;
use crate::ArrivalConfig;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use weir_cluster::{GRANT, LINK_PATH};
use weir_types::ErrorCode;

/// Whether the body of a request has stopped arriving.
pub(super) struct BodyArrival {
    has_stalled: Option<Arc<AtomicBool>>,
    stall_ms: u64,
}

impl BodyArrival {
    /// Watches the body of `request`, unless it may be silent.
    pub(super) fn watch(request: Request, config: &ArrivalConfig) -> (Request, Self) {
        let stall_ms = config.stall_ms;
        if request.body().is_end_stream() || may_be_silent(&request) {
            return (request, Self { has_stalled: None, stall_ms });
        }
        let has_stalled = Arc::new(AtomicBool::new(false));
        let window = Duration::from_millis(stall_ms);
        let bytes_min = config.bytes_per_s_min.saturating_mul(stall_ms) / 1_000;
        let request = request.map(|body| {
            Body::new(Arriving {
                body,
                window,
                bytes_min: bytes_min.max(1),
                waiting: None,
                read_at: None,
                has_stalled: has_stalled.clone(),
            })
        });
        (request, Self { has_stalled: Some(has_stalled), stall_ms })
    }

    /// Returns the error of a body that has stopped arriving.
    pub(super) fn error(&self) -> Option<ApiError> {
        self.has_stalled.as_ref().filter(|has_stalled| has_stalled.load(Ordering::Acquire))?;
        let text = format!(
            "the request body stopped arriving for {} ms, or came too slowly (gateway.arrival); send it again",
            self.stall_ms
        );
        Some(ApiError::new(ErrorCode::BodyStalled, text))
    }
}

/// Whether silence may be part of the protocol of the request's body.
fn may_be_silent(request: &Request) -> bool {
    let path = request.uri().path();
    let is_of_cluster = path == LINK_PATH || request.headers().contains_key(GRANT);
    path.starts_with("/fn/") || grpc::is_stream(path) || is_of_cluster
}

/// Body that must arrive at a lowest rate while its reader waits.
struct Arriving {
    body: Body,
    window: Duration,
    bytes_min: u64,
    /// The current window, and the bytes that arrived in it.
    waiting: Option<(Pin<Box<Sleep>>, u64)>,
    /// The time at which the reader got its last frame. Only its waiting counts.
    read_at: Option<Instant>,
    has_stalled: Arc<AtomicBool>,
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Some(read_at) = this.read_at.take()
            && let Some((until, _)) = &mut this.waiting
        {
            let pause = read_at.elapsed();
            let later = until.deadline() + pause;
            until.as_mut().reset(later);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            let bytes = frame.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
            if let Some((_, arrived)) = &mut this.waiting {
                *arrived += bytes as u64;
                this.read_at = Some(Instant::now());
            }
            return Poll::Ready(frame);
        }
        loop {
            let (until, arrived) = this.waiting.get_or_insert_with(|| (Box::pin(sleep(this.window)), 0));
            if until.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if *arrived < this.bytes_min {
                this.has_stalled.store(true, Ordering::Release);
                let why = std::io::Error::new(std::io::ErrorKind::TimedOut, "the body stopped arriving");
                return Poll::Ready(Some(Err(axum::Error::new(why))));
            }
            this.waiting = None;
        }
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
    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;

    /// Stall time of 10 s at 100 bytes per second.
    const CONFIG: ArrivalConfig = ArrivalConfig { stall_ms: 10_000, bytes_per_s_min: 100 };

    /// Request for `path` with a body of pieces, each of which arrives after a pause.
    fn request(path: &str, pieces: &[(u64, usize)]) -> Request {
        let pieces = pieces.to_vec();
        let body = stream::iter(pieces).then(async |(pause_ms, bytes)| {
            sleep(Duration::from_millis(pause_ms)).await;
            Ok::<_, std::io::Error>(Bytes::from(vec![7; bytes]))
        });
        Request::builder().uri(path).body(Body::from_stream(body)).unwrap()
    }

    async fn receive(path: &str, pieces: &[(u64, usize)]) -> Result<usize, ErrorCode> {
        let (request, arrival) = BodyArrival::watch(request(path, pieces), &CONFIG);
        let received = request.into_body().collect().await;
        match arrival.error() {
            Some(error) => Err(error.code),
            None => Ok(received.unwrap().to_bytes().len()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_stops_or_trickles_is_rejected_and_a_steady_one_is_not() {
        let path = "/v1/functions/f";
        let started = Instant::now();
        assert_eq!(receive(path, &[(0, 5_000), (3_600_000, 1)]).await, Err(ErrorCode::BodyStalled));
        assert_eq!(started.elapsed(), Duration::from_secs(10));
        let trickle = [(1_000, 1); 100];
        assert_eq!(receive(path, &trickle).await, Err(ErrorCode::BodyStalled));
        let steady = [(1_000, 150); 100];
        assert_eq!(receive(path, &steady).await, Ok(15_000));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_not_the_clients_fault() {
        let (request, arrival) = BodyArrival::watch(request("/v1/models/m", &[(1, 10); 50]), &CONFIG);
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            sleep(Duration::from_secs(60)).await;
        }
        assert!(arrival.error().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_to_functions_may_be_silent() {
        assert_eq!(receive("/fn/f/upload", &[(0, 1), (3_600_000, 1)]).await, Ok(2));
        let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
        assert_eq!(receive(stream, &[(0, 1), (3_600_000, 1)]).await, Ok(2));
    }
}
