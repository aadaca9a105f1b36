//! Program of a model's run on a device, for inputs of fixed shapes. The program is plain data:
//! offsets instead of addresses.
//!
//! ```text
//!   arena      inputs, values, outputs | workspace    the slot's memory, from its start
//!   resident   values independent of the inputs       kept with the program
//!   weights    of the model, by index                 in the tensor store
//!   constants  of the program, by index               in the tensor store
//! ```

mod bias;
mod product;
pub use product::{FLOPS_MIN, LibraryGemm, ProductTier};

use bias::Biases;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use weir_graph::{
    ALIGNMENT_BYTES, Graph, GraphError, GraphNode, MemoryPlan, OnnxModel, TensorType, ValueId, ValueSource,
};
use weir_kernels::{
    KernelTarget, Launch, LaunchCost, LaunchPlan, OperandBuffer, Operands, Precision, UnsupportedOperation,
};
use weir_types::{ElementType, Shape};

/// Steps of one run, in order.
#[derive(Debug)]
pub struct Program {
    /// Steps that run once per program.
    pub(crate) prologue: Vec<ProgramStep>,
    /// Steps of every run.
    pub steps: Vec<ProgramStep>,
    /// Data that is known at compile time.
    pub constants: Vec<Bytes>,
    /// Size of a run's working memory in bytes.
    pub arena_bytes: u64,
    /// Size of the prologue's results in bytes.
    pub resident_bytes: u64,
    /// Locations of the inputs, in the order of the signature.
    pub(crate) inputs: Vec<ProgramPort>,
    /// Locations of the outputs after the run, in the order of the signature.
    pub(crate) outputs: Vec<ProgramPort>,
}

/// Step of a program.
#[derive(Debug)]
pub struct ProgramStep {
    /// Work of the step.
    pub work: StepWork,
    /// Memory that the work uses.
    pub(crate) memory: StepMemory,
}

/// Bytes of the arena that a step uses. All other memory is read-only during a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StepMemory {
    pub(crate) reads: Vec<Range<u64>>,
    pub(crate) writes: Vec<Range<u64>>,
    /// Workspace: of Weir's own kernels or, in a bound product, of the library.
    pub(crate) workspace: Range<u64>,
}

impl StepMemory {
    /// Counts the workspace as written.
    pub(crate) fn with_workspace_written(&self) -> Self {
        let mut memory = self.clone();
        if !memory.workspace.is_empty() {
            memory.writes.push(memory.workspace.clone());
        }
        memory
    }
}

/// Work of a step.
#[derive(Debug)]
pub enum StepWork {
    /// Launch of one of Weir's own kernels.
    Launch(Launch<BufferLocation>),
    /// Matrix product by cuBLASLt.
    Product {
        /// The product.
        product: LibraryGemm<BufferLocation>,
        /// Launches after the product.
        then: Vec<Launch<BufferLocation>>,
        /// Launches that replace the product and `then` if the library has no algorithm for the
        /// product.
        otherwise: Vec<Launch<BufferLocation>>,
    },
}

/// Input or output.
#[derive(Debug, Clone)]
pub(crate) struct ProgramPort {
    pub(crate) place: BufferLocation,
    pub(crate) tensor: TensorType,
}

/// Location of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferLocation {
    /// Byte offset in the arena.
    Arena(u64),
    /// Byte offset in the resident memory.
    Resident(u64),
    /// Index of a weight of the model.
    Weight(u32),
    /// Index of a constant of the program.
    Constant(usize),
}

/// Reason why a model cannot run on a device with inputs of these shapes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModelProgramError {
    /// The model has no valid graph for these shapes.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// No kernel supports one of the operations.
    #[error("node {node:?}: {why}")]
    Kernel {
        /// Name of the operation.
        node: String,
        /// The missing feature.
        why: UnsupportedOperation,
    },
}

