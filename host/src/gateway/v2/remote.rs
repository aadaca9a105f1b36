//! An inference that another node runs: sent there in the protocol's binary form, in whatever form it came in.

use super::super::body::receive_whole;
use super::super::error::ApiError;
use super::super::headers::{ERROR_CODE, INFERENCE_HEADER_LENGTH, PRIORITY};
use super::super::passing::{Passed, Passing};
use super::device;
use crate::cluster::Call;
use crate::dispatch::Away;
use crate::instance::RequestBody;
use crate::models::RanOn;
use crate::node::NodeState;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_device::Buffer;
use weir_inference::{Completion, Tensor};
use weir_types::api::ErrorBody;
use weir_types::{ElementType, ErrorCode, InvocationId, Name, Shape, TenantId, Version};

/// What the description of the outputs may take besides them.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// An inference on its way to another node, and to others if that one does not run it.
pub(super) struct Remote<'a> {
    node: &'a NodeState,
    tenant: &'a TenantId,
    version: Version,
    id: InvocationId,
    deadline: Instant,
    may_run_twice: bool,
    answer_bytes_max: u64,
    uri: Uri,
    headers: HeaderMap,
    body: Buffer,
    was_lost: bool,
}

impl<'a> Remote<'a> {
    /// Write down what is asked: of which version, as which call, with what, and whether it may run twice with how large an answer.
    pub(super) fn new(
        node: &'a NodeState,
        (tenant, name, version): (&'a TenantId, &Name, Version),
        (id, deadline, priority): (InvocationId, Instant, u32),
        (inputs, wanted): (&[(String, Tensor)], Option<&[String]>),
        (may_run_twice, answer_bytes_max): (bool, u64),
    ) -> Result<Self, ApiError> {
        let described: Vec<Value> = inputs.iter().map(|(name, tensor)| describe(name, tensor)).collect();
        let mut request = json!({ "inputs": described, "parameters": { "binary_data_output": true } });
        if let Some(wanted) = wanted {
            request["outputs"] = wanted.iter().map(|name| json!({ "name": name })).collect();
        }
        let json = request.to_string();
        let full = |error: weir_device::OutOfMemory| ApiError::new(ErrorCode::Unavailable, error.to_string());
        let bytes = inputs.iter().map(|(_, tensor)| tensor.data().len()).sum::<usize>() + json.len();
        let mut body = node.arena.with_capacity(bytes).map_err(full)?;
        body.extend_from_slice(json.as_bytes()).map_err(full)?;
        for (_, tensor) in inputs {
            body.extend_from_slice(tensor.data()).map_err(full)?;
        }
        let mut headers = HeaderMap::new();
        headers.insert(INFERENCE_HEADER_LENGTH, HeaderValue::from(json.len()));
        headers.insert(PRIORITY, HeaderValue::from(priority));
        let uri = format!("/v2/models/{name}/versions/{version}/infer");
        let uri = uri.parse().map_err(|error| ApiError::internal(&error))?;
        let body = body.freeze();
        Ok(Self {
            node,
            tenant,
            version,
            id,
            deadline,
            may_run_twice,
            answer_bytes_max,
            uri,
            headers,
            body,
            was_lost: false,
        })
    }

    /// Have the node at the other end of `away` run it.
    pub(super) async fn run<Held: Send + 'static>(
        &mut self,
        away: &Away,
        held: Held,
    ) -> Result<Passed<(Completion, Option<RanOn>)>, ApiError> {
        let mut passing = Passing {
            node: self.node,
            call: Call { method: &Method::POST, uri: &self.uri, headers: &self.headers },
            id: self.id,
            tenant: self.tenant,
            version: self.version,
            deadline: self.deadline,
            may_run_twice: self.may_run_twice,
            was_lost: self.was_lost,
        };
        let mut body = Some(RequestBody::Whole(self.body.clone()));
        let answered = passing.on(away, held, &mut body).await;
        self.was_lost = passing.was_lost;
        Ok(match answered? {
            Passed::Answered(response) => Passed::Answered(self.read(response).await?),
            Passed::Here(granted) => Passed::Here(granted),
            Passed::Again => Passed::Again,
        })
    }

    async fn read(&self, response: Response) -> Result<(Completion, Option<RanOn>), ApiError> {
        let (head, body) = response.into_parts();
        let bytes_max = self.answer_bytes_max.saturating_add(DESCRIPTION_BYTES_MAX);
        let body = receive_whole(body, None, &self.node.arena, bytes_max).await.map_err(|error| {
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
