//! Plan of a run: the launches in order, and the offset of every buffer in one memory arena.

mod places;

use crate::bounds::{bounded, within};
use crate::buffers::Role;
use crate::check::{Checked, KernelGraph};
use crate::document::LaunchArgument;
use crate::error::RunPlanError;
use crate::expression::Expression;
use crate::limits::{BLOCK_MAX, GRID_MAX, MEMORY_BYTES_MAX, SHARED_BYTES_MAX, STEPS_MAX, THREADS};
use places::{ArenaOffsets, BufferSizes, LaunchRepetition, dimensions, times};
use std::collections::BTreeMap;
use weir_types::{ElementType, Shape};

/// Plan of a run for inputs of given shapes. The plan is plain data: offsets instead of addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPlan {
    /// Size of the arena in bytes.
    pub arena_bytes: u64,
    /// Regions of the inputs, filled before the first step.
    pub inputs: Vec<ArenaRegion>,
    /// Outputs, valid after the last step.
    pub outputs: Vec<PlannedOutput>,
    /// Steps, executed in order.
    pub steps: Vec<PlanStep>,
}

/// Region of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRegion {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Output of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedOutput {
    /// Region with the data.
    pub region: ArenaRegion,
    /// Element type.
    pub datatype: ElementType,
    /// Dimensions.
    pub shape: Shape,
}

/// Step of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanStep {
    /// Fill a region with zeroes.
    Zero(ArenaRegion),
    /// Launch a kernel.
    Launch(PlannedLaunch),
}

/// Kernel launch with all sizes resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedLaunch {
    /// Name of the launch.
    pub name: String,
    /// Source with the kernel, as an index into [`KernelGraph::modules`].
    pub module: usize,
    /// Name of the kernel.
    pub kernel: String,
    /// Number of blocks along x, y and z.
    pub grid: [u32; 3],
    /// Number of threads per block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block in bytes, in addition to the shared memory that the kernel
    /// declares.
    pub shared_bytes: u32,
    /// Arguments of the kernel.
    pub arguments: Vec<ArgumentValue>,
}

/// Argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArgumentValue {
    /// Address at this byte offset of the arena.
    Arena(u64),
    /// Address at this byte offset of the constants.
    Constant(u64),
    /// Signed 32-bit integer.
    I32(i32),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// 64-bit integer. Signed integers are given in two's complement.
    U64(u64),
    /// 32-bit floating-point number.
    F32(f32),
    /// 64-bit floating-point number.
    F64(f64),
}

impl KernelGraph {
    /// Plans a run for inputs of these shapes, given in the order of the document, in at most
    /// `memory_bytes_max` bytes of memory.
    pub fn plan(&self, shapes: &[Shape], memory_bytes_max: u64) -> Result<RunPlan, RunPlanError> {
        RunPlan::new(self, shapes, memory_bytes_max)
    }
}

impl RunPlan {
    fn new(graph: &KernelGraph, shapes: &[Shape], memory_bytes_max: u64) -> Result<Self, RunPlanError> {
        let dimensions = dimensions(graph, shapes)?;
        let sizes = BufferSizes::new(graph, &dimensions, memory_bytes_max.min(MEMORY_BYTES_MAX))?;
        let places = ArenaOffsets::new(graph, &sizes, &dimensions)?;
        if places.bytes > memory_bytes_max {
            return Err(RunPlanError::Memory { needed_bytes: places.bytes, bytes_max: memory_bytes_max });
        }
        let mut plan =
            Self { arena_bytes: places.bytes, inputs: Vec::new(), outputs: Vec::new(), steps: Vec::new() };
        for (number, buffer) in graph.buffers.all.iter().enumerate() {
            let region = ArenaRegion { offset: places.offset(number), bytes: sizes.bytes(number) };
            match buffer.role {
                Role::Input => plan.inputs.push(region),
                Role::Output => {
                    let shape = sizes.shape(number);
                    plan.outputs.push(PlannedOutput { region, datatype: buffer.datatype, shape });
                }
                Role::Temporary | Role::Constant(_) => {}
            }
        }
        for (at, launch) in graph.launches.iter().enumerate() {
            let times = times(launch, &dimensions)?;
            for turn in 0..times {
                plan.turn(graph, launch, &places, &sizes, &dimensions, LaunchRepetition { at, turn, times })?;
            }
        }
        Ok(plan)
    }

