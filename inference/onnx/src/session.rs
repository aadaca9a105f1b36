//! Models and sessions of ONNX Runtime, and their runs.
#![allow(
    unsafe_code,
    reason = "runs are started through ONNX Runtime's C interface, which takes values that lie in the arena's memory"
)]

use crate::plan::OutputPlan;
use crate::processor::processor;
use crate::runtime::Runtime;
use crate::store::{FamilyMember, WeightStore};
use crate::value::{OrtValue, ValueError};
use crate::weights::SessionWeights;
use crate::{memory, message};
use ort::environment::Environment;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, PrepackedWeights, SessionBuilder};
use ort::session::{NoSelectedOutputs, RunOptions, Session as OrtSession};
use ort::{AsPointer, Error as OrtError, ErrorCode};
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{debug, info};
use weir_device::{Arena, BufferMut};
use weir_inference::{
    Footprint, InferenceError, IntegrityCheck, Interrupt, Job, Model, ModelSource, Session, Tensor,
};
use weir_types::{ElementType, Platform, Port, Shape, Signature};

/// A resident model: the state that its sessions share.
pub(crate) struct CpuModel(Arc<SessionShared>);

struct SessionShared {
    runtime: &'static Runtime,
    source: ModelSource,
    arena: Arena,
    skeleton: PathBuf,
    footprint: Footprint,
    session_bytes: u64,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
    /// Cleared when the model turns out to declare wrong shapes for its outputs.
    declares_shapes: AtomicBool,
    /// Packed weights, in the layout that the kernels want.
    member: FamilyMember,
    check: IntegrityCheck,
    weights: SessionWeights,
}

struct CpuSession {
    /// Declared first, so that the session drops before the weights that it uses.
    session: OrtSession,
    plan: OutputPlan,
    shared: Arc<SessionShared>,
}

/// Options of every session, both for optimising and for running models.
pub(crate) fn options(
    environment: &Environment,
    level: GraphOptimizationLevel,
    threads: u32,
) -> Result<SessionBuilder, OrtError> {
    let builder = OrtSession::builder(environment)?
        .with_auto_device(AutoDevicePolicy::PreferCPU)?
        .with_optimization_level(level)?
        // Usually one thread, since the node runs as many runs at once as it has run slots. Idle
        // threads of a run must not spin.
        .with_intra_threads(usize::try_from(threads).unwrap_or(usize::MAX))?
        .with_intra_op_spinning(false)?
        .with_inter_threads(1)?
        // Memory patterns would be kept for every shape ever seen.
        .with_memory_pattern(false)?
        .with_env_allocators()?
        .with_execution_providers([ort::ep::CPU::default().with_arena_allocator(false).build()])?;
    Ok(builder)
}

/// Opens a session over an optimised graph and shared weights.
pub(crate) fn open(
    runtime: &Runtime,
    skeleton: &Path,
    weights: &SessionWeights,
    prepacked: &PrepackedWeights,
    threads: u32,
) -> Result<OrtSession, OrtError> {
    let builder = options(runtime.environment(), GraphOptimizationLevel::Disable, threads)?;
    let mut builder = builder.with_prepacked_weights(prepacked)?;
    for (name, value) in weights.values() {
        builder = builder.with_initializer(name, value.clone())?;
    }
    builder.commit_from_file(skeleton)
}

