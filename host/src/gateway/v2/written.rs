//! An inference as one node asks it of another: in the protocol's binary form, whatever form it came in; and the answer.

use super::super::body::receive_whole;
use super::super::error::ApiError;
use super::super::headers::{ERROR_CODE, INFERENCE_HEADER_LENGTH, PRIORITY};
use super::device;
use crate::cluster::Call;
use crate::models::RanOn;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use weir_device::{Arena, Buffer};
use weir_inference::{Completion, Tensor};
use weir_types::api::ErrorBody;
use weir_types::{ElementType, ErrorCode, Name, Shape, Version};

/// What the description of the outputs may take besides them.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// An inference that can be sent, as often as need be.
pub(crate) struct Written {
    uri: Uri,
    headers: HeaderMap,
    body: Buffer,
}

impl Written {
    /// Write down what is asked of a version of a model, tensor function or workflow. `wanted` are its outputs; none for all.
    pub(crate) fn new(
        arena: &Arena,
        (name, version): (&Name, Version),
        priority: u32,
        inputs: &[(String, Tensor)],
        wanted: Option<&[String]>,
    ) -> Result<Self, ApiError> {
        let described: Vec<Value> = inputs.iter().map(|(name, tensor)| describe(name, tensor)).collect();
        let mut request = json!({ "inputs": described, "parameters": { "binary_data_output": true } });
        if let Some(wanted) = wanted {
            request["outputs"] = wanted.iter().map(|name| json!({ "name": name })).collect();
        }
        let json = request.to_string();
        let full = |error: weir_device::OutOfMemory| ApiError::new(ErrorCode::Unavailable, error.to_string());
        let bytes = inputs.iter().map(|(_, tensor)| tensor.data().len()).sum::<usize>() + json.len();
        let mut body = arena.with_capacity(bytes).map_err(full)?;
        body.extend_from_slice(json.as_bytes()).map_err(full)?;
        for (_, tensor) in inputs {
            body.extend_from_slice(tensor.data()).map_err(full)?;
        }
        let mut headers = HeaderMap::new();
        headers.insert(INFERENCE_HEADER_LENGTH, HeaderValue::from(json.len()));
        headers.insert(PRIORITY, HeaderValue::from(priority));
        let uri = format!("/v2/models/{name}/versions/{version}/infer");
        let uri = uri.parse().map_err(|error| ApiError::internal(&error))?;
        Ok(Self { uri, headers, body: body.freeze() })
    }

    /// The request but for its body.
    pub(crate) fn call(&self) -> Call<'_> {
        Call { method: &Method::POST, uri: &self.uri, headers: &self.headers }
    }

    /// The body of the request.
    pub(crate) fn body(&self) -> Buffer {
        self.body.clone()
    }

    /// What the other node has answered.
    pub(crate) async fn read(
        arena: &Arena,
        response: Response,
        answer_bytes_max: u64,
    ) -> Result<(Completion, Option<RanOn>), ApiError> {
        let (head, body) = response.into_parts();
        let bytes_max = answer_bytes_max.saturating_add(DESCRIPTION_BYTES_MAX);
        let body = receive_whole(body, None, arena, bytes_max).await.map_err(|error| {
            ApiError::new(
                ErrorCode::NodeLost,
                format!("the node that ran it broke off its answer: {}", error.text),
            )
        })?;
        if !head.status.is_success() {
            return Err(refusal(&head.headers, &body));
        }
        let json_bytes =
            head.headers.get(INFERENCE_HEADER_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let outputs = outputs(&body, json_bytes.unwrap_or(body.len()))
            .ok_or_else(|| ApiError::internal(&"the answer of another node cannot be read"))?;
        // The other node counts the run.
        let (queue_time, run_time) = (Duration::ZERO, Duration::ZERO);
        Ok((Completion { outputs, queue_time, run_time, execution: None }, device::told(&head.headers)))
    }
}

fn describe(name: &str, tensor: &Tensor) -> Value {
    json!({
        "name": name,
        "datatype": tensor.element_type(),
        "shape": tensor.shape().dimensions(),
        "parameters": { "binary_data_size": tensor.data().len() },
    })
}

#[derive(Deserialize)]
struct Answer {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    datatype: ElementType,
    shape: Vec<u32>,
    parameters: Parameters,
}

#[derive(Deserialize)]
struct Parameters {
    binary_data_size: usize,
}

/// The outputs in an answer whose first `json_bytes` describe them.
fn outputs(body: &Buffer, json_bytes: usize) -> Option<Vec<(String, Tensor)>> {
    let answer: Answer = serde_json::from_slice(body.get(..json_bytes)?).ok()?;
    let mut at = json_bytes;
    let output = |output: Output| {
        let end = at.checked_add(output.parameters.binary_data_size).filter(|end| *end <= body.len())?;
        let data = body.slice(at..end);
        at = end;
        let tensor = Tensor::new(output.datatype, Shape::new(&output.shape).ok()?, data).ok()?;
        Some((output.name, tensor))
    };
    answer.outputs.into_iter().map(output).collect()
}

/// The error that another node has answered, as if it were this one's.
pub(in super::super) fn refusal(headers: &HeaderMap, body: &[u8]) -> ApiError {
    let told = headers.get(ERROR_CODE).and_then(|code| code.to_str().ok());
    let code = ErrorCode::ALL.iter().copied().find(|code| Some(code.as_str()) == told);
    let text = serde_json::from_slice::<ErrorBody>(body)
        .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |body| body.error);
    ApiError::new(code.unwrap_or(ErrorCode::Internal), text)
}
