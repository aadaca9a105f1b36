//! What a device needs to be able to do. One implementation per kind of device, and the fake.
//!
//! Jobs and completions are plain values, and tensors are handles to an arena, so that a backend may as well send them to a process of
//! its own.

use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::prepare::{PrepareError, Prepared, Variant};
use crate::request::{Job, PlacedJob};
use crate::tensor::Tensor;
use crate::value::{HandedOver, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_device::Device;
use weir_types::{Batching, ModelId, Platform, Precision, TenantId};

/// Checks what is pushed, and makes of it the forms that the devices of a node or cluster load.
#[async_trait::async_trait]
pub trait Preparer: Send + Sync + 'static {
    /// Check and optimise the model in `file`, which nobody has vouched for, and write what loading it will need into the existing
    /// folder `out`: files named by their hash. What GPUs load computes in `precision`. Called once, at upload. Dropping the future ends the work.
    async fn prepare(&self, file: &Path, precision: Precision, out: &Path) -> Result<Prepared, PrepareError>;
}

/// Told of the loss of a device: [`InferenceError::DeviceLost`]. Does not block.
pub type LossHook = Box<dyn Fn(&InferenceError) + Send + Sync>;

/// Runs models on one device.
pub trait Backend: Send + Sync + 'static {
    /// What it is called in the status and in metrics, such as `onnxruntime`.
    fn name(&self) -> &'static str;

    /// Where it runs models.
    fn device(&self) -> Device;

    /// What kind of device that is, as profiles and prices are kept by: runs of a model take the same on all of a kind. `cpu`, or the name of
    /// a GPU.
    fn kind(&self) -> String {
        self.platform().to_string()
    }

    /// What runs models there.
    fn platform(&self) -> Platform {
        self.device().platform()
    }

    /// Whether it can load a model in this form.
    fn runs(&self, form: &Variant) -> bool {
        form.platform == self.platform()
    }

    /// The tenant whose runs of such models come one after the other on the device; none for a model that has as many as there are slots.
    fn in_turn(&self, _source: &ModelSource) -> Option<TenantId> {
        None
    }

    /// Have `tell` called, from any thread, if the device is lost while no load or run would say so. Called once, before anything else.
    fn on_loss(&self, _tell: LossHook) {}

    /// Bring a prepared model into the device's memory, or have it on its way there ([`Model::arrive`]). Blocks; called on the device's loader thread, one
    /// at a time.
    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError>;

    /// What a prepared model would take of the device's memory now.
    fn footprint(&self, source: &ModelSource) -> Footprint {
        Footprint::own(source.prepared.resident_bytes.max(source.prepared.weight_bytes))
    }

    /// Threads that one run can use, at most.
    fn threads_max(&self) -> u32 {
        1
    }

    /// Memory that runs took for what lies between their inputs and outputs and that was not given back since, as far as that is known. Blocks;
    /// called on the loader thread.
    fn run_memory_bytes(&self) -> u64 {
        0
    }

    /// Give memory that models have left behind back to the system. Blocks; called on the loader thread after an unload.
    fn trim(&self) {}

    /// What became of the tensors that runs have left on the device; none where none can.
    fn handed_over(&self) -> Option<HandedOver> {
        None
    }

    /// Of the memory that models may take by the settings, what the device has for them now. May change with every load and run.
    fn available_bytes(&self, configured_bytes: u64) -> u64 {
        configured_bytes
    }

    /// What the executor of a GPU counts; none for other backends.
    fn executor(&self) -> Option<ExecutorFigures> {
        None
    }

    /// Have a device again that was lost: see [`InferenceError::DeviceLost`]. Blocks; called on the loader thread, again after a while if it
    /// fails. Models that were loaded before are dropped sooner or later, and are not run any more.
    fn recover(&self) -> Result<(), InferenceError> {
        Ok(())
    }
}

/// What the executor of a GPU counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecutorFigures {
    /// Runs that were to be captured as CUDA graphs, and were launched kernel by kernel since the driver failed to.
    pub capture_failures: u64,
    /// Memory of the device that is in use outside of the pool for weights and runs: contexts, modules, graphs, libraries, and other processes.
    pub outside_bytes: u64,
}

/// A model in a device's memory; dropping it frees that memory. Dropped only after its sessions.
pub trait Model: Send + Sync {
    /// What it takes of the device's memory.
    fn footprint(&self) -> Footprint;

    /// Whether some of it is still on its way to the device's memory, where it has its place. Sessions can be made, and run behind what they wait for.
    fn is_arriving(&self) -> bool {
        false
    }

    /// Wait until all of it is there; an error says that it never will be, and that the model is of no use. Blocks; called on the loader thread, before the
    /// next load.
    fn arrive(&self) -> Result<(), InferenceError> {
        Ok(())
    }

    /// What one more session takes of the device's memory, as far as that is known.
    fn session_bytes(&self) -> u64 {
        0
    }

    /// Make one more session over the same weights, whose runs use so many threads; devices that have no use for them leave them alone. Blocks;
    /// called on the device's threads.
    fn session(&self, threads: u32) -> Result<Box<dyn Session>, InferenceError>;
}

/// One slot's share of a model: runs one job at a time.
pub trait Session: Send {
    /// Run `job`, which fits the model's signature, and hand out the wanted outputs in their order. Blocks; called on a device thread.
    /// Ends early, with any error, once `interrupt` fires.
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError>;

    /// The same, with tensors where they are: inputs that other runs have left on this device are read there, and outputs that may stay there do, as far
    /// as there is room. Where nothing can stay, inputs are brought to the host.
    fn run_placed(&mut self, job: &PlacedJob, interrupt: &Interrupt) -> Result<Vec<Value>, InferenceError> {
        let outputs = self.run(&job.to_host()?, interrupt)?;
        Ok(outputs.into_iter().map(Value::Host).collect())
    }

    /// How long the device was busy with the last run, where that is known apart from what else the run took, and from the load that it may have gone on
    /// behind.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// Whether the last run began before all of the model was there: its time says nothing of others.
    fn was_cold(&self) -> bool {
        false
    }
}

/// One push of a model. The id of a model that was deleted can be pushed again, with other contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelKey {
    /// Which model.
    pub id: ModelId,
    /// Which push of it: no two pushes of an id have the same.
    pub generation: u64,
}

/// Where a prepared model is, and how it is to be served.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// Which model.
    pub key: ModelKey,
    /// What preparing it found.
    pub prepared: Arc<Prepared>,
    /// The folder with the files that [`Prepared`] lists, each named by its hash.
    pub blobs: PathBuf,
    /// Runs at once, at most; none for as many as the device has slots.
    pub slots: Option<u32>,
    /// How requests that wait for it are run together.
    pub batching: Batching,
    /// What counts its loads, its time in memory, and the runs of those who name no meter of their own.
    pub meter: Meter,
}

impl ModelSource {
    /// Which model.
    #[must_use]
    pub fn id(&self) -> &ModelId {
        &self.key.id
    }
}