impl CpuModel {
    /// Maps the model's weights. Sessions are created later.
    pub(crate) fn load(
        runtime: &'static Runtime,
        source: &ModelSource,
        arena: &Arena,
        store: &WeightStore,
    ) -> Result<Self, InferenceError> {
        let load_error = |why: String| InferenceError::Load { model: source.id().clone(), why: why.into() };
        let variant = source.prepared.variant_for(&processor());
        let variant =
            variant.ok_or_else(|| load_error("it was not prepared for this processor".to_owned()))?;
        if variant.only_on.is_none() && source.prepared.variants_for(Platform::Cpu).count() > 1 {
            info!(model = %source.id(), "model was prepared for another processor or ONNX Runtime version; push it again for faster runs");
        }
        let Signature { inputs, outputs } = &source.prepared.signature;
        let names = |ports: &[Port]| -> Result<Vec<CString>, InferenceError> {
            let name = |port: &Port| CString::new(port.name.as_str());
            ports.iter().map(name).collect::<Result<_, _>>().map_err(|error| load_error(error.to_string()))
        };
        let weights = SessionWeights::map(variant, &source.blobs, store)
            .map_err(|error| load_error(error.to_string()))?;
        let check = weights.check(store.verified()).map_err(|error| load_error(error.to_string()))?;
        let member = store.join(&source.id().tenant, variant);
        Ok(Self(Arc::new(SessionShared {
            runtime,
            arena: arena.clone(),
            skeleton: source.blobs.join(variant.skeleton.to_string()),
            inputs: names(inputs)?,
            outputs: names(outputs)?,
            declares_shapes: AtomicBool::new(true),
            footprint: variant.footprint(member.family()),
            session_bytes: variant.session_bytes.unwrap_or_default(),
            member,
            check,
            weights,
            source: source.clone(),
        })))
    }
}

impl Model for CpuModel {
    fn footprint(&self) -> Footprint {
        self.0.footprint.clone()
    }

    fn session_bytes(&self) -> u64 {
        self.0.session_bytes
    }

    fn session(&self, threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        let shared = &self.0;
        let prepacked = shared.member.prepacked();
        let session = open(shared.runtime, &shared.skeleton, &shared.weights, prepacked, threads);
        let session = session.map_err(|error| InferenceError::Load {
            model: shared.source.id().clone(),
            why: error.message().into(),
        })?;
        shared.check.wait().map_err(|error| InferenceError::Load {
            model: shared.source.id().clone(),
            why: error.to_string().into(),
        })?;
        // Frees temporary memory of the session's creation, such as a second copy of weights that
        // the first session already has packed.
        memory::release_free();
        let plan = OutputPlan::new(&session, &shared.source.prepared.signature);
        Ok(Box::new(CpuSession { session, plan, shared: shared.clone() }))
    }
}

impl Session for CpuSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        let options = Arc::new(RunOptions::new().map_err(|error| run_error(&error))?);
        let terminated = options.clone();
        let _hook = interrupt.hook(move || {
            if let Err(error) = terminated.terminate() {
                debug!(%error, "run not terminated");
            }
        });
        let first = self.run_as_declared(job, &options);
        let short_of_memory =
            matches!(&first, Err(ValueError::Runtime(error)) if message::is_out_of_memory(error.message()));
        if !short_of_memory || interrupt.reason().is_some() {
            return first.map_err(value_error);
        }
        // The arena does not release idle blocks of unsuitable sizes without a trim.
        self.shared.runtime.trim();
        self.run_as_declared(job, &options).map_err(value_error)
    }
}

