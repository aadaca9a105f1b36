//! Model in the memory of a worker's device.

use super::memory::WorkerMemory;
use super::message::{GpuWorkerReply, GpuWorkerRequest};
use super::session::GpuWorkerSession;
use super::{CALL_TIME_MAX, DeviceWorker};
use crate::model::ModelFiles;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_device::Arena;
use weir_inference::{Footprint, InferenceError, Model, ModelSource, Session, SharedPart};
use weir_types::{ElementType, ModelId, Precision};

/// Minimum rate at which weights are read from disk, in bytes per second. A slower worker is
/// assumed to hang.
const LOAD_BYTES_PER_S_MIN: u64 = 20 << 20;

/// Loaded model.
pub(crate) struct GpuWorkerModel {
    model: Arc<WorkerModelState>,
    footprint: Footprint,
}

/// State shared by the model's sessions.
pub(super) struct WorkerModelState {
    pub(super) worker: Arc<DeviceWorker>,
    pub(super) id: ModelId,
    /// Number of the model in the worker.
    number: u64,
    pub(super) outputs: Vec<ElementType>,
    pub(super) precision: Precision,
    /// Device memory in which outputs may stay.
    pub(super) memory: Arc<WorkerMemory>,
    /// Maximum time for the weights to arrive.
    load_time_max: Duration,
    is_arriving: AtomicBool,
}

impl GpuWorkerModel {
    /// Loads the model in the worker. Blocks.
    pub(crate) fn load(
        worker: Arc<DeviceWorker>,
        source: &ModelSource,
        arena: Arena,
    ) -> Result<Self, InferenceError> {
        let files = ModelFiles::for_source(source)?;
        let outputs = files.signature.outputs.iter().map(|port| port.datatype).collect();
        let precision = files.precision;
        let seconds = source.prepared.weight_bytes / LOAD_BYTES_PER_S_MIN;
        let load_time_max = CALL_TIME_MAX.saturating_add(Duration::from_secs(seconds));
        let number = worker.number();
        let is_arriving = AtomicBool::new(true);
        let id = source.id().clone();
        let tenant = id.tenant.clone();
        let memory = Arc::new(WorkerMemory { worker: worker.clone(), tenant, arena });
        let model = Arc::new(WorkerModelState {
            worker,
            id,
            number,
            outputs,
            precision,
            memory,
            load_time_max,
            is_arriving,
        });
        match model.worker.call(&GpuWorkerRequest::Load { model: number, files }, load_time_max)? {
            GpuWorkerReply::Loaded { own_bytes, weights, is_arriving, lookups, .. } => {
                model.worker.config.memory.note_lookups(lookups);
                model.is_arriving.store(is_arriving, Ordering::Relaxed);
                let parts =
                    weights.into_iter().map(|(hash, bytes)| (SharedPart { hash, family: None }, bytes));
                Ok(Self { model, footprint: Footprint::new(own_bytes, parts) })
            }
            answer => Err(model.worker.senseless(&answer)),
        }
    }
}

impl Model for GpuWorkerModel {
    fn footprint(&self) -> Footprint {
        self.footprint.clone()
    }

    fn is_arriving(&self) -> bool {
        self.model.is_arriving.load(Ordering::Relaxed)
    }

    fn arrive(&self) -> Result<(), InferenceError> {
        let WorkerModelState { worker, number, load_time_max, is_arriving, .. } = &*self.model;
        match worker.call(&GpuWorkerRequest::Arrive { model: *number }, *load_time_max)? {
            GpuWorkerReply::Done => {
                is_arriving.store(false, Ordering::Relaxed);
                Ok(())
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        let worker = &self.model.worker;
        let model = self.model.number;
        let number = worker.number();
        let session = GpuWorkerSession::new(&self.model, number);
        match worker.call(&GpuWorkerRequest::Session { model, session: number }, CALL_TIME_MAX)? {
            GpuWorkerReply::Done => Ok(Box::new(session)),
            answer => Err(worker.senseless(&answer)),
        }
    }
}

impl Drop for WorkerModelState {
    fn drop(&mut self) {
        self.worker.release(&GpuWorkerRequest::Unload { model: self.number });
    }
}

impl WorkerModelState {
    /// Returns the time limit of a run, including the time that it may wait for weights.
    pub(super) fn run_time_max(&self) -> Duration {
        let run_time_max = self.worker.config.run_time_max;
        if self.is_arriving.load(Ordering::Relaxed) {
            return run_time_max.saturating_add(self.load_time_max);
        }
        run_time_max
    }
}
