//! Runs of a model that a worker has: where their tensors are, on the way there and back.

use super::connection::{CallError, InPlace};
use super::export::Export;
use super::let_go::Gone;
use super::memory::WorkerMemory;
use super::message::{Answer, Input, Output, Request};
use super::model::Loaded;
use crate::backend::Session;
use crate::cuda::process::{Part, read_tensor, write_tensors};
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::request::{Job, PlacedJob};
use crate::tensor::Tensor;
use crate::value::{DeviceTensor, Stay, Value};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use weir_device::Arena;
use weir_device::cuda::BLOCK_BYTES;
use weir_types::{ElementType, Shape};

/// One slot's share of a model.
pub(super) struct WorkerSession {
    model: Arc<Loaded>,
    number: u64,
    device_time: Option<Duration>,
    was_cold: bool,
}

/// Where an input of a run is.
enum Source {
    Here(Tensor),
    /// With this worker, where it stays for the run.
    Stayed(Stay, u64),
    /// With the worker of a device whose memory this one reads.
    Sibling(Export, Shape),
}

/// The inputs of a run, as its worker is told of them.
struct Sent {
    inputs: Vec<Input>,
    /// Those that the worker may read in the arena, or on other devices.
    in_place: InPlace,
    /// Those that have stayed with it. A run that is given up does not care whether they still do.
    stays: Vec<Stay>,
    /// How many bytes those have that have stayed with it.
    stayed_bytes: u64,
    /// Where the connection's memory is free.
    outputs_at: u64,
}

/// Where an output of a run is.
enum Given {
    Here(ElementType, Part),
    Stays(DeviceTensor),
}

impl WorkerSession {
    /// One that the worker knows by `number`.
    pub(super) fn new(model: &Arc<Loaded>, number: u64) -> Self {
        Self { model: Arc::clone(model), number, device_time: None, was_cold: false }
    }
}

impl Session for WorkerSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.run_placed(&job.into(), interrupt)?.iter().map(Value::to_host).collect()
    }

    fn run_placed(&mut self, job: &PlacedJob, interrupt: &Interrupt) -> Result<Vec<Value>, InferenceError> {
        (self.device_time, self.was_cold) = (None, false);
        // What is on other devices it reads there; or else the node has that brought to the host.
        for siblings in [true, false] {
            if let Some(outputs) = self.run_on(job, siblings, interrupt)? {
                return Ok(outputs);
            }
        }
        Err(self.model.worker.senseless(&"it has not reached what it was not to read"))
    }

    fn device_time(&self) -> Option<Duration> {
        self.device_time
    }

    fn was_cold(&self) -> bool {
        self.was_cold
    }
}

impl WorkerSession {
    /// Run, with inputs read from `siblings` where that can be; none if it turned out that it cannot.
    fn run_on(
        &mut self,
        job: &PlacedJob,
        siblings: bool,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<Value>>, InferenceError> {
        let worker = &self.model.worker;
        // Before there is a connection: what is elsewhere takes one, too.
        let sources = self.model.sources(job, siblings)?;
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let run = worker.number();
        let mut line = worker.line(interrupt)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        let (told, waker) = (Arc::clone(worker), connection.waker());
        let _hook = interrupt.hook(move || {
            told.control.cancel(run);
            waker.wake();
        });
        connection.settle(interrupt).map_err(|error| worker.failed(error))?;
        let arena = &self.model.memory.arena;
        let sent = Sent::new(sources, &connection.memory, arena)?;
        let Sent { inputs, mut in_place, stays, stayed_bytes, outputs_at } = sent;
        let (session, wanted) = (self.number, self.model.wanted(job));
        let request = Request::Run { session, run, inputs, outputs: wanted.clone(), outputs_at };
        let time_max = self.model.run_time_max();
        let answered = connection.call(&request, Some(&mut in_place), time_max, interrupt);
        if let Err(CallError::Unwanted) = &answered {
            // It goes on there, and what it leaves is nobody's.
            let numbers = wanted.iter().filter_map(|(_, number)| *number);
            numbers.for_each(|number| worker.let_go.tell(Gone::Abandoned { number }));
        }
        drop(stays);
        let answer = match worker.understand(answered)? {
            Answer::NotReached { ordinal, why } => {
                worker.reads_no_more(ordinal, &why);
                return Ok(None);
            }
            answer => answer,
        };
        let Answer::Ran { outputs, device_time_ns, was_cold, through_host_bytes, room, not_captured, .. } =
            answer
        else {
            return Err(worker.senseless(&answer));
        };
        if outputs.len() != wanted.len() {
            return Err(worker.senseless(&format!("{} outputs of {}", outputs.len(), wanted.len())));
        }
        if let Some(why) = not_captured {
            worker.config.capture_failures.note(&self.model.id, why);
        }
        worker.note_worked();
        worker.config.hand_overs.read(stayed_bytes.saturating_sub(through_host_bytes), through_host_bytes);
        in_place.exports.iter().for_each(Export::note_read);
        // All of them before the first is read: those that have stayed have somebody to let go of them.
        let given = wanted.iter().zip(outputs).map(|(wanted, output)| self.model.given(*wanted, output));
        let given = given.collect::<Vec<_>>();
        let read = |given| match given? {
            Given::Stays(tensor) => Ok(Value::Device(tensor)),
            Given::Here(element_type, part) => {
                read_tensor(element_type, &part, &connection.memory, arena).map(Value::Host)
            }
        };
        let outputs = given.into_iter().map(read).collect::<Result<_, InferenceError>>()?;
        worker.config.hand_overs.spilled_to_host(room.spilled_bytes);
        worker.spill.offer(room.beyond);
        (self.device_time, self.was_cold) = (Some(Duration::from_nanos(device_time_ns)), was_cold);
        Ok(Some(outputs))
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        self.model.worker.release(&Request::Forget { session: self.number });
    }
}

impl Loaded {
    /// Where the inputs of a run can be read. What a device has that this one does not reach, or what a former worker had, has to be brought here.
    fn sources(&self, job: &PlacedJob, siblings: bool) -> Result<Vec<Source>, InferenceError> {
        let source = |value: &Value| {
            let Some(stay) = value.device().map(DeviceTensor::stay) else {
                return value.to_host().map(Source::Here);
            };
            match stay.memory::<WorkerMemory>() {
                Some(memory) if Arc::ptr_eq(&memory.worker, &self.worker) => {
                    Ok(Source::Stayed(stay, value.bytes()))
                }
                Some(memory) if siblings => match self.export(memory, stay.number(), value.bytes()) {
                    Some(export) => Ok(Source::Sibling(export, value.shape().clone())),
                    None => value.to_host().map(Source::Here),
                },
                _ => value.to_host().map(Source::Here),
            }
        };
        job.inputs.iter().map(source).collect()
    }

