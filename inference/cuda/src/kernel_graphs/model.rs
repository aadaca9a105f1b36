//! Kernel graph as a model in the cache of a device. Its runs are sequential.

use super::GraphWorker;
use super::message::{KernelGraphReply, KernelGraphRequest};
use crate::captured::CaptureFailures;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_device::Arena;
use weir_inference::{Footprint, InferenceError, Interrupt, Job, Model, ModelSource, Session, Tensor};
use weir_types::{ElementType, ModelId, Platform};
use weir_worker::{TensorLocation, read_tensor, write_tensors};

/// Loaded kernel graph.
pub(super) struct KernelGraphModel {
    graph: Arc<GraphModel>,
    footprint: Footprint,
}

/// State shared by the graph's sessions. On drop, the worker unloads the graph, and ends if this
/// was its last graph.
struct GraphModel {
    worker: Arc<GraphWorker>,
    id: ModelId,
    /// Number of the graph in the worker.
    number: u64,
    file: PathBuf,
    outputs: Vec<ElementType>,
    arena: Arena,
    capture_failures: CaptureFailures,
}

impl KernelGraphModel {
    pub(super) fn load(
        worker: Arc<GraphWorker>,
        source: &ModelSource,
        footprint: Footprint,
        arena: Arena,
        capture_failures: CaptureFailures,
    ) -> Result<Self, InferenceError> {
        let id = source.id();
        let broken = |why: String| InferenceError::Load { model: id.clone(), why: why.into() };
        let form = source.prepared.variants_for(Platform::Cuda).next();
        let form = form.ok_or_else(|| broken("it has no form for a GPU".to_owned()))?;
        let file = std::path::absolute(source.blobs.join(form.skeleton.to_string()));
        let file = file.map_err(|error| broken(error.to_string()))?;
        if !file.is_file() {
            return Err(broken(format!("{} is missing", form.skeleton)));
        }
        let outputs = source.prepared.signature.outputs.iter().map(|port| port.datatype).collect();
        let number = worker.number();
        let id = id.clone();
        let graph = GraphModel { worker, id, number, file, outputs, arena, capture_failures };
        Ok(Self { graph: Arc::new(graph), footprint })
    }
}

impl Model for KernelGraphModel {
    fn footprint(&self) -> Footprint {
        self.footprint.clone()
    }

    fn session(&self, _threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        Ok(Box::new(KernelGraphSession { graph: self.graph.clone(), device_time: None }))
    }
}

impl Drop for GraphModel {
    fn drop(&mut self) {
        self.worker.forget(self.number);
    }
}

struct KernelGraphSession {
    graph: Arc<GraphModel>,
    device_time: Option<Duration>,
}

impl Session for KernelGraphSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.device_time = None;
        let GraphModel { worker, number, file, .. } = &*self.graph;
        let mut turn = worker.turn(interrupt)?;
        turn.ready(*number, file)?;
        if interrupt.reason().is_some() {
            return Err(InferenceError::Cancelled);
        }
        let (inputs, outputs_at) = write_tensors(&job.inputs, turn.memory()?, None)?;
        let request =
            KernelGraphRequest::Run { graph: *number, inputs, outputs: job.outputs.clone(), outputs_at };
        let KernelGraphReply::Ran { outputs, device_time_ns, not_captured } = turn.run(&request)? else {
            return Err(InferenceError::Run("its worker did not say what came of it".into()));
        };
        if let Some(why) = not_captured {
            self.graph.capture_failures.note(&self.graph.id, &why);
        }
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
    fn tensor(
        &self,
        position: usize,
        part: &TensorLocation,
        memory: &File,
    ) -> Result<Tensor, InferenceError> {
        let datatype = self.graph.outputs.get(position).copied();
        let datatype = datatype.ok_or_else(|| InferenceError::Run("there is no such output".into()))?;
        read_tensor(datatype, part, memory, &self.graph.arena)
    }
}