impl Program {
    /// Compiles `model` for inputs of these shapes, given in the order of its signature. The
    /// weights must be stored for `precision`.
    pub fn compile(
        model: &OnnxModel,
        shapes: &[Shape],
        precision: Precision,
        target: &KernelTarget,
        tier: ProductTier,
    ) -> Result<Self, ModelProgramError> {
        let graph = model.specialise(shapes)?.fuse()?;
        let graph = match precision.storage() {
            ElementType::Fp32 => graph,
            storage => graph.in_storage(model, storage)?,
        };
        Self::from_graph(&graph.with_channels_last()?, precision, target, tier)
    }

    /// Makes all chains of elementwise operations interpreted, even if a compiler is available. For
    /// checks that compare the two.
    pub fn interpret_chains(&mut self) {
        for step in &mut self.steps {
            match &mut step.work {
                StepWork::Launch(launch) => launch.chain = None,
                StepWork::Product { then, .. } => then.iter_mut().for_each(|launch| launch.chain = None),
            }
        }
    }

    /// Compiles a graph.
    pub fn from_graph(
        graph: &Graph,
        precision: Precision,
        target: &KernelTarget,
        tier: ProductTier,
    ) -> Result<Self, ModelProgramError> {
        let places = Places::new(graph);
        let mut prologue = Vec::new();
        let mut steps = Vec::new();
        let mut workspace_bytes = 0;
        let mut biases = Biases::new(places.memory.resident_bytes as u64, precision, target);
        for (index, node) in graph.nodes.iter().enumerate() {
            let types = Types::for_node(graph, node);
            let plan = types.with(|operands| weir_kernels::plan(&node.op, operands, precision, target));
            let plan: LaunchPlan =
                plan.map_err(|why| ModelProgramError::Kernel { node: node.name.clone(), why })?;
            let is_once = index < graph.prologue_len;
            // The prologue runs once, so Weir's own kernels are fast enough.
            let tier = if is_once { ProductTier::Own } else { tier };
            let product = types.with(|operands| tier.product(&node.op, operands, precision, &plan, target));
            let place = |slot| places.of_slot(node, slot);
            let product =
                product.and_then(|product| product.with_buffers(place).with_bias(&types, &mut biases));
            let launches = plan.launches.iter().map(|launch| launch.with_buffers(|slot| place(*slot)));
            let to = if is_once { &mut prologue } else { &mut steps };
            workspace_bytes = workspace_bytes.max(plan.workspace_bytes);
            let memory = places.memory_of(node, &types, plan.workspace_bytes);
            if let Some(product::LibraryProduct { product, then }) = product {
                workspace_bytes = workspace_bytes.max(product.workspace_bytes);
                let work = StepWork::Product { product, then, otherwise: launches.collect() };
                to.push(ProgramStep { work, memory });
            } else {
                let step = |launch| ProgramStep { work: StepWork::Launch(launch), memory: memory.clone() };
                to.extend(launches.map(step));
            }
        }
        let ports = |ports: &[weir_graph::GraphPort]| {
            let port = |port: &weir_graph::GraphPort| ProgramPort {
                place: places.place(port.value),
                tensor: graph.value(port.value).tensor.clone(),
            };
            ports.iter().map(port).collect()
        };
        let inputs = ports(&graph.inputs);
        let outputs = ports(&graph.outputs);
        let (rounding, resident_bytes) = biases.into_steps();
        prologue.extend(rounding);
        Ok(Self {
            prologue,
            steps,
            arena_bytes: places.workspace + workspace_bytes,
            resident_bytes,
            inputs,
            outputs,
            constants: places.constants,
        })
    }
}

impl From<Launch<BufferLocation>> for ProgramStep {
    /// A launch that uses no memory of the arena.
    fn from(launch: Launch<BufferLocation>) -> Self {
        Self { work: StepWork::Launch(launch), memory: StepMemory::default() }
    }
}

