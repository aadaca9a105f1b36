//! Inferences between nodes: requests in the protocol's binary form, whatever form the client used,
//! and their responses.

use super::device;
use crate::intermediates::{Handle, Intermediates, LEFT_HERE, Stands, region_of};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use weir_call::Fault;
use weir_call::body::{BodyLimit, no_room, receive_whole};
use weir_call::headers::{ERROR_CODE, INFERENCE_HEADER_LENGTH, PRIORITY};
use weir_cluster::ForwardedCall;
use weir_control::models::RanOn;
use weir_device::{Arena, Buffer};
use weir_inference::{Completion, Tensor};
use weir_types::api::ErrorBody;
use weir_types::{ElementType, ErrorCode, Name, Shape, TenantId, Version};

/// Size limit of the description of the outputs, without their data.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// Encoded inference, which can be sent repeatedly.
pub struct EncodedInference {
    uri: Uri,
    headers: HeaderMap,
    body: Buffer,
    tensor_bytes: u64,
}

/// Decoded response.
pub struct Read {
    /// Outputs that the response contains. The times are zero: the other node counts the run.
    pub(crate) completion: Completion,
    /// Outputs that were left on the node that made them.
    pub(crate) left: Vec<(String, Handle)>,
    /// Device that ran a direct model inference.
    pub(crate) ran_on: Option<RanOn>,
}

impl EncodedInference {
    /// Encodes an inference of a version of a model, tensor function or workflow. `wanted` are its
    /// requested outputs, none for all; the outputs in `handed_on` may be left on the node that
    /// makes them.
    pub fn new(
        arena: &Arena,
        (name, version): (&Name, Version),
        priority: u32,
        inputs: &[(String, Handle)],
        (wanted, handed_on): (Option<&[String]>, &[String]),
    ) -> Result<Self, Fault> {
        let described: Vec<Value> = inputs.iter().map(|(name, handle)| describe(name, handle)).collect();
        let mut request = json!({ "inputs": described, "parameters": { "binary_data_output": true } });
        if let Some(wanted) = wanted {
            let output = |name: &String| {
                let is_left = handed_on.contains(name);
                let region = is_left.then(|| json!({ "shared_memory_region": LEFT_HERE }));
                json!({ "name": name, "parameters": region.unwrap_or_else(|| json!({})) })
            };
            request["outputs"] = wanted.iter().map(output).collect();
        }
        if inputs.iter().any(|(_, handle)| matches!(handle, Handle::OnDevice(_))) {
            return Err(internal(&"a tensor on a device was to go to another node"));
        }
        let json = request.to_string();
        let here = || inputs.iter().filter_map(|(_, handle)| handle.here());
        let tensor_bytes: usize = here().map(|tensor| tensor.data().len()).sum();
        let mut body = arena.with_capacity(json.len() + tensor_bytes).map_err(no_room)?;
        body.extend_from_slice(json.as_bytes()).map_err(no_room)?;
        for tensor in here() {
            body.extend_from_slice(tensor.data()).map_err(no_room)?;
        }
        let mut headers = HeaderMap::new();
        headers.insert(INFERENCE_HEADER_LENGTH, HeaderValue::from(json.len()));
        headers.insert(PRIORITY, HeaderValue::from(priority));
        let uri = format!("/v2/models/{name}/versions/{version}/infer");
        let uri = uri.parse().map_err(|error| internal(&error))?;
        Ok(Self { uri, headers, body: body.freeze(), tensor_bytes: tensor_bytes as u64 })
    }

