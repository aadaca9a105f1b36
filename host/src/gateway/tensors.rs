//! Calling a tensor function over HTTP, in the JSON form of the Open Inference Protocol, version 2.
//!
//! `{"inputs": [{"name", "datatype", "shape", "data"}]}` goes in and the same with `outputs` comes out.

mod json;

use super::error::ApiError;
use crate::dispatch::{Account, Admission, Invocation};
use crate::node::NodeState;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::Method;
use http::header::CONTENT_TYPE;
use json::{Incoming, Outgoing};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use weir_device::{Arena, Buffer};
use weir_inference::Tensor;
use weir_types::{ErrorCode, FunctionId};

/// The largest request as JSON, which is several times as large as what it stands for. Larger ones are for HTTP functions, which take bytes.
pub(super) const JSON_BYTES_MAX: u64 = 64 << 20;
/// JSON up to this size is read and written where it is; more goes to a thread that may block.
const BRIEF_BYTES: usize = 16 << 10;

#[derive(Debug, Deserialize)]
struct InferRequest<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(borrow)]
    inputs: Vec<Incoming<'a>>,
}

#[derive(Serialize)]
struct InferResponse<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    outputs: Vec<Outgoing<'a>>,
}

/// What a request says, as the function takes it.
struct Inputs {
    request: Option<String>,
    tensors: Vec<(String, Tensor)>,
}

pub(super) async fn invoke(
    node: &NodeState,
    invocation: &Invocation,
    admission: Admission,
    account: &Arc<Account>,
    body: Buffer,
) -> Result<Response, ApiError> {
    let (arena, json_bytes) = (node.arena.clone(), body.len());
    let Inputs { request, tensors } = node.json(json_bytes, move || read(&body, &arena)).await?;
    let outputs = node.dispatch.tensor(invocation, admission, account, tensors).await?;
    let id = invocation.deployment.id.clone();
    let bytes_max = invocation.deployment.manifest.limits.response_body_bytes;
    let output_bytes = outputs.iter().map(|(_, tensor)| tensor.data().len()).sum();
    let json = node.json(output_bytes, move || write(&id, request, &outputs, bytes_max)).await?;
    Ok(([(CONTENT_TYPE, "application/json")], Body::from(json)).into_response())
}

/// Refuse what is no inference at all.
pub(super) fn check_method(method: &Method) -> Result<(), ApiError> {
    if method == Method::POST {
        return Ok(());
    }
    let text = "this is a tensor function: POST {\"inputs\": [{\"name\": ..., \"datatype\": \"FP32\", \"shape\": [1], \"data\": [0]}]}";
    Err(ApiError::new(ErrorCode::MethodNotAllowed, text))
}

impl NodeState {
    /// Do `work` on about `bytes` of JSON without holding up other requests for long: as many such at once as there are cores.
    async fn json<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= BRIEF_BYTES {
            return work();
        }
        let stopping = || ApiError::new(ErrorCode::Unavailable, "the node is shutting down; try another");
        let turn = self.json_turns.clone().acquire_owned().await.map_err(|_| stopping())?;
        // The turn goes along: a caller that gives up does not stop the work.
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        worked.await.map_err(|_| stopping())?
    }
}

fn read(json: &[u8], arena: &Arena) -> Result<Inputs, ApiError> {
    let invalid = |text: String| ApiError::new(ErrorCode::InvalidRequest, text);
    let request: InferRequest<'_> = serde_json::from_slice(json)
        .map_err(|error| invalid(format!("the body is not an inference request: {error}")))?;
    let tensors = request.inputs.iter().map(|input| {
        let tensor = input.read(arena).map_err(|why| invalid(format!("input {:?}: {why}", input.name)))?;
        Ok((input.name.clone(), tensor))
    });
    Ok(Inputs { tensors: tensors.collect::<Result<_, ApiError>>()?, request: request.id })
}

fn write(
    id: &FunctionId,
    request: Option<String>,
    outputs: &[(String, Tensor)],
    bytes_max: u64,
) -> Result<Vec<u8>, ApiError> {
    let response = InferResponse {
        model_name: id.name.as_str(),
        model_version: id.version.to_string(),
        id: request,
        outputs: outputs.iter().map(|(name, tensor)| Outgoing::of(name, tensor)).collect(),
    };
    let mut json = Limited { bytes: Vec::new(), bytes_max };
    match serde_json::to_writer(&mut json, &response) {
        Ok(()) => Ok(json.bytes),
        Err(error) if error.is_io() => {
            let text = format!(
                "the function's answer has more than {bytes_max} bytes as JSON (limits.response_body_bytes)"
            );
            Err(ApiError::new(ErrorCode::ResponseTooLarge, text))
        }
        Err(error) => Err(ApiError::new(ErrorCode::GuestError, error.to_string())),
    }
}

/// Takes so many bytes and no more.
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