impl CpuSession {
    /// Runs the job with the output shapes that the model declares, until they turn out to be
    /// wrong.
    fn run_as_declared(
        &self,
        job: &Job,
        options: &RunOptions<NoSelectedOutputs>,
    ) -> Result<Vec<Tensor>, ValueError> {
        let declares_shapes = &self.shared.declares_shapes;
        if declares_shapes.load(Ordering::Relaxed) {
            match self.run_once(job, options, true) {
                Err(ValueError::Runtime(error)) if message::is_shape_mismatch(error.message()) => {
                    declares_shapes.store(false, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
        self.run_once(job, options, false)
    }

    /// Runs the job. Outputs with known shapes are written directly into the arena; others are
    /// copied there.
    fn run_once(
        &self,
        job: &Job,
        options: &RunOptions<NoSelectedOutputs>,
        declared_shapes: bool,
    ) -> Result<Vec<Tensor>, ValueError> {
        let arena = &self.shared.arena;
        let mut moved = vec![None; job.inputs.len()];
        let inputs =
            job.inputs.iter().zip(&mut moved).map(|(tensor, moved)| OrtValue::input(tensor, moved, arena));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;

        let mut targets = Vec::with_capacity(job.outputs.len());
        for position in &job.outputs {
            let planned = if declared_shapes { self.plan.output(*position, &job.inputs) } else { None };
            targets.push(planned.map(|planned| Target::new(planned, arena)).transpose()?);
        }
        let values = targets.iter_mut().map(|target| target.as_mut().map(Target::value).transpose());
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let made = self.call(&inputs, &values, &job.outputs, options)?;
        drop(values);

        let tensor = |(target, made): (Option<Target>, Option<OrtValue<'_>>)| match (target, made) {
            (Some(target), _) => target.into_tensor(),
            (None, Some(value)) => value.to_tensor(arena),
            (None, None) => Err(OrtError::new("an output was not made").into()),
        };
        targets.into_iter().zip(made).map(tensor).collect()
    }

    /// Calls the model; returns the outputs that had no target.
    fn call<'a>(
        &self,
        inputs: &[OrtValue<'_>],
        targets: &[Option<OrtValue<'_>>],
        wanted: &[usize],
        options: &RunOptions<NoSelectedOutputs>,
    ) -> Result<Vec<Option<OrtValue<'a>>>, OrtError> {
        let input_names: Vec<*const c_char> = self.shared.inputs.iter().map(|name| name.as_ptr()).collect();
        let input_values: Vec<*const ort::sys::OrtValue> =
            inputs.iter().map(|value| value.pointer().cast_const()).collect();
        let names = wanted.iter().filter_map(|position| self.shared.outputs.get(*position));
        let output_names: Vec<*const c_char> = names.map(|name| name.as_ptr()).collect();
        let target = |value: &Option<OrtValue<'_>>| value.as_ref().map_or(ptr::null_mut(), OrtValue::pointer);
        let mut outputs: Vec<*mut ort::sys::OrtValue> = targets.iter().map(target).collect();
        if input_names.len() != input_values.len() || output_names.len() != outputs.len() {
            return Err(OrtError::new("the job does not fit the model's signature"));
        }
        let run = ort::api().Run;
        // SAFETY: every pointer is valid for the call and the counts match. Only one thread at a
        // time uses the session, which is borrowed mutably on the way here.
        let status = unsafe {
            run(
                self.session.ptr().cast_mut(),
                options.ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            )
        };
        // SAFETY: the status was just returned, and is consumed here.
        unsafe { OrtError::result_from_status(status)? };
        let made = outputs.into_iter().zip(targets).map(|(output, target)| match target {
            Some(_) => None,
            // SAFETY: ONNX Runtime created the value in its own memory, and transferred its
            // ownership to the caller.
            None => unsafe { OrtValue::from_pointer(output) },
        });
        Ok(made.collect())
    }
}

/// Memory for an output whose shape is known before the run. Zeroed, so that a run that leaves
/// parts unwritten does not expose earlier contents.
struct Target {
    element_type: ElementType,
    shape: Shape,
    buffer: BufferMut,
}

impl Target {
    fn new(
        (element_type, shape, len): (ElementType, Shape, usize),
        arena: &Arena,
    ) -> Result<Self, ValueError> {
        Ok(Self { element_type, shape, buffer: arena.buffer(len)? })
    }

    fn value(&mut self) -> Result<OrtValue<'_>, ValueError> {
        OrtValue::output(&mut self.buffer, self.element_type, &self.shape)
    }

    fn into_tensor(self) -> Result<Tensor, ValueError> {
        Ok(Tensor::new(self.element_type, self.shape, self.buffer.freeze())?)
    }
}

fn value_error(error: ValueError) -> InferenceError {
    match error {
        ValueError::Runtime(error) => run_error(&error),
        ValueError::OutOfMemory(error) => error.into(),
        ValueError::Tensor(error) => InferenceError::Run(error.to_string().into()),
        ValueError::Unsupported(why) => InferenceError::Run(why.into()),
    }
}

fn run_error(error: &OrtError) -> InferenceError {
    let why = message::plain(error.message());
    if message::is_out_of_memory(&why) {
        InferenceError::RunOutOfMemory(why.into())
    } else if error.code() == ErrorCode::InvalidArgument {
        InferenceError::Refused(why.into())
    } else {
        InferenceError::Run(why.into())
    }
}
