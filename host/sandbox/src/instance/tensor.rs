//! Calls `weir:inference/stage@0.1`.

use super::state::InstanceState;
use crate::hostcalls::bindings::weir::inference::tensors::Error as GuestError;
use crate::hostcalls::{InferenceView, Stage, to_host};
use tokio::sync::oneshot;
use wasmtime::Store;
use wasmtime::component::Resource;
use weir_call::Fault;
use weir_inference::{Tensor, Value};
use weir_types::ErrorCode;

/// The channel for the outputs.
pub type TensorAnswer = oneshot::Sender<Vec<(String, Tensor)>>;

/// Calls the function with tensors that it then owns.
pub(super) async fn run(
    stage: &Stage,
    store: &mut Store<InstanceState>,
    inputs: Vec<(String, Tensor)>,
    answer: TensorAnswer,
) -> wasmtime::Result<Result<(), Fault>> {
    let mut handles = Vec::with_capacity(inputs.len());
    for (name, tensor) in inputs {
        let InferenceView { ctx, table, .. } = store.data_mut().inference();
        let bytes = tensor.data().len() as u64;
        let Some(left) = ctx.tensor_bytes_left.checked_sub(bytes) else {
            let text =
                format!("the inputs take more than {} bytes (limits.tensor_bytes)", ctx.tensor_bytes_max);
            return Ok(Err(Fault::new(ErrorCode::BodyTooLarge, text)));
        };
        ctx.tensor_bytes_left = left;
        handles.push((name, table.push(Value::Host(tensor))?));
    }
    let outputs: Vec<(String, Resource<Value>)> =
        match stage.weir_inference_stage().call_run(&mut *store, &handles).await? {
            Ok(outputs) => outputs,
            Err(error) => return Ok(Err(fault_of(&error))),
        };
    let InferenceView { ctx, table, .. } = store.data_mut().inference();
    let mut tensors = Vec::with_capacity(outputs.len());
    for (name, handle) in outputs {
        let value = table.delete(handle)?;
        ctx.tensor_bytes_left += value.bytes();
        match to_host(value).await {
            Ok(tensor) => tensors.push((name, tensor)),
            Err(error) => return Ok(Err(Fault::new(error.code(), error.to_string()))),
        }
    }
    // A disconnected client has dropped the receiver; the invocation is being cancelled.
    let _ = answer.send(tensors);
    Ok(Ok(()))
}

/// An error that the function passes on becomes the function's own error, with the same meaning.
fn fault_of(error: &GuestError) -> Fault {
    let (code, text) = match error {
        GuestError::InvalidArgument(text) => (ErrorCode::InvalidRequest, text.as_str()),
        GuestError::NotFound(text) => (ErrorCode::ModelNotFound, text.as_str()),
        GuestError::NotGranted(text) => (ErrorCode::NotGranted, text.as_str()),
        GuestError::ResourceExhausted(text) => (ErrorCode::NoCapacity, text.as_str()),
        GuestError::DeadlineExceeded => (ErrorCode::DeadlineExceeded, "a model run's deadline passed"),
        GuestError::Cancelled => (ErrorCode::Cancelled, "a model run was cancelled"),
        GuestError::Unavailable(text) => (ErrorCode::Unavailable, text.as_str()),
        GuestError::Internal(text) => (ErrorCode::GuestError, text.as_str()),
    };
    Fault::new(code, text)
}
