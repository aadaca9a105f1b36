//! Backend interface of a device. Each kind of device has one implementation, and tests have a
//! fake.
//!
//! Jobs and completions are plain values, and tensors are handles to an arena, so a backend can
//! also send them to a separate process.

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

/// Validates pushed models, and converts them into the forms that the devices of a node or cluster
/// load.
#[async_trait::async_trait]
pub trait Preparer: Send + Sync + 'static {
    /// Checks and optimises the untrusted model in `file`, and writes the files that loading it
    /// will need into the existing folder `out`, each named by its hash. Forms for GPUs compute in
    /// `precision`. Called once, at upload. Dropping the future ends the work.
    async fn prepare(&self, file: &Path, precision: Precision, out: &Path) -> Result<Prepared, PrepareError>;
}

/// Callback for the loss of a device, with [`InferenceError::DeviceLost`]. Does not block.
pub type LossHook = Box<dyn Fn(&InferenceError) + Send + Sync>;

/// Runs models on one device.
pub trait Backend: Send + Sync + 'static {
    /// Name of the backend in the status and in metrics, such as `onnxruntime`.
    fn name(&self) -> &'static str;

    /// The device that the backend runs models on.
    fn device(&self) -> Device;

    /// Kind of the device: `cpu`, or the name of a GPU. Profiles and prices are stored per kind,
    /// since a run of a model takes the same time on all devices of a kind.
    fn kind(&self) -> String {
        self.platform().to_string()
    }

    /// Platform of the models that run on the device.
    fn platform(&self) -> Platform {
        self.device().platform()
    }

    /// Whether the backend can load a model in this form.
    fn runs(&self, form: &Variant) -> bool {
        form.platform == self.platform()
    }

    /// The form of a model that the backend loads.
    fn form<'a>(&self, prepared: &'a Prepared) -> Option<&'a Variant> {
        prepared.variants.iter().find(|form| self.runs(form))
    }

    /// The tenant whose runs of such models are serialised on the device; `None` for a model that
    /// may use all run slots of the device.
    fn in_turn(&self, _source: &ModelSource) -> Option<TenantId> {
        None
    }

    /// Registers `tell`, called from any thread when the device is lost and no load or run reports
    /// the loss. Called once, before any other method.
    fn on_loss(&self, _tell: LossHook) {}

    /// Loads a prepared model into the device's memory, or starts the transfer ([`Model::arrive`]).
    /// Blocks; called on the device's loader thread, one load at a time.
    fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError>;

    /// Device memory that loading a prepared model would take now.
    fn footprint(&self, source: &ModelSource) -> Footprint {
        Footprint::own(source.prepared.resident_bytes.max(source.prepared.weight_bytes))
    }

    /// The most threads that one run can use.
    fn threads_max(&self) -> u32 {
        1
    }

    /// Memory that runs allocated for intermediate tensors and have not returned since, where
    /// known. Blocks; called from any thread.
    fn run_memory_bytes(&self) -> u64 {
        0
    }

    /// Memory that the backend has taken from the device for models, runs and tensors together;
    /// `None` where only models are accounted for. Does not block.
    fn pool_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the freed memory of unloaded models to the system. Blocks; called on the loader
    /// thread after an unload.
    fn trim(&self) {}

    /// Counters of the tensors that runs left on the device; `None` if the device cannot keep
    /// tensors.
    fn handed_over(&self) -> Option<HandedOver> {
        None
    }

    /// Memory that the device has for models now, at most `configured_bytes`. May change with every
    /// load and run.
    fn available_bytes(&self, configured_bytes: u64) -> u64 {
        configured_bytes
    }

    /// Counters of a GPU's executor; `None` for other backends.
    fn executor(&self) -> Option<ExecutorFigures> {
        None
    }

    /// Figures of the pinned host memory that caches weights; `None` if the device has no such
    /// cache.
    fn pinned_cache(&self) -> Option<PinnedCacheFigures> {
        None
    }

    /// Why a model is quarantined: it ended its worker process repeatedly, and is not run until it
    /// is [released](Self::release). `None` if it is not.
    fn quarantine(&self, _key: &ModelKey) -> Option<Arc<str>> {
        None
    }

    /// Ends the quarantine of a model. Returns whether the model was quarantined.
    fn release(&self, _key: &ModelKey) -> bool {
        false
    }

    /// Recovers a lost device: see [`InferenceError::DeviceLost`]. Blocks; called on the loader
    /// thread, and retried after a delay if it fails. Models that were loaded before the loss do
    /// not run any more, and are dropped at some later time.
    fn recover(&self) -> Result<(), InferenceError> {
        Ok(())
    }
}

