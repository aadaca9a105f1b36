//! The way of a response from the guest to the gateway.

use super::fault::Fault;
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderValue, Response};
use tokio::sync::oneshot;
use weir_inference::Tensor;

/// What the gateway waits for.
pub(crate) type AnswerReceiver = oneshot::Receiver<Result<Response<Body>, Fault>>;

/// Sends the response once. Dropped unsent, the guest's own end tells why.
pub(crate) struct Answer(oneshot::Sender<Result<Response<Body>, Fault>>);

impl Answer {
    pub(crate) fn channel() -> (Self, AnswerReceiver) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    pub(crate) fn send(self, response: Result<Response<Body>, Fault>) {
        // A client that went away has dropped the receiver; the invocation is being cancelled.
        let _ = self.0.send(response);
    }
}

/// `head` with the bytes of `tensor` as its body.
pub(crate) fn answer_of(head: Response<()>, tensor: Tensor) -> Response<Body> {
    let mut response = head.map(|()| Body::from(Bytes::from(tensor.into_data())));
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRANSFER_ENCODING);
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    response
}