    /// Have a tensor of so many bytes kept where another worker has it, to be read there; none where this one cannot.
    fn export(&self, there: &WorkerMemory, number: u64, bytes: u64) -> Option<Export> {
        if !self.worker.reads(&there.worker) {
            return None;
        }
        // It may begin in the middle of a block.
        let blocks_max = usize::try_from(bytes.div_ceil(BLOCK_BYTES)).ok()?.checked_add(1)?;
        let reserved = self.worker.files.reserve(blocks_max)?;
        // Why there is none is told by the way over the host, if that fails as well.
        Export::begin(&there.worker, number, &self.memory.tenant, reserved).ok().flatten()
    }

    /// The outputs that a run is to give, with numbers for those that may stay.
    fn wanted(&self, job: &PlacedJob) -> Vec<(usize, Option<u64>)> {
        let is_on = self.worker.config.gpu.intermediates.free_percent_max > 0;
        let number = |at: &usize| (is_on && job.may_stay.contains(at)).then(|| self.worker.number());
        job.outputs.iter().map(|at| (*at, number(at))).collect()
    }

    /// An output that a run has given.
    fn given(
        &self,
        (position, number): (usize, Option<u64>),
        output: Output,
    ) -> Result<Given, InferenceError> {
        let missing = || InferenceError::Run("there is no such output".into());
        let element_type = *self.outputs.get(position).ok_or_else(missing)?;
        match (output, number) {
            (Output::Here(part), _) => Ok(Given::Here(element_type, part)),
            (Output::Stays { shape, bytes }, Some(number)) => {
                self.worker.config.hand_overs.kept(bytes);
                let memory = Arc::clone(&self.memory);
                let tensor = DeviceTensor::new(memory, number, element_type, shape, bytes);
                self.worker.note_left(number, &tensor);
                Ok(Given::Stays(tensor))
            }
            (Output::Stays { .. }, None) => Err(missing()),
        }
    }
}

impl Sent {
    /// Put inputs that are here where the worker reads them.
    fn new(sources: Vec<Source>, memory: &File, arena: &Arena) -> Result<Self, InferenceError> {
        let (mut in_place, mut stays, mut stayed_bytes) = (InPlace::default(), Vec::new(), 0);
        let elsewhere = |source| match source {
            Source::Here(tensor) => {
                in_place.here.push(tensor);
                None
            }
            Source::Stayed(stay, bytes) => {
                stayed_bytes += bytes;
                let number = stay.number();
                stays.push(stay);
                Some(Input::Stayed(number))
            }
            Source::Sibling(export, shape) => {
                let told = export.told(&shape);
                in_place.exports.push(export);
                Some(Input::Exported(told))
            }
        };
        let elsewhere: Vec<Option<Input>> = sources.into_iter().map(elsewhere).collect();
        let (parts, outputs_at) = write_tensors(&in_place.here, memory, Some(arena))?;
        let mut parts = parts.into_iter();
        let inputs =
            elsewhere.into_iter().filter_map(|input| input.or_else(|| parts.next().map(Input::Here)));
        Ok(Self { inputs: inputs.collect(), in_place, stays, stayed_bytes, outputs_at })
    }
}
