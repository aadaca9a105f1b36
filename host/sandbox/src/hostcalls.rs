//! Implements `weir:inference` for guests, and `wasi:nn` on the same models. One file per
//! interface; the contract is in `wit/`.

mod error;
mod image;
mod io_error;
mod models;
mod nn;
mod objects;
mod readiness;
mod request;
mod tensors;

pub use error::CallError;
pub use models::OpenModel;
pub use nn::{ExecutionContext, NnError, NnTensor, VERSION as NN_VERSION};
pub(crate) use tensors::to_host;

use crate::instance::{CurrentSink, InstanceState, RequestCell, SandboxUsage};
use crate::{Resources, TenantImages};
use std::sync::Arc;
use wasmtime::component::{HasData, Linker, ResourceTable};
use weir_device::Arena;
use weir_telemetry::{Metrics, Trace};

/// The imports, generated from `wit/`.
pub mod bindings {
    #![expect(missing_docs, reason = "generated code")]
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "weir:inference/imports",
        imports: {
            "weir:inference/models.[static]model.open": async | trappable,
            "weir:inference/models.[method]model.infer": async | trappable,
            "weir:inference/models.[method]model.submit": async | trappable,
            "weir:inference/models.[method]pending.wait": async | trappable,
            "weir:inference/tensors.[method]tensor.read": async | trappable,
            "weir:inference/objects.put": async | trappable,
            "weir:inference/objects.get": async | trappable,
            "weir:inference/objects.delete": async | trappable,
            "weir:inference/image.inspect": async | trappable,
            "weir:inference/image.decode": async | trappable,
            "weir:inference/request.take-body-as-tensor": async | trappable,
            "weir:inference/request.reply-with-tensor": async | trappable,
            default: trappable,
        },
        trappable_error_type: { "weir:inference/tensors.error" => super::CallError },
        with: {
            "wasi:io": wasmtime_wasi::p2::bindings::io,
            "weir:inference/tensors.tensor": weir_inference::Value,
            "weir:inference/models.model": super::models::OpenModel,
            "weir:inference/models.pending": super::models::GuestRun,
        },
    });
}

/// The export of a tensor function, generated from `wit/`.
mod stage {
    #![expect(missing_docs, reason = "generated code")]
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "weir:inference/tensor-function",
        exports: { default: async },
        with: {
            "weir:inference/tensors": super::bindings::weir::inference::tensors,
            "weir:inference/models": super::bindings::weir::inference::models,
            "weir:inference/objects": super::bindings::weir::inference::objects,
            "weir:inference/image": super::bindings::weir::inference::image,
        },
        require_store_data_send: true,
    });
}

pub use stage::{TensorFunction as Stage, TensorFunctionPre as StagePre};

/// The context of an invocation's inference calls.
#[derive(Clone)]
pub struct InferenceCtx {
    /// Access to the models, functions and objects that the call may open.
    pub resources: Arc<dyn Resources>,
    /// The memory for bodies and tensors.
    pub arena: Arena,
    /// The HTTP request in progress; empty for a tensor function.
    pub request: RequestCell,
    /// The decoder of images.
    pub images: TenantImages,
    /// The counters of CPU time, for work of host calls.
    pub usage: Arc<SandboxUsage>,
    /// The node's metrics.
    pub metrics: Arc<Metrics>,
    /// The invocation's trace.
    pub trace: Trace,
    /// The invocation's deadline: no model run outlives it.
    pub deadline: std::time::Instant,
    /// The invocation's priority: the default for its model runs.
    pub priority: u32,
    /// The remaining bytes of tensors that the guest may hold.
    pub tensor_bytes_left: u64,
    /// The limit of bytes of tensors (`limits.tensor_bytes`).
    pub tensor_bytes_max: u64,
    /// The remaining bytes of models that the guest may load from its own memory.
    pub loaded_model_bytes_left: u64,
    /// The limit of bytes for models that the guest loads from its own memory; 0 forbids it.
    pub loaded_model_bytes_max: u64,
    /// The limit of bytes for a request body that the guest takes as a tensor.
    pub request_body_bytes_max: u64,
}

impl InferenceCtx {
    /// The bytes of tensors that the guest holds.
    pub fn tensor_bytes_held(&self) -> u64 {
        self.tensor_bytes_max.saturating_sub(self.tensor_bytes_left)
    }

    /// Deducts `bytes` from the limit for loaded models.
    fn charge_load(&mut self, bytes: u64) -> Result<(), CallError> {
        let max = self.loaded_model_bytes_max;
        if max == 0 {
            let text = "loading models from bytes is not granted to this function; set limits.loaded_model_bytes in the manifest, or push the model and grant it";
            return Err(bindings::weir::inference::tensors::Error::NotGranted(text.to_owned()).into());
        }
        let left = self.loaded_model_bytes_left.checked_sub(bytes);
        self.loaded_model_bytes_left = left.ok_or_else(|| {
            CallError::exhausted(format!(
                "the models would have more than {max} bytes together (limits.loaded_model_bytes)"
            ))
        })?;
        Ok(())
    }

    /// Drops the state of an invocation that is over.
    pub fn rest(&mut self) {
        self.request = RequestCell::default();
        self.trace = Trace::none();
    }
}

/// The part of the store that a host call uses.
pub struct InferenceView<'a> {
    /// The invocation's context and limits.
    pub(crate) ctx: &'a mut InferenceCtx,
    /// The resources that the guest holds.
    pub(crate) table: &'a mut ResourceTable,
    /// The function's log, for denied requests.
    pub(crate) sink: &'a CurrentSink,
}

/// The type that declares to wasmtime which data a host call borrows.
pub struct Inference;

impl HasData for Inference {
    type Data<'a> = InferenceView<'a>;
}

/// Links `weir:inference`, `wasi:nn` and the error interface. To be called after WASI is linked.
pub fn add_to_linker(linker: &mut Linker<InstanceState>) -> wasmtime::Result<()> {
    use bindings::weir::inference;
    inference::tensors::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    inference::models::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    inference::objects::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    inference::image::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    inference::readiness::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    inference::request::add_to_linker::<_, Inference>(linker, InstanceState::inference)?;
    nn::add_to_linker(linker)?;
    io_error::add_to_linker(linker)
}