/// Counters of a GPU's executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecutorFigures {
    /// Runs that should have been captured as CUDA graphs, and were launched kernel by kernel
    /// because the driver failed to capture them.
    pub capture_failures: u64,
    /// Device memory in use outside of the pool for weights and runs: contexts, modules, graphs,
    /// libraries, and other processes.
    pub outside_bytes: u64,
}

/// Figures of the pinned host memory that caches a GPU's weights. The counters include all loads
/// since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinnedCacheFigures {
    /// Host memory of the cache; 0 if the cache is disabled, or its memory could not be allocated.
    pub capacity_bytes: u64,
    /// Bytes of the cached weights, at the last load or run on the device.
    pub used_bytes: u64,
    /// Bytes of weights that loads copied to the device from the cache.
    pub hit_bytes: u64,
    /// Bytes of weights that loads copied to the device from files.
    pub miss_bytes: u64,
}

/// A model in a device's memory. Dropping the model frees that memory; all sessions of the model
/// are dropped first.
pub trait Model: Send + Sync {
    /// Device memory of the model.
    fn footprint(&self) -> Footprint;

    /// Whether some weights are still being transferred to their allocated place in device memory.
    /// Sessions can already be created; their runs wait for the weights that they need.
    fn is_arriving(&self) -> bool {
        false
    }

    /// Waits until all weights have arrived. An error means that they never will, and that the
    /// model is unusable. Blocks; called on the loader thread, before the next load.
    fn arrive(&self) -> Result<(), InferenceError> {
        Ok(())
    }

    /// Device memory of one more session, where known; 0 otherwise.
    fn session_bytes(&self) -> u64 {
        0
    }

    /// Creates one more session over the same weights, whose runs use `threads` threads; devices
    /// without a use for threads ignore the number. Blocks; called on the device's threads.
    fn session(&self, threads: u32) -> Result<Box<dyn Session>, InferenceError>;
}

/// One run slot's share of a model: runs one job at a time.
pub trait Session: Send {
    /// Runs `job`, which fits the model's signature, and returns the requested outputs in their
    /// order. Blocks; called on a device thread. Returns early, with any error, once `interrupt`
    /// fires.
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError>;

    /// Like [`Session::run`], without moving tensors: the run reads inputs that other runs left on
    /// this device in place, and leaves outputs that may stay on the device, while there is room.
    /// If nothing can stay, the inputs are copied to the host.
    fn run_placed(&mut self, job: &PlacedJob, interrupt: &Interrupt) -> Result<Vec<Value>, InferenceError> {
        let outputs = self.run(&job.to_host()?, interrupt)?;
        Ok(outputs.into_iter().map(Value::Host).collect())
    }

    /// Time that the device was busy with the last run, if the backend can separate it from the
    /// rest of the run and from a load that the run waited for.
    fn device_time(&self) -> Option<Duration> {
        None
    }

    /// Whether the last run began before all weights had arrived, so that its time says nothing
    /// about other runs.
    fn was_cold(&self) -> bool {
        false
    }

    /// Precision of the computation: answers of equal requests differ by its rounding, if they run
    /// in batches of different sizes.
    fn precision(&self) -> Precision {
        Precision::Fp32
    }
}

/// One push of a model. A model id can be pushed again with other contents after the model was
/// deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelKey {
    /// The model.
    pub id: ModelId,
    /// Distinguishes pushes: no two pushes of an id have the same generation.
    pub generation: u64,
}

/// Location of a prepared model, and its serving settings.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The model.
    pub key: ModelKey,
    /// The result of preparing the model.
    pub prepared: Arc<Prepared>,
    /// The folder with the files that [`Prepared`] lists, each named by its hash.
    pub blobs: PathBuf,
    /// The most concurrent runs; `None`: as many as the device has run slots.
    pub slots: Option<u32>,
    /// Batching of the requests that wait for the model.
    pub batching: Batching,
    /// Counts the model's loads, its time in memory, and the runs of requests without their own
    /// meter.
    pub meter: Meter,
}

impl ModelSource {
    /// Id of the model.
    #[must_use]
    pub fn id(&self) -> &ModelId {
        &self.key.id
    }
}