    fn turn(
        &mut self,
        graph: &KernelGraph,
        checked: &Checked,
        places: &ArenaOffsets,
        sizes: &BufferSizes,
        dimensions: &BTreeMap<String, u32>,
        turn: LaunchRepetition,
    ) -> Result<(), RunPlanError> {
        let launch = &checked.launch;
        let place = || format!("launch {:?}", launch.name);
        for number in &checked.writes {
            if graph.buffers.all.get(*number).is_some_and(|buffer| buffer.zero) {
                let offset = places.written(*number, turn);
                self.push(PlanStep::Zero(ArenaRegion { offset, bytes: sizes.bytes(*number) }))?;
            }
        }
        let three = |what, sizes: &[Expression], max: [i128; 3]| -> Result<[u32; 3], RunPlanError> {
            let mut all = [1; 3];
            for ((to, size), max) in all.iter_mut().zip(sizes).zip(max) {
                let value = bounded(&place, what, size, dimensions, 1, max)?;
                *to = u32::try_from(value).unwrap_or(u32::MAX);
            }
            Ok(all)
        };
        let (grid, block) =
            (three("grid", &launch.grid, GRID_MAX)?, three("block", &launch.block, BLOCK_MAX)?);
        let threads = block.iter().map(|size| i128::from(*size)).product();
        within(&place, THREADS, threads, 1, checked.threads_max)?;
        let shared_bytes =
            bounded(&place, "shared_bytes", &launch.shared_bytes, dimensions, 0, SHARED_BYTES_MAX)?;
        let whole = |argument: &LaunchArgument| match argument.whole() {
            Some((size, min, max)) => bounded(&place, "an argument", size, dimensions, min, max),
            None => Ok(0),
        };
        let value = |argument: &LaunchArgument| -> Result<ArgumentValue, RunPlanError> {
            Ok(match argument {
                LaunchArgument::In(name) | LaunchArgument::Out(name) => {
                    let buffer = graph.buffers.find(name).unwrap_or(usize::MAX);
                    match graph.buffers.all.get(buffer).map(|buffer| buffer.role) {
                        Some(Role::Constant(offset)) => ArgumentValue::Constant(offset),
                        _ if matches!(argument, LaunchArgument::Out(_)) => {
                            ArgumentValue::Arena(places.written(buffer, turn))
                        }
                        _ => ArgumentValue::Arena(places.read(checked, buffer, turn)),
                    }
                }
                LaunchArgument::I32(_) => {
                    ArgumentValue::I32(i32::try_from(whole(argument)?).unwrap_or(i32::MAX))
                }
                LaunchArgument::U32(_) => {
                    ArgumentValue::U32(u32::try_from(whole(argument)?).unwrap_or(u32::MAX))
                }
                LaunchArgument::I64(_) => {
                    ArgumentValue::U64(i64::try_from(whole(argument)?).unwrap_or(i64::MAX).cast_unsigned())
                }
                LaunchArgument::U64(_) => {
                    ArgumentValue::U64(u64::try_from(whole(argument)?).unwrap_or(u64::MAX))
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a decimal number is rounded to the nearest FP32"
                )]
                LaunchArgument::F32(number) => ArgumentValue::F32(*number as f32),
                LaunchArgument::F64(number) => ArgumentValue::F64(*number),
            })
        };
        let arguments = launch.arguments.iter().map(value).collect::<Result<_, _>>()?;
        self.push(PlanStep::Launch(PlannedLaunch {
            name: launch.name.clone(),
            module: checked.module,
            kernel: launch.kernel.clone(),
            grid,
            block,
            shared_bytes: u32::try_from(shared_bytes).unwrap_or(u32::MAX),
            arguments,
        }))
    }

    fn push(&mut self, step: PlanStep) -> Result<(), RunPlanError> {
        if self.steps.len() >= STEPS_MAX {
            return Err(RunPlanError::TooManySteps);
        }
        self.steps.push(step);
        Ok(())
    }
}
