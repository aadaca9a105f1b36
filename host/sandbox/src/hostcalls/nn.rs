//! Implements `wasi:nn` as of 2024-10-28, for components built for it, on the same models, tensors
//! and runs as `weir:inference`. One file per interface; the contract is in `wit/deps/nn.wit`.

mod errors;
mod graph;
mod inference;
mod tensor;

pub use errors::NnError;
pub use inference::ExecutionContext;
pub use tensor::NnTensor;

use super::Inference;
use crate::instance::InstanceState;
use wasmtime::component::Linker;

/// The imports, generated from `wit/deps/nn.wit`.
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "wasi:nn/ml",
        imports: {
            "wasi:nn/graph.load": async | trappable,
            "wasi:nn/graph.load-by-name": async | trappable,
            "wasi:nn/inference.[method]graph-execution-context.compute": async | trappable,
            default: trappable,
        },
        with: {
            "wasi:nn/errors.error": super::errors::NnError,
            "wasi:nn/graph.graph": super::super::models::OpenModel,
            "wasi:nn/inference.graph-execution-context": super::inference::ExecutionContext,
            "wasi:nn/tensor.tensor": super::tensor::NnTensor,
        },
    });
}

/// The supported version, which never became stable.
pub const VERSION: &str = "0.2.0-rc-2024-10-28";

/// Links all interfaces of `wasi:nn`.
pub(super) fn add_to_linker(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    use bindings::wasi::nn;
    nn::errors::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    nn::tensor::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    nn::inference::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    nn::graph::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    Ok(())
}
