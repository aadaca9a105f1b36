//! Implements `wasi:nn/graph`.

use super::bindings::wasi::nn::errors::ErrorCode;
use super::bindings::wasi::nn::graph::{ExecutionTarget, GraphEncoding, Host, HostGraph};
use super::errors::{NnError, NnFailure, NnResult};
use super::inference::ExecutionContext;
use crate::LoadModelError;
use crate::hostcalls::{CallError, InferenceView, OpenModel};
use wasmtime::component::Resource;
use weir_inference::{InferenceError, PrepareError, UploadRefusal};
use weir_types::{Platform, Platforms};

impl InferenceView<'_> {
    /// Loads a model from the guest's bytes into device memory.
    async fn load_bytes(
        &mut self,
        builders: Vec<Vec<u8>>,
        encoding: GraphEncoding,
        target: ExecutionTarget,
    ) -> Result<Resource<OpenModel>, NnFailure> {
        let on = platforms(encoding, target)?;
        let Ok([onnx]) = <[Vec<u8>; 1]>::try_from(builders) else {
            let text = "an ONNX model is one builder, with its weights in it";
            return Err(NnError::new(ErrorCode::InvalidArgument, text).into());
        };
        self.ctx.charge_load(onnx.len() as u64)?;
        let loaded = self.ctx.resources.load(onnx, on, &self.ctx.trace).await.map_err(failure_of)?;
        Ok(self.table.push(OpenModel::from(loaded))?)
    }
}

/// The platforms that run such graphs, if the node supports their encoding.
fn platforms(encoding: GraphEncoding, target: ExecutionTarget) -> Result<Platforms, NnError> {
    if !matches!(encoding, GraphEncoding::Onnx | GraphEncoding::Autodetect) {
        let text = "this node runs ONNX, and no other encoding; convert the model";
        return Err(NnError::new(ErrorCode::InvalidEncoding, text));
    }
    match target {
        ExecutionTarget::Cpu => Ok(Platforms::only(Platform::Cpu)),
        ExecutionTarget::Gpu => Ok(Platforms::ALL.without(Platforms::only(Platform::Cpu))),
        ExecutionTarget::Tpu => {
            let text = "this node runs models on CPUs and GPUs, and has no other target";
            Err(NnError::new(ErrorCode::UnsupportedOperation, text))
        }
    }
}

fn failure_of(error: LoadModelError) -> NnFailure {
    let error = match error {
        LoadModelError::Model(InferenceError::Unsupported(why)) => {
            return NnError::new(ErrorCode::UnsupportedOperation, why.to_string()).into();
        }
        LoadModelError::Model(error) => return CallError::from(error).into(),
        error => error,
    };
    let code = match &error {
        LoadModelError::Prepare(PrepareError::Refused(refusal)) => match refusal {
            UploadRefusal::Malformed { .. } => ErrorCode::InvalidEncoding,
            UploadRefusal::OverMemory { .. } | UploadRefusal::HugeDimension { .. } => ErrorCode::TooLarge,
            UploadRefusal::OverTime { .. } => ErrorCode::Timeout,
            UploadRefusal::UnsupportedOperator { .. }
            | UploadRefusal::OperatorNotAllowed { .. }
            | UploadRefusal::UnsupportedPort { .. } => ErrorCode::UnsupportedOperation,
            UploadRefusal::Cyclic { .. }
            | UploadRefusal::ExternalData { .. }
            | UploadRefusal::Invalid { .. }
            | UploadRefusal::KernelGraph { .. }
            | UploadRefusal::Compile { .. }
            | UploadRefusal::Crashed { .. } => ErrorCode::InvalidArgument,
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
    ) -> NnResult<Resource<OpenModel>> {
        let loaded = self.load_bytes(builders, encoding, target).await;
        self.answer(loaded)
    }

    async fn load_by_name(&mut self, name: String) -> NnResult<Resource<OpenModel>> {
        let opened = self.open_model(&name).await.map_err(NnFailure::from);
        self.answer(opened)
    }
}

impl HostGraph for InferenceView<'_> {
    fn init_execution_context(&mut self, graph: Resource<OpenModel>) -> NnResult<Resource<ExecutionContext>> {
        let context = ExecutionContext(self.table.get(&graph)?.clone());
        Ok(Ok(self.table.push(context)?))
    }

    fn drop(&mut self, graph: Resource<OpenModel>) -> wasmtime::Result<()> {
        self.table.delete(graph)?;
        Ok(())
    }
}
