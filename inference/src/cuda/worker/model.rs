//! A model in the memory of a device that a worker holds.

use super::message::{Answer, Request};
use super::{CALL_TIME_MAX, Worker};
use crate::backend::{Model, ModelSource, Session};
use crate::cuda::model::ModelFiles;
use crate::cuda::process::{read_tensor, write_tensors};
use crate::error::InferenceError;
use crate::footprint::{Footprint, Part};
use crate::interrupt::Interrupt;
use crate::request::Job;
use crate::tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_device::Arena;
use weir_types::ElementType;

/// How slowly weights may come from the disk before their worker is taken to hang.
const LOAD_BYTES_PER_S_MIN: u64 = 20 << 20;

/// A model that is loaded.
pub(in crate::cuda) struct WorkerModel {
    model: Arc<Loaded>,
    footprint: Footprint,
}

/// What its sessions share.
struct Loaded {
    worker: Arc<Worker>,
    /// What the worker knows it by.
    number: u64,
    outputs: Vec<ElementType>,
    arena: Arena,
    /// How long it may take to arrive.
    load_time_max: Duration,
    is_arriving: AtomicBool,
}

impl WorkerModel {
    /// Have the worker load it. Blocks.
    pub(in crate::cuda) fn load(
        worker: Arc<Worker>,
        source: &ModelSource,
        arena: Arena,
    ) -> Result<Self, InferenceError> {
        let files = ModelFiles::of(source)?;
        let outputs = files.signature.outputs.iter().map(|port| port.datatype).collect();
        let seconds = source.prepared.weight_bytes / LOAD_BYTES_PER_S_MIN;
        let load_time_max = CALL_TIME_MAX.saturating_add(Duration::from_secs(seconds));
        let (number, is_arriving) = (worker.number(), AtomicBool::new(true));
        let model = Arc::new(Loaded { worker, number, outputs, arena, load_time_max, is_arriving });
        match model.worker.call(&Request::Load { model: number, files }, load_time_max)? {
            Answer::Loaded { own_bytes, weights, is_arriving } => {
                model.is_arriving.store(is_arriving, Ordering::Relaxed);
                let parts = weights.into_iter().map(|(hash, bytes)| (Part { hash, family: None }, bytes));
                Ok(Self { model, footprint: Footprint::new(own_bytes, parts) })
            }
            answer => Err(model.worker.senseless(&answer)),
        }
    }
}

impl Model for WorkerModel {
    fn footprint(&self) -> Footprint {
        self.footprint.clone()
    }

    fn is_arriving(&self) -> bool {
        self.model.is_arriving.load(Ordering::Relaxed)
    }

    fn arrive(&self) -> Result<(), InferenceError> {
        let Loaded { worker, number, load_time_max, is_arriving, .. } = &*self.model;
        match worker.call(&Request::Arrive { model: *number }, *load_time_max)? {
            Answer::Done => {
                is_arriving.store(false, Ordering::Relaxed);
                Ok(())
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        let (worker, model) = (&self.model.worker, self.model.number);
        let number = worker.number();
        let session =
            WorkerSession { model: Arc::clone(&self.model), number, device_time: None, was_cold: false };
        match worker.call(&Request::Session { model, session: number }, CALL_TIME_MAX)? {
            Answer::Done => Ok(Box::new(session)),
            answer => Err(worker.senseless(&answer)),
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.worker.let_go(&Request::Unload { model: self.number });
    }
}

/// One slot's share of it.
struct WorkerSession {
    model: Arc<Loaded>,
    number: u64,
    device_time: Option<Duration>,
    was_cold: bool,
}

impl Loaded {
    /// How long a run may take, and what it may have to wait for.
    fn run_time_max(&self) -> Duration {
        let run_time_max = self.worker.config.run_time_max;
        if self.is_arriving.load(Ordering::Relaxed) {
            return run_time_max.saturating_add(self.load_time_max);
        }
        run_time_max
    }
}

impl Session for WorkerSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        (self.device_time, self.was_cold) = (None, false);
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let Loaded { worker, outputs: types, arena, .. } = &*self.model;
        let (session, run, wanted) = (self.number, worker.number(), &job.outputs);
        let mut line = worker.line(interrupt)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        let (told, waker) = (Arc::clone(worker), connection.waker());
        let _hook = interrupt.hook(move || {
            told.control.cancel(run);
            waker.wake();
        });
        connection.settle(interrupt).map_err(|error| worker.failed(error))?;
        let (inputs, outputs_at) = write_tensors(&job.inputs, &connection.memory, Some(arena))?;
        let request = Request::Run { session, run, inputs, outputs: wanted.clone(), outputs_at };
        let answered = connection.call(&request, &job.inputs, self.model.run_time_max(), interrupt);
        let (outputs, device_time_ns, was_cold) = match worker.understand(answered)? {
            Answer::Ran { outputs, device_time_ns, was_cold } if outputs.len() == wanted.len() => {
                (outputs, device_time_ns, was_cold)
            }
            answer => return Err(worker.senseless(&answer)),
        };
        worker.note_worked();
        let tensors = wanted.iter().zip(&outputs).map(|(position, part)| {
            let missing = || InferenceError::Run("there is no such output".into());
            read_tensor(*types.get(*position).ok_or_else(missing)?, part, &connection.memory, arena)
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        (self.device_time, self.was_cold) = (Some(Duration::from_nanos(device_time_ns)), was_cold);
        Ok(tensors)
    }

    fn device_time(&self) -> Option<Duration> {
        self.device_time
    }

    fn was_cold(&self) -> bool {
        self.was_cold
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        self.model.worker.let_go(&Request::Forget { session: self.number });
    }
}
