//! Models on NVIDIA's GPUs, run by an executor of our own.
//!
//! ```text
//!   upload ──form──► skeleton + weights by hash         once, in the child that checks it
//!   skeleton, shapes ──Program──► launches and places   once for each shape of the inputs, on the processor
//!   Program + tensors on the device = Bound             addresses, but for those in a slot's memory
//!   Bound in a Slot ──► launches, then a captured graph one run at a time
//! ```
//!
//! Weights are the bytes of the file: the device's tensor store has each once, whichever models it belongs to. Values between the operations lie
//! in the memory of the slot that runs them, so a model that does not run takes nothing but its weights. A slot's addresses stay the same, which is
//! why a run can be captured as a CUDA graph and repeated with one call.

mod form;
pub(crate) use form::form;

mod device;
mod kernels;
mod slots;

mod program;
mod weights;

mod bound;
mod model;
mod session;

mod kernel_graphs;
pub use kernel_graphs::{
    COMPILE_COMMAND, KernelGraphConfig, KernelGraphPreparer, KernelGraphPreparerConfig, WORKER_COMMAND,
    compile_main, worker_main,
};

pub mod check;

#[cfg(test)]
mod tests;

use crate::backend::{Backend, Model, ModelSource};
use crate::error::InferenceError;
use crate::footprint::{Footprint, Part};
use crate::prepare::{Content, Variant};
use device::Gpu;
use kernel_graphs::KernelGraphs;
use model::CudaModel;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use weir_device::cuda::{CudaError, Devices};
use weir_device::{Arena, Device};
use weir_types::{ContentHash, Platform, TenantId};

/// How models run on one GPU.
#[derive(Debug, Clone)]
pub struct CudaConfig {
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// Memory of the device for weights and for what runs work in, together.
    pub memory_bytes_max: u64,
    /// Runs at once.
    pub slots: usize,
}

/// Runs ONNX models on a GPU.
pub struct Cuda {
    config: CudaConfig,
    devices: Arc<Devices>,
    arena: Arena,
    name: String,
    /// Replaced when the device was lost.
    gpu: RwLock<Arc<Gpu>>,
    /// None where users' kernels do not run.
    kernel_graphs: Option<KernelGraphs>,
}

impl Cuda {
    /// Take hold of a device. Takes some hundred milliseconds; blocks.
    pub fn open(devices: &Arc<Devices>, config: CudaConfig, arena: Arena) -> Result<Self, CudaError> {
        let gpu = Gpu::open(devices, &config, &arena)?;
        let name = gpu.context.info().name.clone();
        Ok(Self {
            config,
            devices: Arc::clone(devices),
            arena,
            name,
            gpu: RwLock::new(Arc::new(gpu)),
            kernel_graphs: None,
        })
    }

    /// Run kernels that users bring, too: each tenant's in a process of its own.
    #[must_use]
    pub fn with_kernel_graphs(mut self, config: KernelGraphConfig) -> Self {
        let driver = self.devices.driver_path().to_owned();
        self.kernel_graphs = Some(KernelGraphs::new(config, driver, self.config.ordinal, self.arena.clone()));
        self
    }

    fn gpu(&self) -> Arc<Gpu> {
        Arc::clone(&self.gpu.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> Device {
        Device::Cuda { ordinal: self.config.ordinal }
    }

    fn kind(&self) -> String {
        self.name.clone()
    }

    fn runs(&self, form: &Variant) -> bool {
        form.platform == Platform::Cuda && (form.content == Content::Network || self.kernel_graphs.is_some())
    }

    fn in_turn(&self, source: &ModelSource) -> Option<TenantId> {
        // A worker does one thing at a time: whoever waits for it takes no slot from others.
        let is_run_there = source.prepared.content() == Content::KernelGraph;
        is_run_there.then(|| source.id().tenant.clone())
    }

    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        if source.prepared.content() == Content::KernelGraph {
            let off = || {
                InferenceError::Unsupported("this node runs no kernel graphs (kernel_graphs.enabled)".into())
            };
            return self.kernel_graphs.as_ref().ok_or_else(off)?.load(source);
        }
        Ok(Box::new(CudaModel::load(self.gpu(), source)?))
    }

    fn footprint(&self, source: &ModelSource) -> Footprint {
        if let Some(kernel_graphs) = &self.kernel_graphs
            && source.prepared.content() == Content::KernelGraph
        {
            return kernel_graphs.footprint(source);
        }
        let Some(form) = source.prepared.variants_for(Platform::Cuda).next() else {
            return Footprint::own(source.prepared.weight_bytes);
        };
        let files: BTreeMap<ContentHash, u64> =
            form.weights.iter().map(|weight| (weight.hash, weight.bytes)).collect();
        let parts = files.into_iter().map(|(hash, bytes)| (Part { hash, family: None }, bytes));
        Footprint::new(0, parts)
    }

    fn trim(&self) {
        self.gpu().trim();
    }

    fn recover(&self) -> Result<(), InferenceError> {
        let gpu = Gpu::open(&self.devices, &self.config, &self.arena).map_err(|error| lost(&error))?;
        *self.gpu.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(gpu);
        Ok(())
    }
}

/// What a device's error means to whoever loads or runs a model.
fn failure(error: &CudaError) -> InferenceError {
    match error {
        CudaError::OutOfMemory(_) => InferenceError::RunOutOfMemory(error.to_string().into()),
        error if error.is_context_lost() => lost(error),
        _ => InferenceError::Run(error.to_string().into()),
    }
}

fn lost(error: &CudaError) -> InferenceError {
    InferenceError::DeviceLost(error.to_string().into())
}
