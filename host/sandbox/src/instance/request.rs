//! The HTTP request in progress, shared by the guest's HTTP library and its tensor calls.
//!
//! The body can be consumed once: as a stream through `wasi:http`, or as one tensor. The response
//! body can be set as a tensor until the guest's own response is sent.

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use weir_call::Fault;
use weir_device::Buffer;
use weir_inference::Tensor;
use weir_types::ErrorCode;

/// A request body on its way to a guest.
pub enum GuestRequestBody {
    /// Received in full before the guest starts.
    Whole(Buffer),
    /// Received in full, with trailers, before the guest starts.
    WholeWithTrailers(Buffer, HeaderMap),
    /// Still arriving. The creator of the stream enforces the size limit.
    Stream(Body),
}

impl GuestRequestBody {
    /// An empty body.
    pub fn none() -> Self {
        Self::Stream(Body::empty())
    }

    /// The body as a stream.
    pub fn into_body(self) -> Body {
        match self {
            Self::Whole(whole) => Body::from(Bytes::from(whole)),
            Self::WholeWithTrailers(whole, trailers) => {
                let whole = Full::new(Bytes::from(whole));
                Body::new(whole.with_trailers(std::future::ready(Some(Ok(trailers)))))
            }
            Self::Stream(body) => body,
        }
    }
}

/// Why the body cannot be taken, or the response cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    #[error("this invocation has no HTTP request")]
    NoRequest,
    #[error("the request body was read or taken before")]
    BodyGone,
    #[error("the response has been sent already")]
    AnswerGone,
}

/// One request's body and response.
#[derive(Clone, Default)]
pub struct RequestCell(Arc<Mutex<Cell>>);

#[derive(Default)]
struct Cell {
    body: BodyState,
    answer: AnswerState,
    /// The error in the part of the body that was read.
    body_fault: Option<Fault>,
}

#[derive(Default)]
enum BodyState {
    /// The invocation is not an HTTP request.
    #[default]
    None,
    Fresh(GuestRequestBody),
    Streaming(Body),
    Gone,
}

#[derive(Default)]
enum AnswerState {
    #[default]
    Open,
    Tensor(Tensor),
    Sent,
}

impl RequestCell {
    /// Creates the cell of a request with this body.
    pub fn new(body: GuestRequestBody) -> Self {
        Self(Arc::new(Mutex::new(Cell { body: BodyState::Fresh(body), ..Cell::default() })))
    }

    /// The body for the guest's HTTP library.
    pub fn stream(&self) -> SharedBody {
        SharedBody(self.clone())
    }

    /// Takes the whole body, so that the HTTP library finds it empty.
    pub fn take_body(&self) -> Result<GuestRequestBody, CellError> {
        let mut cell = self.0.lock();
        match std::mem::replace(&mut cell.body, BodyState::Gone) {
            BodyState::Fresh(body) => Ok(body),
            BodyState::None => {
                cell.body = BodyState::None;
                Err(CellError::NoRequest)
            }
            other => {
                cell.body = other;
                Err(CellError::BodyGone)
            }
        }
    }

    /// Sets `tensor` as the response.
    pub fn set_answer(&self, tensor: Tensor) -> Result<(), CellError> {
        let mut cell = self.0.lock();
        match (&cell.body, &cell.answer) {
            (BodyState::None, _) => Err(CellError::NoRequest),
            (_, AnswerState::Sent) => Err(CellError::AnswerGone),
            _ => {
                cell.answer = AnswerState::Tensor(tensor);
                Ok(())
            }
        }
    }

    /// Takes the tensor that the guest set as its response. Later attempts to set one fail.
    pub fn take_answer(&self) -> Option<Tensor> {
        match std::mem::replace(&mut self.0.lock().answer, AnswerState::Sent) {
            AnswerState::Tensor(tensor) => Some(tensor),
            AnswerState::Open | AnswerState::Sent => None,
        }
    }

    /// Records that reading the body failed.
    pub fn set_body_fault(&self, error: &axum::Error) {
        self.0.lock().note(error);
    }

    /// The error in the body, if any: a guest that fails after it has failed because of it.
    pub fn body_fault(&self) -> Option<Fault> {
        self.0.lock().body_fault.clone()
    }
}

impl Cell {
    fn note(&mut self, error: &axum::Error) {
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        self.body_fault = Some(if causes.into_iter().any(<dyn std::error::Error>::is::<LengthLimitError>) {
            Fault::new(ErrorCode::BodyTooLarge, "the request body is too large (limits.request_body_bytes)")
        } else {
            let text = format!("the request body ended early or is broken: {error}");
            Fault::new(ErrorCode::BodyMismatch, text)
        });
    }
}

/// The request body as a stream; empty once it was taken as a tensor.
pub struct SharedBody(RequestCell);

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = wasmtime_wasi_http::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut cell = self.0.0.lock();
        match std::mem::replace(&mut cell.body, BodyState::Gone) {
            BodyState::Fresh(GuestRequestBody::Whole(buffer)) if buffer.is_empty() => Poll::Ready(None),
            BodyState::Fresh(GuestRequestBody::Whole(buffer)) => {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(buffer)))))
            }
            fresh @ (BodyState::Fresh(_) | BodyState::Streaming(_)) => {
                let mut body = match fresh {
                    BodyState::Fresh(body) => body.into_body(),
                    BodyState::Streaming(body) => body,
                    BodyState::None | BodyState::Gone => return Poll::Ready(None),
                };
                let frame = Pin::new(&mut body).poll_frame(cx);
                cell.body = BodyState::Streaming(body);
                frame.map_err(|error| {
                    cell.note(&error);
                    wasmtime_wasi_http::Error::HttpProtocolError
                })
            }
            BodyState::None | BodyState::Gone => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0.0.lock().body {
            BodyState::None | BodyState::Gone => true,
            BodyState::Fresh(GuestRequestBody::Whole(buffer)) => buffer.is_empty(),
            BodyState::Fresh(GuestRequestBody::WholeWithTrailers(..)) => false,
            BodyState::Fresh(GuestRequestBody::Stream(body)) | BodyState::Streaming(body) => {
                body.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0.0.lock().body {
            BodyState::None | BodyState::Gone => SizeHint::with_exact(0),
            BodyState::Fresh(
                GuestRequestBody::Whole(buffer) | GuestRequestBody::WholeWithTrailers(buffer, _),
            ) => SizeHint::with_exact(buffer.len() as u64),
            BodyState::Fresh(GuestRequestBody::Stream(body)) | BodyState::Streaming(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn trailers_of_a_whole_body_reach_the_guest() {
        let trailers = HeaderMap::from_iter([(
            http::HeaderName::from_static("checksum"),
            http::HeaderValue::from_static("7"),
        )]);
        let whole = Buffer::from(Bytes::from_static(b"abc"));
        let cell = RequestCell::new(GuestRequestBody::WholeWithTrailers(whole, trailers.clone()));
        let mut body = cell.stream();
        assert_eq!((body.is_end_stream(), body.size_hint().exact()), (false, Some(3)));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
        assert!(body.frame().await.is_none());
    }
}
