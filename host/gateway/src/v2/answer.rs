//! Inference responses: JSON, followed by the binary tensors, which are sent without a copy.

use super::super::error::ApiError;
use super::encoding::Encoding;
use crate::NodeState;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use weir_call::body::WholeBody;
use weir_call::headers::INFERENCE_HEADER_LENGTH;
use weir_inference::Tensor;
use weir_protocol::{ClassError, Classes, Form, InferenceResponse, RequestedOutput, ResponseOutput};
use weir_types::{ElementType, ErrorCode, Labels, ModelLabels};

/// Size below which responses are not compressed: they would hardly shrink.
const COMPRESSED_BYTES_MIN: usize = 1 << 10;

/// Parts of a response.
pub(super) struct ResponseParts {
    pub(super) model_name: String,
    pub(super) model_version: String,
    pub(super) id: Option<String>,
    pub(super) outputs: Vec<(String, Tensor)>,
    /// Requested form of each output, if the request sets it.
    pub(super) wanted: Option<Vec<RequestedOutput>>,
    /// Whether outputs without a requested form are binary.
    pub(super) is_binary: bool,
    pub(super) labels: ModelLabels,
    pub(super) encoding: Option<Encoding>,
    /// Size limit of the response, and the name of the limit.
    pub(super) bytes_max: u64,
    pub(super) limit: &'static str,
}

impl ResponseParts {
    /// Builds the response, on a blocking thread if that takes long.
    pub(super) async fn respond(self, node: &NodeState) -> Result<Response, ApiError> {
        let work_bytes: usize = (self.outputs.iter().zip(self.forms()))
            .filter(|(_, (form, classes))| *form == Form::Json || *classes > 0 || self.encoding.is_some())
            .map(|((_, tensor), _)| tensor.data().len())
            .sum();
        node.json(work_bytes, move || self.write()).await
    }

    /// Returns the form of each output, and the number of classes to return instead of the tensor.
    fn forms(&self) -> impl Iterator<Item = (Form<'_>, u32)> {
        self.outputs.iter().map(|(name, _)| {
            let wanted = self.wanted.iter().flatten().find(|output| output.name == *name);
            let region = wanted.and_then(|output| output.region.as_ref());
            let is_binary = wanted.and_then(|output| output.binary).unwrap_or(self.is_binary);
            let form = match region {
                Some(region) => Form::Region(&region.name),
                None if is_binary => Form::Binary,
                None => Form::Json,
            };
            (form, wanted.map_or(0, |output| output.classes))
        })
    }

    fn write(self) -> Result<Response, ApiError> {
        let bytes_max = usize::try_from(self.bytes_max).unwrap_or(usize::MAX);
        let shown = self.outputs.iter().zip(self.forms()).map(|((name, tensor), (form, classes))| {
            let tensor = match classes {
                0 => tensor.clone(),
                count => {
                    let labels = self.labels.get(name);
                    classify(name, tensor, labels, count, bytes_max)?.ok_or_else(|| self.too_large())?
                }
            };
            Ok(Shown { name, tensor, form })
        });
        let outputs = shown.collect::<Result<Vec<_>, ApiError>>()?;
        let binary = outputs.iter().filter(|output| output.form == Form::Binary);
        let mut pieces: VecDeque<Bytes> = binary.map(|output| output.tensor.data().clone().into()).collect();
        let has_binary = !pieces.is_empty();
        let json = self.json(&outputs, bytes(&pieces) as u64)?;
        let json_bytes = json.len();
        pieces.push_front(json.into());
        self.response(pieces, has_binary.then_some(json_bytes))
    }

    fn json(&self, outputs: &[Shown<'_>], binary_bytes: u64) -> Result<Vec<u8>, ApiError> {
        let answer = InferenceResponse {
            model_name: &self.model_name,
            model_version: &self.model_version,
            id: self.id.as_deref(),
            outputs: outputs.iter().map(Shown::given).collect(),
        };
        let bytes_max = self.bytes_max.checked_sub(binary_bytes).ok_or_else(|| self.too_large())?;
        let mut json = Limited { bytes: Vec::new(), bytes_max };
        match serde_json::to_writer(&mut json, &answer) {
            Ok(()) => Ok(json.bytes),
            Err(error) if error.is_io() => Err(self.too_large()),
            // Outputs without a JSON form can be requested as binary.
            Err(error) => Err(ApiError::new(ErrorCode::InvalidRequest, format!("an output: {error}"))),
        }
    }

    fn response(&self, mut pieces: VecDeque<Bytes>, json_bytes: Option<usize>) -> Result<Response, ApiError> {
        let encoding = self.encoding.filter(|_| bytes(&pieces) >= COMPRESSED_BYTES_MIN);
        if let Some(encoding) = encoding {
            let packed =
                encoding.encode(pieces.make_contiguous()).map_err(|error| ApiError::internal(&error))?;
            pieces = VecDeque::from([packed.into()]);
        }
        let mut response = Body::new(Pieces(pieces)).into_response();
        response.extensions_mut().insert(WholeBody);
        let headers = response.headers_mut();
        let kind = if json_bytes.is_some() { "application/octet-stream" } else { "application/json" };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(json_bytes) = json_bytes {
            headers.insert(INFERENCE_HEADER_LENGTH, HeaderValue::from(json_bytes));
        }
        if let Some(encoding) = encoding {
            headers.insert(CONTENT_ENCODING, encoding.header());
        }
        Ok(response)
    }

    fn too_large(&self) -> ApiError {
        let Self { bytes_max, limit, .. } = self;
        let text =
            format!("the answer has more than {bytes_max} bytes ({limit}); outputs are smaller as binary");
        ApiError::new(ErrorCode::ResponseTooLarge, text)
    }
}

/// An output and its form.
struct Shown<'a> {
    name: &'a str,
    tensor: Tensor,
    form: Form<'a>,
}

impl Shown<'_> {
    fn given(&self) -> ResponseOutput<'_> {
        let Self { name, tensor, form } = self;
        ResponseOutput::new(name, tensor.element_type(), tensor.shape().dimensions(), tensor.data(), *form)
    }
}

/// Classifies an output: returns its largest elements, with their labels, instead of it; none if they
/// take more than `bytes_max`.
pub(crate) fn classify(
    name: &str,
    tensor: &Tensor,
    labels: Option<&Labels>,
    count: u32,
    bytes_max: usize,
) -> Result<Option<Tensor>, ApiError> {
    let datatype = tensor.element_type();
    let shape = tensor.shape();
    let classes = Classes::new(datatype, shape, tensor.data(), labels, count, bytes_max);
    let Classes { shape, data } = match classes {
        Ok(classes) => classes,
        Err(ClassError::TooLarge(_)) => return Ok(None),
        Err(error) => {
            return Err(ApiError::new(ErrorCode::InvalidRequest, format!("output {name:?}: {error}")));
        }
    };
    let tensor = Tensor::new(ElementType::Bytes, shape, Bytes::from(data).into());
    tensor.map(Some).map_err(|error| ApiError::internal(&error))
}

fn bytes(pieces: &VecDeque<Bytes>) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Body of several pieces, which are sent without a copy.
struct Pieces(VecDeque<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(bytes(&self.0) as u64)
    }
}

/// Writer with a size limit.
struct Limited {
    bytes: Vec<u8>,
    bytes_max: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.bytes_max {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
