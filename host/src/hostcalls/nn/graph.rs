//! `wasi:nn/graph`.

use super::bindings::wasi::nn::errors::ErrorCode;
use super::bindings::wasi::nn::graph::{ExecutionTarget, GraphEncoding, Host, HostGraph};
use super::errors::{Answer, Failure, NnError};
use super::inference::ExecutionContext;
use crate::hostcalls::{CallError, InferenceView, OpenModel};
use crate::models::{LoadError, PushError};
use wasmtime::component::Resource;
use weir_inference::{PrepareError, Refusal};

impl InferenceView<'_> {
    /// Bring a model that the guest has the bytes of into device memory.
    async fn load_bytes(
        &mut self,
        builders: Vec<Vec<u8>>,
        encoding: GraphEncoding,
        target: ExecutionTarget,
    ) -> Result<Resource<OpenModel>, Failure> {
        check_kind(encoding, target)?;
        let Ok([onnx]) = <[Vec<u8>; 1]>::try_from(builders) else {
            let text = "an ONNX model is one builder, with its weights in it";
            return Err(NnError::new(ErrorCode::InvalidArgument, text).into());
        };
        self.ctx.charge_load(onnx.len() as u64)?;
        let loaded = self.ctx.models.load(onnx, &self.ctx.trace).await.map_err(failure_of)?;
        Ok(self.table.push(OpenModel::from(loaded))?)
    }
}

/// Whether the node takes graphs of this kind.
fn check_kind(encoding: GraphEncoding, target: ExecutionTarget) -> Result<(), NnError> {
    if !matches!(encoding, GraphEncoding::Onnx | GraphEncoding::Autodetect) {
        let text = "this node runs ONNX, and no other encoding; convert the model";
        return Err(NnError::new(ErrorCode::InvalidEncoding, text));
    }
    if !matches!(target, ExecutionTarget::Cpu) {
        let text = "this node runs models on its CPU, and has no other target";
        return Err(NnError::new(ErrorCode::UnsupportedOperation, text));
    }
    Ok(())
}

fn failure_of(error: LoadError) -> Failure {
    let error = match error {
        LoadError::Model(error) => return CallError::from(error).into(),
        LoadError::Prepare(error) => error,
    };
    let code = match &error {
        PushError::Prepare(PrepareError::Refused(refusal)) => match refusal {
            Refusal::Malformed { .. } => ErrorCode::InvalidEncoding,
            Refusal::OverMemory { .. } | Refusal::HugeDimension { .. } => ErrorCode::TooLarge,
            Refusal::OverTime { .. } => ErrorCode::Timeout,
            Refusal::UnsupportedOperator { .. } | Refusal::UnsupportedPort { .. } => {
                ErrorCode::UnsupportedOperation
            }
            Refusal::Cyclic { .. }
            | Refusal::ExternalData { .. }
            | Refusal::Invalid { .. }
            | Refusal::Crashed { .. } => ErrorCode::InvalidArgument,
        },
        _ => ErrorCode::RuntimeError,
    };
    NnError::new(code, error.to_string()).into()
}

impl Host for InferenceView<'_> {
    async fn load(
        &mut self,
        builders: Vec<Vec<u8>>,
        encoding: GraphEncoding,
        target: ExecutionTarget,
    ) -> Answer<Resource<OpenModel>> {
        let loaded = self.load_bytes(builders, encoding, target).await;
        self.answer(loaded)
    }

    async fn load_by_name(&mut self, name: String) -> Answer<Resource<OpenModel>> {
        let opened = self.open_model(&name).await.map_err(Failure::from);
        self.answer(opened)
    }
}

impl HostGraph for InferenceView<'_> {
    fn init_execution_context(&mut self, graph: Resource<OpenModel>) -> Answer<Resource<ExecutionContext>> {
        let context = ExecutionContext(self.table.get(&graph)?.clone());
        Ok(Ok(self.table.push(context)?))
    }

    fn drop(&mut self, graph: Resource<OpenModel>) -> wasmtime::Result<()> {
        self.table.delete(graph)?;
        Ok(())
    }
}
