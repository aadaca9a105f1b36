//! What a run of a model does on a device, for inputs of one shape. Plain data: places, and no addresses yet.
//!
//! ```text
//!   arena      inputs, values, outputs | workspace    the slot's memory, from its start
//!   resident   what depends on no input               kept with the program
//!   weights    of the model, by index                 in the tensor store
//!   constants  of the program, by index               in the tensor store
//! ```

mod bias;
mod product;
pub(super) use product::{FLOPS_MIN, Product, ProductTier};

use bias::Biases;
use bytes::Bytes;
use std::collections::HashMap;
use weir_graph::{ALIGNMENT_BYTES, Graph, GraphError, MemoryPlan, Model, Node, Source, TensorType, ValueId};
use weir_kernels::{Cost, Launch, Operands, Plan, Precision, Slot, Target, Unsupported};
use weir_types::{ElementType, Shape};

/// The steps of one run, in order.
#[derive(Debug)]
pub(super) struct Program {
    /// What is done once, when the program is made ready.
    pub(super) prologue: Vec<Step>,
    /// What every run does.
    pub(super) steps: Vec<Step>,
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

/// One thing that is given to a stream.
#[derive(Debug)]
pub(super) enum Step {
    /// A kernel of Weir's own.
    Launch(Launch<Place>),
    /// A product of matrices by NVIDIA's library, and what computes it should that have nothing for it.
    Product { product: Product<Place>, otherwise: Vec<Launch<Place>> },
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
        tier: ProductTier,
    ) -> Result<Self, CompileError> {
        let graph = model.specialise(shapes)?.fuse()?;
        let graph = match precision.storage() {
            ElementType::Fp32 => graph,
            storage => graph.in_storage(model, storage)?,
        };
        Self::of(&graph, precision, target, tier)
    }

    /// Have all chains of elementwise operations interpreted, whatever compiler there is. For checks, which hold one against the other.
    pub(super) fn interpret_chains(&mut self) {
        for step in &mut self.steps {
            if let Step::Launch(launch) = step {
                launch.chain = None;
            }
        }
    }

    /// The program of a graph.
    pub(super) fn of(
        graph: &Graph,
        precision: Precision,
        target: &Target,
        tier: ProductTier,
    ) -> Result<Self, CompileError> {
        let places = Places::new(graph);
        let (mut prologue, mut steps, mut workspace_bytes) = (Vec::new(), Vec::new(), 0);
        let mut biases = Biases::new(places.memory.resident_bytes as u64, precision, target);
        for (index, node) in graph.nodes.iter().enumerate() {
            let types = Types::of(graph, node);
            let plan = types.with(|operands| weir_kernels::plan(&node.op, operands, precision, target));
            let plan: Plan = plan.map_err(|why| CompileError::Kernel { node: node.name.clone(), why })?;
            let is_once = index < graph.prologue_len;
            // What is computed once may stay with the kernels.
            let tier = if is_once { ProductTier::Own } else { tier };
            let product = types.with(|operands| tier.product(&node.op, operands, precision, &plan));
            let place = |slot| places.of_slot(node, slot);
            let product =
                product.and_then(|product| product.with_buffers(place).with_bias(&types, &mut biases));
            let launches = plan.launches.iter().map(|launch| launch.with_buffers(|slot| place(*slot)));
            let to = if is_once { &mut prologue } else { &mut steps };
            workspace_bytes = workspace_bytes.max(plan.workspace_bytes);
            if let Some(product) = product {
                workspace_bytes = workspace_bytes.max(product.workspace_bytes);
                to.push(Step::Product { product, otherwise: launches.collect() });
            } else {
                to.extend(launches.map(Step::Launch));
            }
        }
        let ports = |ports: &[weir_graph::Port]| {
            let port = |port: &weir_graph::Port| Port {
                place: places.of(port.value),
                tensor: graph.value(port.value).tensor.clone(),
            };
            ports.iter().map(port).collect()
        };
        let (inputs, outputs) = (ports(&graph.inputs), ports(&graph.outputs));
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

impl Step {
    /// What it has to do.
    pub(super) fn cost(&self) -> Cost {
        match self {
            Self::Launch(launch) => launch.cost,
            Self::Product { otherwise, .. } => {
                otherwise.iter().fold(Cost::default(), |sum, launch| sum + launch.cost)
            }
        }
    }
}

/// What a node reads and writes.
struct Types {
    inputs: Vec<Option<TensorType>>,
    outputs: Vec<Option<TensorType>>,
}

impl Types {
    fn of(graph: &Graph, node: &Node) -> Self {
        let types = |ids: &[Option<ValueId>]| {
            ids.iter().map(|id| id.map(|id| graph.value(id).tensor.clone())).collect()
        };
        Self { inputs: types(&node.inputs), outputs: types(&node.outputs) }
    }

    fn with<T>(&self, work: impl FnOnce(Operands<'_>) -> T) -> T {
        let (inputs, outputs): (Vec<_>, Vec<_>) = (
            self.inputs.iter().map(Option::as_ref).collect(),
            self.outputs.iter().map(Option::as_ref).collect(),
        );
        work(Operands { inputs: &inputs, outputs: &outputs })
    }
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
