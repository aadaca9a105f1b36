//! A graph that is loaded: its code and constants, and its plans, which are captured once they are run again.
#![allow(
    unsafe_code,
    reason = "users' kernels are launched, with addresses of this process's own memory on the device"
)]

use super::runner::{Failure, misfit};
use crate::cuda::captured::CaptureBackoff;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use weir_device::cuda::{
    Allocation, Context, CudaError, Function, GraphExec, Launch, Module, Parameters, Span, Stream,
};
use weir_kernel_graph::{Bundle, KernelGraph, Plan, PlannedLaunch, Step, Value};
use weir_types::Shape;

/// Plans of a graph that are kept, by the shapes of its inputs; all are forgotten when there are more.
const PLANS_MAX: usize = 32;
/// What a thread of a kernel may have in memory besides its registers: drivers set that aside for as many threads as a device runs at once.
const LOCAL_BYTES_MAX: u32 = 4 << 10;
/// Shared memory that every block may have without being allowed to.
const SHARED_BYTES: u32 = 48 << 10;

/// A graph with its code. Fields drop in order: what was captured before what it uses.
pub(super) struct Loaded {
    plans: HashMap<Vec<Shape>, Planned>,
    code: Code,
    graph: KernelGraph,
}

/// A plan, and how far it has got.
struct Planned {
    captured: Captured,
    captures: CaptureBackoff,
    plan: Arc<Plan>,
}

enum Captured {
    /// It has not run.
    Never,
    /// It has run once, launch by launch.
    Once,
    /// From now on it is repeated.
    Graph(GraphExec),
}

/// What launches are made of.
struct Code {
    constants: Allocation,
    /// With the shared memory that each is allowed.
    functions: HashMap<String, (Function, u32)>,
}

/// A run of a plan.
pub(super) struct Run<'a> {
    planned: &'a mut Planned,
    code: &'a Code,
}

impl Loaded {
    pub(super) fn read(file: &Path, context: &Arc<Context>, stream: &Stream) -> Result<Self, Failure> {
        let other = |error: &dyn std::fmt::Display| Failure::Other(error.to_string());
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
                    return Err(Failure::Other(format!(
                        "kernel {kernel} takes {local_bytes} bytes, over {LOCAL_BYTES_MAX}, {why}"
                    )));
                }
                functions.insert(kernel.to_owned(), (function, SHARED_BYTES));
            }
        }
        Ok(Self { plans: HashMap::new(), code: Code { constants, functions }, graph })
    }

    /// What a run with inputs of these shapes does, and what does it.
    pub(super) fn plan(
        &mut self,
        shapes: &[Shape],
        memory_bytes_max: u64,
    ) -> Result<(Arc<Plan>, Run<'_>), Failure> {
        if !self.plans.contains_key(shapes) {
            let plan = Arc::new(self.graph.plan(shapes, memory_bytes_max)?);
            self.code.allow(&plan)?;
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            let (captured, captures) = (Captured::Never, CaptureBackoff::default());
            self.plans.insert(shapes.to_vec(), Planned { captured, captures, plan });
        }
        let planned = self.plans.get_mut(shapes).ok_or_else(misfit)?;
        Ok((Arc::clone(&planned.plan), Run { planned, code: &self.code }))
    }
}

impl Run<'_> {
    /// Give it to the stream: launch by launch the first time, and as a graph from then on. Gives why the graph failed where the run was launched launch by
    /// launch instead; an error says that the run failed.
    ///
    /// # Safety
    /// `arena` is as long as the plan says, is used by nobody else until the work is done, and is at the same addresses for every run; nor is the graph dropped
    /// before.
    pub(super) unsafe fn launch(self, stream: &Stream, arena: Span) -> Result<Option<Failure>, Failure> {
        let Self { planned: Planned { captured, captures, plan }, code } = self;
        // SAFETY: the caller's part.
        let failed = match unsafe { code.launch_graph(captured, captures, plan, stream, arena) } {
            Ok(true) => return Ok(None),
            Ok(false) => None,
            Err(failure) if failure.is_lost() => return Err(failure),
            Err(failure) => {
                captures.note_failure();
                Some(failure)
            }
        };
        // SAFETY: the caller's part.
        unsafe { code.launch(plan, stream, arena) }?;
        *captured = Captured::Once;
        Ok(failed)
    }
}