    /// Returns the request without its body.
    pub fn call(&self) -> ForwardedCall<'_> {
        ForwardedCall { method: &Method::POST, uri: &self.uri, headers: &self.headers, span: None }
    }

    /// Returns the body of the request.
    pub fn body(&self) -> Buffer {
        self.body.clone()
    }

    /// Returns the size of the tensors in the body.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensor_bytes
    }

    /// Decodes the response of another node to a call of `tenant`.
    pub async fn read(
        intermediates: &Intermediates,
        tenant: &TenantId,
        response: Response,
        answer_bytes_max: u64,
    ) -> Result<Read, Fault> {
        let (head, body) = response.into_parts();
        let bytes_max = answer_bytes_max.saturating_add(DESCRIPTION_BYTES_MAX);
        let limit = BodyLimit { bytes_max, setting: "the caller's limit" };
        let arena = intermediates.arena().tenant(tenant);
        let body = receive_whole(body, None, &arena, limit).await.map_err(|error| match error.code {
            // The tenant's share of memory on this node is used up.
            ErrorCode::QueueFull => error,
            _ => Fault::new(
                ErrorCode::NodeLost,
                format!("the node that ran it broke off its answer: {}", error.text),
            ),
        })?;
        if !head.status.is_success() {
            return Err(refusal(&head.headers, &body));
        }
        let json_bytes =
            head.headers.get(INFERENCE_HEADER_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let read = outputs(&body, json_bytes.unwrap_or(body.len()), intermediates, tenant);
        let Outputs { here: outputs, left } =
            read.ok_or_else(|| internal(&"the answer of another node cannot be read"))?;
        // The other node counts the run.
        let queue_time = Duration::ZERO;
        let run_time = Duration::ZERO;
        let completion = Completion { outputs, stayed: Vec::new(), queue_time, run_time, execution: None };
        Ok(Read { completion, left, ran_on: device::read_device(&head.headers) })
    }
}

fn describe(name: &str, handle: &Handle) -> Value {
    let (datatype, place) = match handle {
        Handle::Here(tensor) => (tensor.element_type(), json!({ "binary_data_size": tensor.data().len() })),
        // Unreachable: `EncodedInference::new` rejects tensors on a device.
        Handle::OnDevice(tensor) => (tensor.element_type(), json!({})),
        Handle::Left(left) => {
            let place =
                json!({ "shared_memory_region": left.index.region(), "shared_memory_byte_size": left.bytes });
            (left.datatype, place)
        }
    };
    json!({
        "name": name,
        "datatype": datatype,
        "shape": handle.shape().dimensions(),
        "parameters": place,
    })
}

#[derive(Deserialize)]
struct InferenceHead {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    datatype: ElementType,
    shape: Vec<u32>,
    parameters: Parameters,
}

/// Decoded outputs.
#[derive(Default)]
struct Outputs {
    here: Vec<(String, Tensor)>,
    left: Vec<(String, Handle)>,
}

/// Location of an output.
#[derive(Deserialize)]
#[serde(untagged)]
enum Parameters {
    Here { binary_data_size: usize },
    Left { shared_memory_region: String, shared_memory_byte_size: u64 },
}

/// Decodes the outputs of a response whose first `json_bytes` describe them: outputs in the body,
/// and outputs that were left on the other node.
fn outputs(
    body: &Buffer,
    json_bytes: usize,
    intermediates: &Intermediates,
    tenant: &TenantId,
) -> Option<Outputs> {
    let answer: InferenceHead = serde_json::from_slice(body.get(..json_bytes)?).ok()?;
    let mut outputs = Outputs::default();
    let mut at = json_bytes;
    for Output { name, datatype, shape, parameters } in answer.outputs {
        let shape = Shape::new(&shape).ok()?;
        match parameters {
            Parameters::Here { binary_data_size } => {
                let end = at.checked_add(binary_data_size).filter(|end| *end <= body.len())?;
                outputs.here.push((name, Tensor::new(datatype, shape, body.slice(at..end)).ok()?));
                at = end;
            }
            Parameters::Left { shared_memory_region, shared_memory_byte_size: bytes } => {
                let Some(Stands::For(index)) = region_of(&shared_memory_region) else { return None };
                outputs.left.push((name, intermediates.left(index, tenant, (datatype, shape, bytes))));
            }
        }
    }
    Some(outputs)
}

/// Converts the error response of another node to an error of this node.
pub fn refusal(headers: &HeaderMap, body: &[u8]) -> Fault {
    let told = headers.get(ERROR_CODE).and_then(|code| code.to_str().ok());
    let code = ErrorCode::ALL.iter().copied().find(|code| Some(code.as_str()) == told);
    let text = serde_json::from_slice::<ErrorBody>(body)
        .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |body| body.error);
    Fault::new(code.unwrap_or(ErrorCode::Internal), text)
}

fn internal(error: &dyn std::fmt::Display) -> Fault {
    Fault::new(ErrorCode::Internal, error.to_string())
}