impl ProgramStep {
    /// Returns the work of the step. The work of a product is the sum over its fallback launches.
    pub fn cost(&self) -> LaunchCost {
        match &self.work {
            StepWork::Launch(launch) => launch.cost,
            StepWork::Product { otherwise, .. } => {
                otherwise.iter().fold(LaunchCost::default(), |sum, launch| sum + launch.cost)
            }
        }
    }
}

/// Types of the tensors that a node reads and writes.
struct Types {
    inputs: Vec<Option<TensorType>>,
    outputs: Vec<Option<TensorType>>,
}

impl Types {
    fn for_node(graph: &Graph, node: &GraphNode) -> Self {
        let types = |ids: &[Option<ValueId>]| {
            ids.iter().map(|id| id.map(|id| graph.value(id).tensor.clone())).collect()
        };
        Self { inputs: types(&node.inputs), outputs: types(&node.outputs) }
    }

    fn with<T>(&self, work: impl FnOnce(Operands<'_>) -> T) -> T {
        let inputs: Vec<_> = self.inputs.iter().map(Option::as_ref).collect();
        let outputs: Vec<_> = self.outputs.iter().map(Option::as_ref).collect();
        work(Operands { inputs: &inputs, outputs: &outputs })
    }
}

/// Locations of a graph's values.
struct Places {
    memory: MemoryPlan,
    /// Offset of the workspace in the arena. All operations share the workspace; steps whose parts
    /// of it overlap are ordered.
    workspace: u64,
    constants: Vec<Bytes>,
    constant_of: HashMap<ValueId, usize>,
}

impl Places {
    fn new(graph: &Graph) -> Self {
        let memory = MemoryPlan::new(graph);
        let workspace = memory.arena_bytes.next_multiple_of(ALIGNMENT_BYTES) as u64;
        let mut constants = Vec::new();
        let mut constant_of = HashMap::new();
        for id in graph.ids() {
            if let ValueSource::Constant(bytes) = &graph.value(id).source {
                constant_of.insert(id, constants.len());
                constants.push(bytes.clone());
            }
        }
        Self { memory, workspace, constants, constant_of }
    }

    fn place(&self, id: ValueId) -> BufferLocation {
        match self.memory.place(id) {
            weir_graph::ValuePlace::Arena { offset } => BufferLocation::Arena(offset as u64),
            weir_graph::ValuePlace::Resident { offset } => BufferLocation::Resident(offset as u64),
            weir_graph::ValuePlace::Weight(index) => BufferLocation::Weight(index),
            weir_graph::ValuePlace::Constant(id) => {
                BufferLocation::Constant(self.constant_of.get(&id).copied().unwrap_or(usize::MAX))
            }
        }
    }

    /// Returns the bytes of the arena that a node uses. `workspace_bytes` is the workspace of its
    /// kernels.
    fn memory_of(&self, node: &GraphNode, types: &Types, workspace_bytes: u64) -> StepMemory {
        let ranges = |ids: &[Option<ValueId>], types: &[Option<TensorType>]| {
            let range = |(id, tensor): (&Option<ValueId>, &Option<TensorType>)| {
                let BufferLocation::Arena(offset) = self.place((*id)?) else { return None };
                Some(offset..offset + tensor.as_ref()?.bytes() as u64)
            };
            ids.iter().zip(types).filter_map(range).filter(|range| !range.is_empty()).collect()
        };
        StepMemory {
            reads: ranges(&node.inputs, &types.inputs),
            writes: ranges(&node.outputs, &types.outputs),
            workspace: self.workspace..self.workspace + workspace_bytes,
        }
    }

    fn of_slot(&self, node: &GraphNode, slot: OperandBuffer) -> BufferLocation {
        let value = match slot {
            OperandBuffer::Input(place) => node.input(place),
            OperandBuffer::Output(place) => node.output(place),
            OperandBuffer::Workspace => None,
        };
        value.map_or(BufferLocation::Arena(self.workspace), |id| self.place(id))
    }
}
