//! Comparison of one operation on the emulator with the reference.

use crate::Emulator;
use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;
use weir_graph::reference::{self, ReferenceData, ReferenceTensor};
use weir_graph::{Graph, GraphNode, GraphPort, GraphValue, Op, TensorType, ValueId, ValueSource};
use weir_kernels::{KernelTarget, Launch, LaunchPlan, OperandBuffer, Operands, Precision, plan};

/// Thread orders: forwards, backwards, and two shuffled ones.
const ORDERS: [u32; 4] = [0, 1, 2, 7];

/// Tolerance of a result: `absolute` plus `relative` times the expected number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Part that is independent of the number.
    pub absolute: f32,
    /// Part that is proportional to the number.
    pub relative: f32,
}

impl Tolerance {
    /// Exact equality.
    pub const NONE: Self = Self { absolute: 0.0, relative: 0.0 };

    /// Tolerance for sums of `terms` products of numbers around 1, computed and stored in this
    /// precision.
    #[must_use]
    pub fn of_sum(precision: Precision, terms: usize) -> Self {
        let unit = match precision {
            Precision::Fp32 => 1e-6,
            Precision::Tf32 => 5e-4,
            Precision::Fp16 => 1e-3,
            Precision::Bf16 => 8e-3,
        };
        Self { absolute: unit * (terms as f32).sqrt().max(1.0), relative: 2.0 * unit }
    }

    /// Tolerance for a few steps in f32, stored in this precision.
    #[must_use]
    pub fn of_steps(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 | Precision::Tf32 => Self { absolute: 2e-6, relative: 5e-6 },
            Precision::Fp16 => Self { absolute: 1e-3, relative: 2e-3 },
            Precision::Bf16 => Self { absolute: 8e-3, relative: 1.6e-2 },
        }
    }
}

/// An operation with its operands and outputs.
#[derive(Debug, Clone)]
pub struct KernelCase {
    /// The operation.
    pub op: Op,
    /// The operands.
    pub inputs: Vec<Option<ReferenceTensor>>,
    /// Types of the outputs.
    pub outputs: Vec<Option<TensorType>>,
    /// Precision of the plan.
    pub precision: Precision,
    /// Device of the plan.
    pub target: KernelTarget,
    /// Tolerance of the results.
    pub tolerance: Tolerance,
}

/// Run `case` on the emulator in several thread orders, once with AddressSanitizer, and compare the
/// results with the reference. Returns the plan.
///
/// # Errors
/// If results differ, or the emulator reports an error.
pub fn check(case: &KernelCase) -> Result<LaunchPlan> {
    let types: Vec<_> = case.inputs.iter().map(|input| input.as_ref().map(ReferenceTensor::tensor)).collect();
    let outputs: Vec<_> = case.outputs.iter().map(Option::as_ref).collect();
    let operands = Operands { inputs: &types, outputs: &outputs };
    let plan = plan(&case.op, operands, case.precision, &case.target)?;
    plan.launches.iter().try_for_each(|launch| within_limits(launch, &case.target))?;
    let wanted = reference(case)?;
    for order in ORDERS {
        let made = run(case, &plan, order, false).with_context(|| format!("order {order}"))?;
        for (made, wanted) in made.iter().zip(&wanted) {
            compare(made, wanted, case.tolerance)
                .with_context(|| format!("{:?}, order {order}", names(&plan)))?;
        }
    }
    run(case, &plan, 3, true).with_context(|| format!("{:?} with AddressSanitizer", names(&plan)))?;
    Ok(plan)
}

fn names(plan: &LaunchPlan) -> Vec<&str> {
    plan.launches.iter().map(|launch| launch.kernel.name.as_str()).collect()
}

/// Check the limits of CUDA's programming guide for compute capability 7.5 to 9.0, and of the
/// device.
fn within_limits<B>(launch: &Launch<B>, target: &KernelTarget) -> Result<()> {
    let [grid_x, grid_y, grid_z] = launch.grid;
    let [block_x, block_y, block_z] = launch.block;
    ensure!(grid_x <= i32::MAX as u32 && grid_y.max(grid_z) <= 65_535, "grid {:?}", launch.grid);
    ensure!(block_x * block_y * block_z <= 1_024 && block_z <= 64, "block {:?}", launch.block);
    ensure!(launch.shared_bytes <= target.shared_bytes_max, "{} bytes of shared memory", launch.shared_bytes);
    let bytes: usize = launch
        .arguments
        .iter()
        .map(|argument| match argument {
            weir_kernels::Argument::Bytes(bytes) => bytes.len(),
            _ => 8,
        })
        .sum();
    ensure!(bytes <= 4_096, "{bytes} bytes of arguments");
    Ok(())
}

