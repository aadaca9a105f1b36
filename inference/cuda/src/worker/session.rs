//! Runs of a model in a worker: transfer of inputs and outputs, and device-resident tensors.

use super::export::Export;
use super::in_place::InPlace;
use super::memory::WorkerMemory;
use super::message::{GpuWorkerReply, GpuWorkerRequest, WorkerInput, WorkerOutput};
use super::model::WorkerModelState;
use super::release::Gone;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use weir_device::Arena;
use weir_device::cuda::BLOCK_BYTES;
use weir_inference::{
    DeviceHandle, DeviceTensor, InferenceError, Interrupt, Job, PlacedJob, Session, Tensor, Value,
};
use weir_types::{ElementType, Precision, Shape};
use weir_worker::{Forecast, TensorLocation, WorkerCallError, read_tensor, write_tensors};

/// Session of a model.
pub(super) struct GpuWorkerSession {
    model: Arc<WorkerModelState>,
    number: u64,
    device_time: Option<Duration>,
    was_cold: bool,
    /// Replies to earlier runs.
    replies: Forecast,
}

/// Location of an input.
enum InputLocation {
    Here(Tensor),
    /// Tensor on this worker's device, kept there during the run.
    Stayed(DeviceHandle, u64),
    /// Tensor on a device whose memory this worker can read.
    Sibling(Export, Shape),
}

/// Inputs of a run in the form in which the worker gets them.
struct Sent {
    inputs: Vec<WorkerInput>,
    /// Inputs that the worker may read in the arena or on other devices.
    in_place: InPlace,
    /// Guards that keep tensors on this worker's device. An abandoned run drops them early, because
    /// its result is discarded.
    stays: Vec<DeviceHandle>,
    /// Bytes of the device-resident inputs.
    stayed_bytes: u64,
    /// Start of the free part of the connection's memory.
    outputs_at: u64,
}

/// Location of an output.
enum OutputSource {
    Here(ElementType, TensorLocation),
    Stays(DeviceTensor),
}

impl GpuWorkerSession {
    /// Creates a session with this number in the worker.
    pub(super) fn new(model: &Arc<WorkerModelState>, number: u64) -> Self {
        let replies = Forecast::default();
        Self { model: model.clone(), number, device_time: None, was_cold: false, replies }
    }
}

impl Session for GpuWorkerSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.run_placed(&job.into(), interrupt)?.iter().map(Value::to_host).collect()
    }

    fn run_placed(&mut self, job: &PlacedJob, interrupt: &Interrupt) -> Result<Vec<Value>, InferenceError> {
        self.device_time = None;
        self.was_cold = false;
        // The first attempt reads tensors of other devices in place. If that fails, the node copies
        // them through the host.
        for siblings in [true, false] {
            if let Some(outputs) = self.run_on(job, siblings, interrupt)? {
                return Ok(outputs);
            }
        }
        Err(self.model.worker.senseless(&"a peer tensor is unreachable, but the run reads none"))
    }

    fn device_time(&self) -> Option<Duration> {
        self.device_time
    }

    fn precision(&self) -> Precision {
        self.model.precision
    }

    fn was_cold(&self) -> bool {
        self.was_cold
    }
}

impl GpuWorkerSession {
    /// Runs the model. Inputs on `siblings` are read in place if possible. Returns `None` if a
    /// device turns out to be unreachable.
    fn run_on(
        &mut self,
        job: &PlacedJob,
        siblings: bool,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<Value>>, InferenceError> {
        let worker = &self.model.worker;
        // Sources come before the connection, because an export needs a connection as well.
        let sources = self.model.sources(job, siblings)?;
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let run = worker.number();
        let mut line = worker.line(interrupt)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        let told = worker.clone();
        let waker = connection.waker();
        let _hook = interrupt.hook(move || {
            told.control.cancel(run);
            waker.wake();
        });
        connection.settle(interrupt).map_err(|error| worker.failed(error))?;
        let arena = &self.model.memory.arena;
        let sent = Sent::new(sources, &connection.memory, arena)?;
        let Sent { inputs, mut in_place, stays, stayed_bytes, outputs_at } = sent;
        let session = self.number;
        let wanted = self.model.wanted(job);
        let request = GpuWorkerRequest::Run { session, run, inputs, outputs: wanted.clone(), outputs_at };
        let time_max = self.model.run_time_max();
        let answered =
            connection.call_expecting(&request, &mut in_place, &mut self.replies, time_max, interrupt);
        if let Err(WorkerCallError::Unwanted) = &answered {
            self.model.abandon(&wanted);
        }
        drop(stays);
        let answer = match worker.understand(answered)? {
            GpuWorkerReply::NotReached { ordinal, why } => {
                worker.reads_no_more(ordinal, &why);
                return Ok(None);
            }
            answer => answer,
        };
        let GpuWorkerReply::Ran {
            outputs,
            device_time_ns,
            was_cold,
            through_host_bytes,
            room,
            not_captured,
            ..
        } = answer
        else {
            return Err(worker.senseless(&answer));
        };
        if outputs.len() != wanted.len() {
            return Err(worker.senseless(&format!("{} outputs of {}", outputs.len(), wanted.len())));
        }
        if let Some(why) = not_captured {
            worker.config.capture_failures.note(&self.model.id, &why);
        }
        worker.note_worked();
        worker.config.hand_overs.read(stayed_bytes.saturating_sub(through_host_bytes), through_host_bytes);
        in_place.exports.iter().for_each(Export::note_read);
        // All outputs are registered before the first is read, so that an error still releases
        // device-resident outputs.
        let given = wanted.iter().zip(outputs).map(|(wanted, output)| self.model.given(*wanted, output));
        let given = given.collect::<Vec<_>>();
        let read = |given| match given? {
            OutputSource::Stays(tensor) => Ok(Value::Device(tensor)),
            OutputSource::Here(element_type, part) => {
                read_tensor(element_type, &part, &connection.memory, arena).map(Value::Host)
            }
        };
        let outputs = given.into_iter().map(read).collect::<Result<_, InferenceError>>()?;
        worker.config.hand_overs.spilled_to_host(room.spilled_bytes);
        worker.spill.offer(room.beyond);
        self.device_time = Some(Duration::from_nanos(device_time_ns));
        self.was_cold = was_cold;
        Ok(Some(outputs))
    }
}

impl Drop for GpuWorkerSession {
    fn drop(&mut self) {
        self.model.worker.release(&GpuWorkerRequest::Forget { session: self.number });
    }
}

impl WorkerModelState {
    /// Returns the locations of a run's inputs. Tensors on an unreachable device or of a former
    /// worker are copied to the host.
    fn sources(&self, job: &PlacedJob, siblings: bool) -> Result<Vec<InputLocation>, InferenceError> {
        let source = |value: &Value| {
            let Some(stay) = value.device().map(DeviceTensor::stay) else {
                return value.to_host().map(InputLocation::Here);
            };
            match stay.memory::<WorkerMemory>() {
                Some(memory) if Arc::ptr_eq(&memory.worker, &self.worker) => {
                    Ok(InputLocation::Stayed(stay, value.bytes()))
                }
                Some(memory) if siblings => match self.export(memory, stay.number(), value.bytes()) {
                    Some(export) => Ok(InputLocation::Sibling(export, value.shape().clone())),
                    None => value.to_host().map(InputLocation::Here),
                },
                _ => value.to_host().map(InputLocation::Here),
            }
        };
        job.inputs.iter().map(source).collect()
    }

