//! The end of WebSockets whose function runs on this node, and whose client is connected to another
//! node, when this node stops.
//!
//! The node with the client does not know that this node stops, so this node ends both bodies with a
//! close: the function reads it, and the other node closes the WebSocket with it.

use super::records::{Close, RecordFollower};
use crate::NodeState;
use crate::permits::TenantPermit;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A body of records, which ends with a close when the node stops.
struct EndingBody {
    body: Body,
    records: RecordFollower,
    stopping: CancellationToken,
    /// Is ready once the body must end. `None` from then on.
    due: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    has_ended: bool,
    /// The permit for a WebSocket whose client is connected to another node.
    _permit: Option<TenantPermit>,
}

/// Ends the messages of the client once the node stops.
pub(crate) fn end_messages(node: &NodeState, body: Body) -> Body {
    EndingBody::body(body, node.shutdown.stopping.clone(), Duration::ZERO, None)
}

/// Ends the messages of the function once most of the time for requests in progress has passed, or once
/// the function ends.
pub(crate) fn end_answer(node: &NodeState, body: Body, permit: TenantPermit) -> Body {
    let drain = Duration::from_millis(node.config.gateway.drain_timeout_ms);
    let time = super::session::message_time(drain);
    EndingBody::body(body, node.shutdown.stopping.clone(), time, Some(permit))
}

impl EndingBody {
    fn body(body: Body, stopping: CancellationToken, after: Duration, permit: Option<TenantPermit>) -> Body {
        let stopped = stopping.clone().cancelled_owned();
        let due = async move {
            stopped.await;
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
        };
        let records = RecordFollower::default();
        Body::new(Self {
            body,
            records,
            stopping,
            due: Some(Box::pin(due)),
            has_ended: false,
            _permit: permit,
        })
    }

    fn close(&mut self) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.has_ended = true;
        Poll::Ready(Some(Ok(Frame::data(Close::stopping().encode()))))
    }
}

impl HttpBody for EndingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready()) {
            self.due = None;
        }
        if self.due.is_none() && self.records.is_between() {
            return self.close();
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? else {
            return match self.stopping.is_cancelled() && self.records.is_between() {
                true => self.close(),
                false => Poll::Ready(None),
            };
        };
        let Ok(mut data) = frame.into_data() else { return Poll::Ready(Some(Ok(Frame::data(Bytes::new())))) };
        let end = self.records.follow(&data);
        if self.due.is_none()
            && let Some(end) = end
        {
            // The close follows the last whole record.
            data.truncate(end);
            self.records = RecordFollower::default();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http_body_util::BodyExt as _;

    const TWO: &[u8] = b"\x01\x03\0\0\0one\x02\x03\0\0\0two";

    fn pieces(bytes: &'static [u8], size: usize) -> Body {
        let pieces = bytes.chunks(size).map(|piece| Ok::<_, axum::Error>(Bytes::from_static(piece)));
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn close_follows_a_whole_record() {
        for size in [1, 3, 8, 11, TWO.len()] {
            let stopping = CancellationToken::new();
            let endless = stream::repeat_with(|| Ok::<_, axum::Error>(Bytes::from_static(TWO)));
            let body = Body::from_stream(futures::StreamExt::flat_map(endless, move |piece| {
                pieces(TWO, size.min(piece.unwrap().len())).into_data_stream()
            }));
            let mut body = EndingBody::body(body, stopping.clone(), Duration::ZERO, None);
            body.frame().await.unwrap().unwrap();
            let mut read = RecordFollower::default();
            read.follow(&TWO[..size]);
            stopping.cancel();
            tokio::task::yield_now().await;
            let rest = body.collect().await.unwrap().to_bytes();
            let close = Close::stopping().encode();
            let messages = rest.strip_suffix(&close[..]).unwrap();
            read.follow(messages);
            assert!(read.is_between(), "pieces of {size}: {rest:?}");
        }
    }

    #[tokio::test]
    async fn body_that_ends_has_a_close_only_on_a_node_that_stops() {
        let stopping = CancellationToken::new();
        let body = |stopping: &CancellationToken| {
            EndingBody::body(pieces(TWO, 5), stopping.clone(), Duration::from_secs(60), None)
        };
        assert_eq!(body(&stopping).collect().await.unwrap().to_bytes(), TWO);
        stopping.cancel();
        let read = body(&stopping).collect().await.unwrap().to_bytes();
        assert_eq!(read, [TWO, &Close::stopping().encode()].concat());
    }
}
