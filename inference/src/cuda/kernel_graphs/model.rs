//! A kernel graph as a model: in the cache of a device, with its runs one by one.

use super::Worker;
use super::message::{Answer, Part, Request};
use super::worker::Turn;
use crate::backend::{Model, ModelSource, Session};
use crate::error::InferenceError;
use crate::footprint::Footprint;
use crate::interrupt::Interrupt;
use crate::request::Job;
use crate::tensor::Tensor;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_device::{Arena, Buffer};
use weir_types::{ElementType, Platform};

/// A graph that can be run.
pub(super) struct KernelGraphModel {
    graph: Arc<Loaded>,
    footprint: Footprint,
}

/// What its sessions share. Dropped, the worker lets go of it, and ends if it was its last.
struct Loaded {
    worker: Arc<Worker>,
    /// What the worker knows it by.
    number: u64,
    file: PathBuf,
    outputs: Vec<ElementType>,
    arena: Arena,
}

impl KernelGraphModel {
    pub(super) fn load(
        worker: Arc<Worker>,
        source: &ModelSource,
        footprint: Footprint,
        arena: Arena,
    ) -> Result<Self, InferenceError> {
        let id = source.id();
        let broken = |why: String| InferenceError::Load { model: id.clone(), why: why.into() };
        let form = source.prepared.variants_for(Platform::Cuda).next();
        let form = form.ok_or_else(|| broken("it has no form for a GPU".to_owned()))?;
        let file = std::path::absolute(source.blobs.join(form.skeleton.to_string()));
        let file = file.map_err(|error| broken(error.to_string()))?;
        if !file.is_file() {
            return Err(broken(format!("{} is not there", form.skeleton)));
        }
        let outputs = source.prepared.signature.outputs.iter().map(|port| port.datatype).collect();
        let number = worker.number();
        Ok(Self { graph: Arc::new(Loaded { worker, number, file, outputs, arena }), footprint })
    }
}

impl Model for KernelGraphModel {
    fn footprint(&self) -> Footprint {
        self.footprint.clone()
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        Ok(Box::new(KernelGraphSession { graph: Arc::clone(&self.graph), device_time: None }))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.worker.forget(self.number);
    }
}

struct KernelGraphSession {
    graph: Arc<Loaded>,
    device_time: Option<Duration>,
}

impl Session for KernelGraphSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.device_time = None;
        let Loaded { worker, number, file, .. } = &*self.graph;
        let mut turn = worker.turn(interrupt)?;
        turn.ready(*number, file)?;
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let (inputs, outputs_at) = write(&turn, job)?;
        let request = Request::Run { graph: *number, inputs, outputs: job.outputs.clone(), outputs_at };
        let Answer::Ran { outputs, device_time_ns } = turn.run(&request)? else {
            return Err(InferenceError::Run("its worker did not say what came of it".into()));
        };
        let memory = turn.memory()?;
        let tensors =
            job.outputs.iter().zip(&outputs).map(|(position, part)| self.tensor(*position, part, memory));
        let tensors: Vec<Tensor> = tensors.collect::<Result<_, _>>()?;
        if tensors.len() != job.outputs.len() {
            return Err(InferenceError::Run("its worker has left out some outputs".into()));
        }
        self.device_time = Some(Duration::from_nanos(device_time_ns));
        Ok(tensors)
    }

    fn device_time(&self) -> Option<Duration> {
        self.device_time
    }
}

impl KernelGraphSession {
    fn tensor(&self, position: usize, part: &Part, memory: &File) -> Result<Tensor, InferenceError> {
        let datatype = self.graph.outputs.get(position).copied();
        let datatype = datatype.ok_or_else(|| InferenceError::Run("there is no such output".into()))?;
        Ok(Tensor::new(datatype, part.shape.clone(), read(&self.graph.arena, part, memory)?)?)
    }
}

/// Put the inputs behind each other where the worker finds them; gives where they end, too.
fn write(turn: &Turn<'_>, job: &Job) -> Result<(Vec<Part>, u64), InferenceError> {
    let (memory, mut offset) = (turn.memory()?, 0);
    let mut parts = Vec::with_capacity(job.inputs.len());
    for tensor in &job.inputs {
        let data = tensor.data();
        memory
            .write_all_at(data, offset)
            .map_err(|error| InferenceError::RunOutOfMemory(error.to_string().into()))?;
        let bytes = data.len() as u64;
        parts.push(Part { shape: tensor.shape().clone(), offset, bytes });
        offset += bytes;
    }
    Ok((parts, offset))
}

fn read(arena: &Arena, part: &Part, memory: &File) -> Result<Buffer, InferenceError> {
    let failed =
        |error: std::io::Error| InferenceError::Run(format!("its outputs cannot be read: {error}").into());
    // Not more than is there, whatever the worker says.
    let there = memory.metadata().map_err(failed)?.len();
    let end = part.offset.checked_add(part.bytes).filter(|end| *end <= there);
    let len = end.and_then(|_| usize::try_from(part.bytes).ok());
    let len = len.ok_or_else(|| failed(std::io::ErrorKind::UnexpectedEof.into()))?;
    let mut buffer = arena.buffer(len)?;
    memory.read_exact_at(&mut buffer, part.offset).map_err(failed)?;
    Ok(buffer.freeze())
}