    /// Exports a tensor of another worker. Returns `None` if this worker cannot read it in place.
    fn export(&self, there: &WorkerMemory, number: u64, bytes: u64) -> Option<Export> {
        if !self.worker.reads(&there.worker) {
            return None;
        }
        // The tensor may begin in the middle of a block.
        let blocks_max = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).ok()?.checked_add(1)?;
        let reserved = self.worker.files.reserve(blocks_max)?;
        // The error is dropped: the copy through the host reports an error if it fails as well.
        Export::begin(&there.worker, number, &self.memory.tenant, reserved).ok().flatten()
    }

    /// Returns the wanted outputs of a run, with numbers for the outputs that may stay on the
    /// device.
    fn wanted(&self, job: &PlacedJob) -> Vec<(usize, Option<u64>)> {
        let is_on = self.worker.config.gpu.intermediates.free_percent_max > 0;
        let number = |at: &usize| (is_on && job.may_stay.contains(at)).then(|| self.worker.number());
        job.outputs.iter().map(|at| (*at, number(at))).collect()
    }

    /// Releases the device-resident outputs of an abandoned run, which continues in the worker.
    fn abandon(&self, wanted: &[(usize, Option<u64>)]) {
        let numbers = wanted.iter().filter_map(|(_, number)| *number);
        numbers.for_each(|number| self.worker.let_go.tell(Gone::Abandoned { number }));
    }

    /// Converts an output of the worker.
    fn given(
        &self,
        (position, number): (usize, Option<u64>),
        output: WorkerOutput,
    ) -> Result<OutputSource, InferenceError> {
        let missing = || InferenceError::Run("there is no such output".into());
        let element_type = *self.outputs.get(position).ok_or_else(missing)?;
        match (output, number) {
            (WorkerOutput::Here(part), _) => Ok(OutputSource::Here(element_type, part)),
            (WorkerOutput::Stays { shape, bytes }, Some(number)) => {
                self.worker.config.hand_overs.kept(bytes);
                let memory = self.memory.clone();
                let tensor = DeviceTensor::new(memory, number, element_type, shape, bytes);
                self.worker.note_left(number, &tensor);
                Ok(OutputSource::Stays(tensor))
            }
            (WorkerOutput::Stays { .. }, None) => Err(missing()),
        }
    }
}

impl Sent {
    /// Writes host inputs to memory that the worker reads.
    fn new(sources: Vec<InputLocation>, memory: &File, arena: &Arena) -> Result<Self, InferenceError> {
        let mut in_place = InPlace::default();
        let mut stays = Vec::new();
        let mut stayed_bytes = 0;
        let elsewhere = |source| match source {
            InputLocation::Here(tensor) => {
                in_place.here.push(tensor);
                None
            }
            InputLocation::Stayed(stay, bytes) => {
                stayed_bytes += bytes;
                let number = stay.number();
                stays.push(stay);
                Some(WorkerInput::Stayed(number))
            }
            InputLocation::Sibling(export, shape) => {
                let told = export.told(&shape);
                in_place.exports.push(export);
                Some(WorkerInput::Exported(told))
            }
        };
        let elsewhere: Vec<Option<WorkerInput>> = sources.into_iter().map(elsewhere).collect();
        let (parts, outputs_at) = write_tensors(&in_place.here, memory, Some(arena))?;
        let mut parts = parts.into_iter();
        let inputs =
            elsewhere.into_iter().filter_map(|input| input.or_else(|| parts.next().map(WorkerInput::Here)));
        Ok(Self { inputs: inputs.collect(), in_place, stays, stayed_bytes, outputs_at })
    }
}