impl Code {
    /// Have kernels allowed the shared memory that they are launched with.
    fn allow(&mut self, plan: &Plan) -> Result<(), CudaError> {
        for step in &plan.steps {
            let Step::Launch(launch) = step else { continue };
            if let Some((function, allowed)) = self.functions.get_mut(&launch.kernel)
                && launch.shared_bytes > *allowed
            {
                function.allow_shared_bytes(launch.shared_bytes)?;
                *allowed = launch.shared_bytes;
            }
        }
        Ok(())
    }

    /// Launch the graph of a plan, which is captured if it is time for that. Gives whether there is one; on error nothing was launched.
    ///
    /// # Safety
    /// As for [`Run::launch`].
    unsafe fn launch_graph(
        &self,
        captured: &mut Captured,
        captures: &CaptureBackoff,
        plan: &Plan,
        stream: &Stream,
        arena: Span,
    ) -> Result<bool, Failure> {
        match captured {
            // SAFETY: the caller's part: it was captured from the same plan, with the same addresses.
            Captured::Graph(graph) => unsafe { graph.launch(stream) }?,
            Captured::Once if captures.is_due() => {
                // SAFETY: the caller's part.
                let recorded = stream.capture(|stream| unsafe { self.launch(plan, stream, arena) })?;
                let mut graph = recorded.instantiate()?;
                // SAFETY: the caller's part.
                unsafe { graph.launch(stream) }?;
                *captured = Captured::Graph(graph);
            }
            Captured::Never | Captured::Once => return Ok(false),
        }
        Ok(true)
    }

    /// Give the launches of a plan to the stream.
    ///
    /// # Safety
    /// As for [`Run::launch`].
    unsafe fn launch(&self, plan: &Plan, stream: &Stream, arena: Span) -> Result<(), Failure> {
        let mut parameters = Parameters::default();
        for step in &plan.steps {
            let launch = match step {
                Step::Zero(region) => {
                    stream.fill(arena.slice(region.offset, region.bytes).ok_or_else(misfit)?, 0)?;
                    continue;
                }
                Step::Launch(launch) => launch,
            };
            parameters.clear();
            for argument in &launch.arguments {
                match argument {
                    Value::Arena(offset) => parameters.address(arena.address() + offset),
                    Value::Constant(offset) => parameters.address(self.constants.span().address() + offset),
                    Value::I32(number) => parameters.i32(*number),
                    Value::U32(number) => parameters.u32(*number),
                    Value::U64(number) => parameters.u64(*number),
                    Value::F32(number) => parameters.f32(*number),
                    Value::F64(number) => parameters.u64(number.to_bits()),
                };
            }
            let PlannedLaunch { kernel, grid, block, shared_bytes, name, .. } = launch;
            let (function, _) = self
                .functions
                .get(kernel)
                .ok_or_else(|| Failure::Other(format!("there is no kernel {kernel}")))?;
            let how = Launch { grid: *grid, block: *block, shared_bytes: *shared_bytes };
            // SAFETY: the parameters are as many and as large as the kernel's, by its PTX. What it does with the addresses is its own affair: there is
            // nothing in this context but what belongs to its tenant.
            let launched = unsafe { stream.launch(function, &how, &parameters) };
            launched.map_err(|error| match error {
                CudaError::Failed { call, code, name: error, what } => Failure::Device(CudaError::Failed {
                    call,
                    code,
                    name: error,
                    what: format!("{what}: launch {name:?}"),
                }),
                error => error.into(),
            })?;
        }
        Ok(())
    }
}
