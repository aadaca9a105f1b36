//! Carries a response from the guest to the gateway.

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;
use weir_call::body::{BodyOverrun, WholeBody};
use weir_inference::Tensor;

/// The gateway's end of the channel.
pub type AnswerReceiver = oneshot::Receiver<Response<Body>>;

/// Sends the response once. If dropped unsent, the guest's outcome has the reason: a guest that
/// responds with an error may still write its log.
pub struct ResponseSender {
    sender: oneshot::Sender<Response<Body>>,
    abort_flag: AbortFlag,
    overrun: BodyOverrun,
}

/// Flag of a guest that failed before its response was complete. Without this flag, a truncated
/// body would look complete, because dropping the guest also closes its streams. Set before the
/// guest is dropped. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AbortFlag(Arc<AtomicBool>);

impl ResponseSender {
    /// Creates the channel for one response.
    pub fn channel() -> (Self, AnswerReceiver) {
        let (sender, receiver) = oneshot::channel();
        let abort_flag = AbortFlag::default();
        (Self { sender, abort_flag, overrun: BodyOverrun::default() }, receiver)
    }

    /// The flag to set if the guest ends before its response is complete.
    pub(super) fn abort_flag(&self) -> AbortFlag {
        self.abort_flag.clone()
    }

    /// The signal to send if the guest exceeds a limit of time.
    pub(super) fn overrun(&self) -> BodyOverrun {
        self.overrun.clone()
    }

    /// Sends the guest's response. The body is `tensor` if there is one, and otherwise written by
    /// the guest.
    pub(super) fn send_guests(self, response: Response<Body>, tensor: Option<Tensor>) {
        let abort_flag = self.abort_flag.clone();
        let overrun = self.overrun.clone();
        self.send(match tensor {
            Some(tensor) => answer_of(response.map(Some), tensor),
            None => {
                let mut response = response.map(|body| Body::new(GuestBody { body, abort_flag }));
                response.extensions_mut().insert(overrun);
                response
            }
        });
    }

    /// Sends a response that does not depend on the guest any more.
    pub fn send(self, response: Response<Body>) {
        // A disconnected client has dropped the receiver; the invocation is being cancelled.
        let _ = self.sender.send(response);
    }
}

impl AbortFlag {
    /// Records that the guest has failed.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A body written by the guest: complete only if the guest has not failed.
struct GuestBody {
    body: Body,
    abort_flag: AbortFlag,
}

impl HttpBody for GuestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() && self.abort_flag.is_set() {
            let why = "the function ended before its answer did";
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::other(why)))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !self.abort_flag.is_set()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Rejects an informational status: interim responses such as `100 Continue` belong to the
/// connection.
pub(super) fn why_no_answer(status: StatusCode) -> Option<String> {
    status.is_informational().then(|| format!("the status {} is none of an answer", status.as_u16()))
}

/// `response` with the bytes of `tensor` as its body.
pub(super) fn answer_of(response: Response<Option<Body>>, tensor: Tensor) -> Response<Body> {
    let tensor = Bytes::from(tensor.into_data());
    let mut response = response.map(|replaced| match replaced {
        Some(replaced) => Body::new(InPlaceOf { replaced: Some(replaced), tensor: Some(tensor) }),
        None => Body::from(tensor),
    });
    response.extensions_mut().insert(WholeBody);
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRANSFER_ENCODING);
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    response
}

/// A tensor's bytes in place of the body that the guest's HTTP library writes. That body is still
/// read, and discarded: the library takes an unread body for a disconnected client.
struct InPlaceOf {
    replaced: Option<Body>,
    tensor: Option<Bytes>,
}

impl HttpBody for InPlaceOf {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while let Some(replaced) = &mut self.replaced {
            // Its outcome does not matter: it is not part of the response.
            if !matches!(ready!(Pin::new(replaced).poll_frame(cx)), Some(Ok(_))) {
                self.replaced = None;
            }
        }
        Poll::Ready(self.tensor.take().map(|tensor| Ok(Frame::data(tensor))))
    }

    fn is_end_stream(&self) -> bool {
        self.tensor.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.tensor.as_ref().map_or(0, |tensor| tensor.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;
    use weir_device::Arena;
    use weir_types::{ElementType, Shape};

    #[tokio::test]
    async fn body_of_a_failed_guest_ends_with_an_error() {
        for is_torn in [false, true] {
            let (answer, response) = ResponseSender::channel();
            let abort_flag = answer.abort_flag();
            let (written, pieces) = tokio::sync::mpsc::channel(1);
            let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
            let body = Body::from_stream(pieces.map(Ok::<Bytes, io::Error>));
            answer.send_guests(Response::new(body), None);
            let mut body = response.await.unwrap().into_body();
            written.send(Bytes::from("half")).await.unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
            if is_torn {
                abort_flag.set();
            }
            drop(written);
            assert_eq!(body.frame().await.is_some_and(|end| end.is_err()), is_torn);
        }
    }

    #[tokio::test]
    async fn body_replaced_by_a_tensor_is_drained() {
        let data = Arena::new(1 << 20).copy_of(b"tensor").unwrap();
        let tensor = Tensor::new(ElementType::Uint8, Shape::new(&[6]).unwrap(), data).unwrap();
        let (written, pieces) = tokio::sync::mpsc::channel(1);
        let replaced = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
        let replaced = Body::from_stream(replaced.map(Ok::<Bytes, io::Error>));
        let response = answer_of(Response::new(Some(replaced)), tensor);
        let write = async move {
            for _ in 0..10 {
                written.send(Bytes::from("dropped")).await.unwrap();
            }
        };
        let (body, ()) = tokio::join!(response.into_body().collect(), write);
        assert_eq!(body.unwrap().to_bytes(), "tensor");
    }
}
