//! Implements `wasi:nn/inference`.

use super::NnTensor;
use super::bindings::wasi::nn::errors::ErrorCode;
use super::bindings::wasi::nn::inference::{Host, HostGraphExecutionContext};
use super::errors::{NnError, NnFailure, NnResult};
use super::tensor::tensor_type;
use crate::hostcalls::{InferenceView, OpenModel, to_host};
use wasmtime::component::Resource;
use weir_inference::RunRequest;
use weir_types::{Port, Signature};

/// A graph that can be run. Remains usable when the guest drops the graph that it was created from.
pub struct ExecutionContext(pub OpenModel);

type NamedTensor = (String, Resource<NnTensor>);

impl InferenceView<'_> {
    /// Runs the graph. Consumes the inputs, even if the run fails.
    async fn compute_on(
        &mut self,
        context: &Resource<ExecutionContext>,
        inputs: Vec<NamedTensor>,
    ) -> Result<Vec<NamedTensor>, NnFailure> {
        let mut taken = Vec::with_capacity(inputs.len());
        for (name, tensor) in inputs {
            taken.push((name, self.table.delete(tensor)?.take(self.ctx)));
        }
        let ExecutionContext(model) = self.table.get_mut(context)?;
        check_outputs(model.signature())?;
        let mut named = Vec::with_capacity(taken.len());
        for (name, tensor) in taken {
            named.push((name_of(name, model.signature()), tensor?));
        }
        let deadline = Some(self.ctx.deadline);
        let priority = self.ctx.priority;
        let request = RunRequest { inputs: named, deadline, priority, ..RunRequest::default() };
        let run = model.run(request, self.ctx).await?;
        let ended = run.await.inspect_err(|error| self.sink.run_failed(model.id(), error));
        let failure = |error| NnFailure::from(crate::hostcalls::CallError::from(error));
        let outputs = ended.map_err(failure)?;
        let mut handles = Vec::with_capacity(outputs.len());
        for (name, value) in outputs {
            // None has stayed on the device: wasi:nn has no handles for that.
            let tensor = to_host(value).await.map_err(failure)?;
            let tensor = NnTensor::from_tensor(tensor, self.ctx)?;
            handles.push((name, self.table.push(tensor)?));
        }
        Ok(handles)
    }
}

/// Rejects a model with outputs of types that `wasi:nn` does not have.
fn check_outputs(signature: &Signature) -> Result<(), NnError> {
    let unknown = |port: &&Port| tensor_type(port.datatype).is_none();
    signature.outputs.iter().find(unknown).map_or(Ok(()), |port| {
        let text = format!("output {port} has a type that wasi:nn does not have; use weir:inference");
        Err(NnError::new(ErrorCode::UnsupportedOperation, text))
    })
}

/// The name of the input that the guest means: given by name or, as in earlier versions of wasi-nn,
/// by position.
fn name_of(given: String, signature: &Signature) -> String {
    let inputs = &signature.inputs;
    if inputs.iter().any(|port| port.name == given) {
        return given;
    }
    let at = given.parse::<usize>().ok().and_then(|position| inputs.get(position));
    at.map_or(given, |port| port.name.clone())
}

impl Host for InferenceView<'_> {}

impl HostGraphExecutionContext for InferenceView<'_> {
    async fn compute(
        &mut self,
        context: Resource<ExecutionContext>,
        inputs: Vec<NamedTensor>,
    ) -> NnResult<Vec<NamedTensor>> {
        let outputs = self.compute_on(&context, inputs).await;
        self.answer(outputs)
    }

    fn drop(&mut self, context: Resource<ExecutionContext>) -> wasmtime::Result<()> {
        self.table.delete(context)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::ElementType;

    fn port(name: &str, datatype: ElementType) -> Port {
        Port { name: name.to_owned(), datatype, shape: vec![Some(1)] }
    }

    #[test]
    fn input_is_given_by_name_or_position() {
        let inputs = ["a", "0"].map(|name| port(name, ElementType::Fp32)).into();
        let signature = Signature { inputs, outputs: Vec::new() };
        let of = |given: &str| name_of(given.to_owned(), &signature);
        assert_eq!(["a", "0", "1", "2", "b", ""].map(of), ["a", "0", "0", "2", "b", ""]);
    }

    #[test]
    fn unsupported_output_type_fails_before_the_run() {
        let of = |datatype| Signature { inputs: Vec::new(), outputs: vec![port("out", datatype)] };
        assert!(check_outputs(&of(ElementType::Int64)).is_ok());
        assert_eq!(check_outputs(&of(ElementType::Bool)).unwrap_err().code, ErrorCode::UnsupportedOperation);
    }
}
