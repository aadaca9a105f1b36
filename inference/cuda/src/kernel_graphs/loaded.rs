//! Loaded graph: its code and constants, and its plans, which are captured on their second run.
#![allow(
    unsafe_code,
    reason = "users' kernels are launched, with addresses of this process's own memory on the device"
)]

use super::runner::{GraphFailure, misfit};
use crate::captured::CaptureBackoff;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use weir_device::cuda::{
    Allocation, Context, CudaError, Function, GraphExec, KernelParameters, LaunchConfig, Module, Span, Stream,
};
use weir_kernel_graph::{ArgumentValue, Bundle, KernelGraph, PlanStep, PlannedLaunch, RunPlan};
use weir_types::Shape;

/// Maximum number of cached plans of a graph, keyed by input shapes. The cache is cleared when it
/// is full.
const PLANS_MAX: usize = 32;
/// Maximum local memory per thread, in bytes. Drivers reserve local memory for the maximum number
/// of resident threads of a device.
const LOCAL_BYTES_MAX: u32 = 4 << 10;
/// Shared memory per block that needs no opt-in, in bytes.
const SHARED_BYTES: u32 = 48 << 10;

/// Loaded graph with its code. Fields drop in declaration order, so captured graphs drop before the
/// functions that they use.
pub(super) struct LoadedGraph {
    plans: HashMap<Vec<Shape>, Planned>,
    code: Code,
    graph: KernelGraph,
}

/// Plan with its capture state.
struct Planned {
    captured: CapturedPlan,
    captures: CaptureBackoff,
    plan: Arc<RunPlan>,
}

enum CapturedPlan {
    /// The plan has not run.
    Never,
    /// The plan has run once, launch by launch.
    Once,
    /// Runs launch the graph.
    Graph(GraphExec),
}

/// Data for building launches.
struct Code {
    constants: Allocation,
    /// Functions by kernel name, with the shared memory limit of each function.
    functions: HashMap<String, (Function, u32)>,
}

/// Run of a plan.
pub(super) struct PlanRun<'a> {
    planned: &'a mut Planned,
    code: &'a Code,
}

impl LoadedGraph {
    pub(super) fn read(file: &Path, context: &Arc<Context>, stream: &Stream) -> Result<Self, GraphFailure> {
        let other = |error: &dyn std::fmt::Display| GraphFailure::Other(error.to_string());
        let bundle = Bundle::parse(&std::fs::read(file)?).map_err(|error| other(&error))?;
        let graph = KernelGraph::new(bundle).map_err(|error| other(&error))?;
        let constants = Allocation::new(context, graph.constants().len() as u64)?;
        stream.write(graph.constants(), constants.span())?;
        let mut functions = HashMap::new();
        for (module, (_, ptx)) in graph.modules().iter().enumerate() {
            let code = Module::load(context, ptx.as_bytes())?;
            for kernel in graph.kernels(module) {
                let function = code.function(kernel)?;
                let local_bytes = function.attributes()?.local_bytes;
                if local_bytes > LOCAL_BYTES_MAX {
                    let why = "of local memory per thread: give it less to keep, or a temporary of the graph";
                    return Err(GraphFailure::Other(format!(
                        "kernel {kernel} takes {local_bytes} bytes, over {LOCAL_BYTES_MAX}, {why}"
                    )));
                }
                functions.insert(kernel.to_owned(), (function, SHARED_BYTES));
            }
        }
        Ok(Self { plans: HashMap::new(), code: Code { constants, functions }, graph })
    }

    /// Returns the plan for inputs of these shapes, and a run of the plan.
    pub(super) fn plan(
        &mut self,
        shapes: &[Shape],
        memory_bytes_max: u64,
    ) -> Result<(Arc<RunPlan>, PlanRun<'_>), GraphFailure> {
        if !self.plans.contains_key(shapes) {
            let plan = Arc::new(self.graph.plan(shapes, memory_bytes_max)?);
            self.code.allow(&plan)?;
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            let captured = CapturedPlan::Never;
            let captures = CaptureBackoff::default();
            self.plans.insert(shapes.to_vec(), Planned { captured, captures, plan });
        }
        let planned = self.plans.get_mut(shapes).ok_or_else(misfit)?;
        Ok((planned.plan.clone(), PlanRun { planned, code: &self.code }))
    }
}

