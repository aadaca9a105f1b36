//! What a run of a model does on a device, for inputs of one shape. Plain data: places, and no addresses yet.
//!
//! ```text
//!   arena      inputs, values, outputs | workspace    the slot's memory, from its start
//!   resident   what depends on no input               kept with the program
//!   weights    of the model, by index                 in the tensor store
//!   constants  of the program, by index               in the tensor store
//! ```

use bytes::Bytes;
use std::collections::HashMap;
use weir_graph::{ALIGNMENT_BYTES, Graph, GraphError, MemoryPlan, Model, Node, Source, TensorType, ValueId};
use weir_kernels::{Launch, Operands, Plan, Precision, Slot, Target, Unsupported};
use weir_types::{ElementType, Shape};

/// The launches of one run, in order.
#[derive(Debug)]
pub(super) struct Program {
    /// What is launched once, when the program is made ready.
    pub(super) prologue: Vec<Launch<Place>>,
    /// What every run launches.
    pub(super) launches: Vec<Launch<Place>>,
    /// What is known before any run.
    pub(super) constants: Vec<Bytes>,
    /// The memory that a run works in.
    pub(super) arena_bytes: u64,
    /// The memory of what the prologue makes.
    pub(super) resident_bytes: u64,
    /// Where each input goes, in the order of the signature.
    pub(super) inputs: Vec<Port>,
    /// Where each output is in the end, in the order of the signature.
    pub(super) outputs: Vec<Port>,
}

/// An input or output.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub(super) place: Place,
    pub(super) tensor: TensorType,
}

/// Where a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// So many bytes from the start of the arena.
    Arena(u64),
    /// So many bytes from the start of what stays.
    Resident(u64),
    /// One of the model's weights.
    Weight(u32),
    /// One of the program's constants.
    Constant(usize),
}

/// Why a model cannot run on a device with inputs of these shapes.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CompileError {
    /// There is no graph of it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no kernel for one of its operations.
    #[error("node {node:?}: {why}")]
    Kernel { node: String, why: Unsupported },
}

impl Program {
    /// The program of `model`, whose weights are stored for `precision`, for inputs of these shapes, in the order of its signature.
    pub(super) fn compile(
        model: &Model,
        shapes: &[Shape],
        precision: Precision,
        target: &Target,
    ) -> Result<Self, CompileError> {
        let graph = model.specialise(shapes)?.fuse()?;
        let graph = match precision.storage() {
            ElementType::Fp32 => graph,
            storage => graph.in_storage(model, storage)?,
        };
        Self::of(&graph, precision, target)
    }

    /// The program of a graph.
    pub(super) fn of(graph: &Graph, precision: Precision, target: &Target) -> Result<Self, CompileError> {
        let places = Places::new(graph);
        let plans = graph.nodes.iter().map(|node| plan(graph, node, precision, target));
        let plans: Vec<Plan> = plans.collect::<Result<_, _>>()?;
        let workspace_bytes = plans.iter().map(|plan| plan.workspace_bytes).max().unwrap_or(0);
        let mut launches: Vec<Launch<Place>> = Vec::new();
        let mut prologue = Vec::new();
        for (index, (node, plan)) in graph.nodes.iter().zip(&plans).enumerate() {
            let to = if index < graph.prologue_len { &mut prologue } else { &mut launches };
            to.extend(
                plan.launches.iter().map(|launch| launch.with_buffers(|slot| places.of_slot(node, *slot))),
            );
        }
        let ports = |ports: &[weir_graph::Port]| {
            let port = |port: &weir_graph::Port| Port {
                place: places.of(port.value),
                tensor: graph.value(port.value).tensor.clone(),
            };
            ports.iter().map(port).collect()
        };
        let (inputs, outputs) = (ports(&graph.inputs), ports(&graph.outputs));
        Ok(Self {
            prologue,
            launches,
            arena_bytes: places.workspace + workspace_bytes,
            resident_bytes: places.memory.resident_bytes as u64,
            inputs,
            outputs,
            constants: places.constants,
        })
    }
}

fn plan(graph: &Graph, node: &Node, precision: Precision, target: &Target) -> Result<Plan, CompileError> {
    let types = |ids: &[Option<ValueId>]| -> Vec<Option<TensorType>> {
        ids.iter().map(|id| id.map(|id| graph.value(id).tensor.clone())).collect()
    };
    let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
    let (inputs, outputs): (Vec<_>, Vec<_>) =
        (inputs.iter().map(Option::as_ref).collect(), outputs.iter().map(Option::as_ref).collect());
    let operands = Operands { inputs: &inputs, outputs: &outputs };
    weir_kernels::plan(&node.op, operands, precision, target)
        .map_err(|why| CompileError::Kernel { node: node.name.clone(), why })
}

/// Where the values of a graph are.
struct Places {
    memory: MemoryPlan,
    /// Where the operations' workspace begins in the arena: they run one after the other, and share it.
    workspace: u64,
    constants: Vec<Bytes>,
    constant_of: HashMap<ValueId, usize>,
}

impl Places {
    fn new(graph: &Graph) -> Self {
        let memory = MemoryPlan::new(graph);
        let workspace = memory.arena_bytes.next_multiple_of(ALIGNMENT_BYTES) as u64;
        let (mut constants, mut constant_of) = (Vec::new(), HashMap::new());
        for id in graph.ids() {
            if let Source::Constant(bytes) = &graph.value(id).source {
                constant_of.insert(id, constants.len());
                constants.push(bytes.clone());
            }
        }
        Self { memory, workspace, constants, constant_of }
    }

    fn of(&self, id: ValueId) -> Place {
        match self.memory.place(id) {
            weir_graph::Place::Arena { offset } => Place::Arena(offset as u64),
            weir_graph::Place::Resident { offset } => Place::Resident(offset as u64),
            weir_graph::Place::Weight(index) => Place::Weight(index),
            weir_graph::Place::Constant(id) => {
                Place::Constant(self.constant_of.get(&id).copied().unwrap_or(usize::MAX))
            }
        }
    }

    fn of_slot(&self, node: &Node, slot: Slot) -> Place {
        let value = match slot {
            Slot::Input(place) => node.input(place),
            Slot::Output(place) => node.output(place),
            Slot::Workspace => None,
        };
        value.map_or(Place::Arena(self.workspace), |id| self.of(id))
    }
}