fn reference(case: &KernelCase) -> Result<Vec<Option<ReferenceTensor>>> {
    let mut graph = Graph::default();
    let mut add = |tensor: &TensorType, source: ValueSource| {
        graph.values.push(GraphValue { name: String::new(), tensor: tensor.clone(), source });
        ValueId(graph.values.len() as u32 - 1)
    };
    let given: Vec<_> = case
        .inputs
        .iter()
        .map(|input| input.as_ref().map(|input| add(input.tensor(), ValueSource::Input)))
        .collect();
    let made: Vec<_> = case
        .outputs
        .iter()
        .enumerate()
        .map(|(output, tensor)| {
            tensor.as_ref().map(|tensor| add(tensor, ValueSource::Node { node: 0, output: output as u32 }))
        })
        .collect();
    let port = |id: &ValueId| GraphPort { name: String::new(), value: *id };
    graph.inputs = given.iter().flatten().map(port).collect();
    graph.outputs = made.iter().flatten().map(port).collect();
    graph.nodes = vec![GraphNode {
        name: "node".to_owned(),
        op: case.op.clone(),
        inputs: given,
        outputs: made.clone(),
    }];
    let inputs: Vec<_> = case.inputs.iter().flatten().cloned().collect();
    let mut results = reference::run(&graph, &inputs, &|_| None)?.into_iter();
    Ok(made.iter().map(|id| id.and_then(|_| results.next())).collect())
}

fn run(
    case: &KernelCase,
    plan: &LaunchPlan,
    order: u32,
    sanitised: bool,
) -> Result<Vec<Option<ReferenceTensor>>> {
    // Inputs, then outputs, then the workspace; omitted buffers are empty. Unwritten outputs are
    // NaN.
    let mut buffers: Vec<Vec<u8>> = case
        .inputs
        .iter()
        .map(|input| input.as_ref().map_or_else(Vec::new, ReferenceTensor::to_bytes))
        .collect();
    let first_output = buffers.len();
    buffers
        .extend(case.outputs.iter().map(|tensor| vec![0xff; tensor.as_ref().map_or(0, TensorType::bytes)]));
    let workspace = buffers.len();
    buffers.push(vec![0xff; plan.workspace_bytes as usize]);
    let find = |slot: &OperandBuffer| match slot {
        OperandBuffer::Input(place) => *place,
        OperandBuffer::Output(place) => first_output + place,
        OperandBuffer::Workspace => workspace,
    };
    let launches: Vec<_> = plan.launches.iter().map(|launch| launch.with_buffers(find)).collect();
    let after = with_emulator(sanitised, |emulator| emulator.run(&launches, &buffers, order))?;
    for (place, input) in case.inputs.iter().enumerate() {
        ensure!(input.is_none() || after[place] == buffers[place], "input {place} was written to");
    }
    let read = |(place, tensor): (usize, &Option<TensorType>)| {
        tensor
            .as_ref()
            .map(|tensor| {
                ReferenceTensor::from_bytes(tensor.clone(), &after[first_output + place])
                    .context("wrong size")
            })
            .transpose()
    };
    case.outputs.iter().enumerate().map(read).collect()
}

/// Idle emulators for reuse; starting one takes longer than most runs.
static IDLE: [Mutex<Vec<Emulator>>; 2] = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];

fn with_emulator<T>(sanitised: bool, work: impl FnOnce(&mut Emulator) -> Result<T>) -> Result<T> {
    let idle = &IDLE[usize::from(sanitised)];
    let lock = || idle.lock();
    let taken = lock().pop();
    let mut emulator = match taken {
        Some(emulator) => emulator,
        None => Emulator::start(sanitised)?,
    };
    let result = work(&mut emulator)?;
    // An emulator that failed may have exited, so it is not reused.
    lock().push(emulator);
    Ok(result)
}

fn compare(
    made: &Option<ReferenceTensor>,
    wanted: &Option<ReferenceTensor>,
    tolerance: Tolerance,
) -> Result<()> {
    let (Some(made), Some(wanted)) = (made, wanted) else { return Ok(()) };
    match (made.data(), wanted.data()) {
        (ReferenceData::Integers(made), ReferenceData::Integers(wanted)) => {
            if let Some(at) = made.iter().zip(wanted.iter()).position(|(made, wanted)| made != wanted) {
                bail!("element {at} of {} is {}, not {}", made.len(), made[at], wanted[at]);
            }
        }
        (ReferenceData::Floats(made), ReferenceData::Floats(wanted)) => {
            let off = |(made, wanted): (&f32, &f32)| {
                let equal = made == wanted || (made.is_nan() && wanted.is_nan());
                let near = (made - wanted).abs() <= tolerance.absolute + tolerance.relative * wanted.abs();
                !equal && !near
            };
            let wrong = made.iter().zip(wanted.iter()).filter(|pair| off(*pair)).count();
            if let Some(at) = made.iter().zip(wanted.iter()).position(off) {
                bail!(
                    "{wrong} of {} elements are off; element {at} is {}, not {}",
                    made.len(),
                    made[at],
                    wanted[at]
                );
            }
        }
        _ => bail!("floats and integers"),
    }
    Ok(())
}