impl PlanRun<'_> {
    /// Enqueues the run on the stream. The first run is launched kernel by kernel; later runs
    /// launch a graph.
    ///
    /// Returns the error of the graph if the run fell back to launches kernel by kernel; returns an
    /// error if the run failed.
    ///
    /// # Safety
    /// `arena` must have the length that the plan requires, and be at the same addresses in every
    /// run. Until the work is done, no other work may use `arena`, and the graph must not be
    /// dropped.
    pub(super) unsafe fn launch(
        self,
        stream: &Stream,
        arena: Span,
    ) -> Result<Option<GraphFailure>, GraphFailure> {
        let Self { planned: Planned { captured, captures, plan }, code } = self;
        // SAFETY: the caller guarantees the requirements of `launch`.
        let failed = match unsafe { code.launch_graph(captured, captures, plan, stream, arena) } {
            Ok(true) => return Ok(None),
            Ok(false) => None,
            Err(failure) if failure.is_lost() => return Err(failure),
            Err(failure) => {
                captures.note_failure();
                Some(failure)
            }
        };
        // SAFETY: the caller guarantees the requirements of `launch`.
        unsafe { code.launch(plan, stream, arena) }?;
        *captured = CapturedPlan::Once;
        Ok(failed)
    }
}

impl Code {
    /// Raises the shared memory limits of the kernels to the sizes in the plan.
    fn allow(&mut self, plan: &RunPlan) -> Result<(), CudaError> {
        for step in &plan.steps {
            let PlanStep::Launch(launch) = step else { continue };
            if let Some((function, allowed)) = self.functions.get_mut(&launch.kernel)
                && launch.shared_bytes > *allowed
            {
                function.allow_shared_bytes(launch.shared_bytes)?;
                *allowed = launch.shared_bytes;
            }
        }
        Ok(())
    }

    /// Launches the graph of a plan, and captures the graph first if the capture is due.
    ///
    /// Returns whether a graph was launched. On error, no work was launched.
    ///
    /// # Safety
    /// Same as for [`PlanRun::launch`].
    unsafe fn launch_graph(
        &self,
        captured: &mut CapturedPlan,
        captures: &CaptureBackoff,
        plan: &RunPlan,
        stream: &Stream,
        arena: Span,
    ) -> Result<bool, GraphFailure> {
        match captured {
            // SAFETY: the caller guarantees the memory. The graph was captured from the same plan,
            // with the same addresses.
            CapturedPlan::Graph(graph) => unsafe { graph.launch(stream) }?,
            CapturedPlan::Once if captures.is_due() => {
                // SAFETY: the caller guarantees the requirements of `launch`.
                let recorded =
                    stream.capture(|recording| unsafe { self.launch(plan, recording.stream(), arena) })?;
                let mut graph = recorded.instantiate()?;
                // SAFETY: the caller guarantees the requirements of `launch`.
                unsafe { graph.launch(stream) }?;
                *captured = CapturedPlan::Graph(graph);
            }
            CapturedPlan::Never | CapturedPlan::Once => return Ok(false),
        }
        Ok(true)
    }

    /// Enqueues the launches of a plan on the stream.
    ///
    /// # Safety
    /// Same as for [`PlanRun::launch`].
    unsafe fn launch(&self, plan: &RunPlan, stream: &Stream, arena: Span) -> Result<(), GraphFailure> {
        let mut parameters = KernelParameters::default();
        for step in &plan.steps {
            let launch = match step {
                PlanStep::Zero(region) => {
                    stream.fill(arena.slice(region.offset, region.bytes).ok_or_else(misfit)?, 0)?;
                    continue;
                }
                PlanStep::Launch(launch) => launch,
            };
            parameters.clear();
            for argument in &launch.arguments {
                match argument {
                    ArgumentValue::Arena(offset) => parameters.address(arena.address() + offset),
                    ArgumentValue::Constant(offset) => {
                        parameters.address(self.constants.span().address() + offset)
                    }
                    ArgumentValue::I32(number) => parameters.i32(*number),
                    ArgumentValue::U32(number) => parameters.u32(*number),
                    ArgumentValue::U64(number) => parameters.u64(*number),
                    ArgumentValue::F32(number) => parameters.f32(*number),
                    ArgumentValue::F64(number) => parameters.u64(number.to_bits()),
                };
            }
            let PlannedLaunch { kernel, grid, block, shared_bytes, name, .. } = launch;
            let (function, _) = self
                .functions
                .get(kernel)
                .ok_or_else(|| GraphFailure::Other(format!("there is no kernel {kernel}")))?;
            let how = LaunchConfig { grid: *grid, block: *block, shared_bytes: *shared_bytes };
            // SAFETY: the number and sizes of the parameters match the kernel's signature in its
            // PTX. A kernel may access any address of this context, but the context contains only
            // data of the kernel's tenant.
            let launched = unsafe { stream.launch(function, &how, &parameters) };
            launched.map_err(|error| match error {
                CudaError::Failed { call, code, name: error, what } => {
                    GraphFailure::Device(CudaError::Failed {
                        call,
                        code,
                        name: error,
                        what: format!("{what}: launch {name:?}"),
                    })
                }
                error => error.into(),
            })?;
        }
        Ok(())
    }
}
