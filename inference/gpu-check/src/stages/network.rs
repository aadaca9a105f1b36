//! Checks of whole models: load, first run, repeated run, cold run, answers and memory.

use crate::ahead::PrecomputedResults;
use crate::answers::answers;
use crate::bench::{Bench, BothWays, OWNER, both_ways};
use crate::config::{CheckConfig, CheckFailure};
use crate::floor::Floor;
use crate::folder::TemporaryFolder;
use crate::goal::Goal;
use crate::outcome::{Check, LaunchParameters, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{MeasuredTime, Timer, median, nanoseconds};
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weir_cuda::executor::{
    Bound, Gpu, ModelProgramError, Outputs, PinnedInputs, Program, Weights, cold_outputs, in_slot,
    load_failure, stored_for, weights_failure,
};
use weir_graph::reference::{self, ReferenceTensor};
use weir_graph::{OnnxModel, TensorType, WeightData};
use weir_inference::{InferenceError, MappedFile};
use weir_kernels::LaunchCost;
use weir_types::{ElementType, Port, Precision, Shape};

const STAGE: Stage = Stage::Networks;
/// Size of dimensions that the file leaves open, except the first dimension, which is the batch.
const LENGTH: u32 = 16;

/// Maximum number of timed loads.
const LOADS_MAX: u32 = 5;
/// Maximum number of timed cold runs.
const COLD_RUNS_MAX: u32 = 5;
/// Maximum time of a cold run, relative to the longer of load and run.
const COLD_RATIO_MAX: f64 = 1.15;

/// Model with its inputs.
pub(super) struct NetworkInputs {
    pub(super) name: String,
    pub(super) model: OnnxModel,
    pub(super) inputs: Vec<ReferenceTensor>,
    pub(super) shapes: Vec<Shape>,
}

/// Model in one precision and batch size.
struct NetworkVariant<'a> {
    asked: &'a NetworkInputs,
    precision: Precision,
    batch: u32,
    name: String,
}

pub(super) fn cases(config: &CheckConfig) -> Vec<String> {
    let of_model = |path: &std::path::PathBuf| match NetworkInputs::read(path, 1) {
        Ok(asked) => asked.variants(&config.batches).into_iter().map(|variant| variant.name).collect(),
        Err(_) => vec![name(path)],
    };
    config.models.iter().flat_map(of_model).collect()
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let read = |path: &std::path::PathBuf| (name(path), NetworkInputs::read(path, 1));
    let networks: Vec<(String, Result<NetworkInputs, String>)> =
        bench.config.models.iter().map(read).collect();
    let read: Vec<&NetworkInputs> = networks.iter().filter_map(|(_, asked)| asked.as_ref().ok()).collect();
    // The reference takes seconds per network, so it is computed while the device loads and runs
    // the network.
    PrecomputedResults::new(read.iter().map(|asked| || asked.expected()).collect()).run(|answers| {
        for (at, asked) in read.iter().enumerate() {
            for variant in asked.variants(&bench.config.batches) {
                let expected = || answers.get(at).cloned().unwrap_or_else(|| Err("no reference".to_owned()));
                report.case(&variant.name, |report| variant.check(bench, &expected, report))?;
            }
        }
        Ok::<_, CheckFailure>(())
    })?;
    for (name, asked) in &networks {
        let Err(why) = asked else { continue };
        report.single(name, || Ok(Check::failed(STAGE, name, why)))?;
    }
    Ok(())
}

pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

impl NetworkInputs {
    /// Reads a model and makes inputs with `batch` items, if the model has a variable batch size.
    pub(super) fn read(path: &Path, batch: u32) -> Result<Self, String> {
        let file = MappedFile::open(path).map_err(|error| error.to_string())?;
        let model = OnnxModel::read(Bytes::from_owner(file)).map_err(|error| error.to_string())?;
        let (inputs, shapes) = inputs(&model, batch)?;
        Ok(Self { name: name(path), model, inputs, shapes })
    }

    /// Computes the outputs with the reference interpreter.
    fn expected(&self) -> Result<Vec<ReferenceTensor>, String> {
        let graph = self.model.specialise(&self.shapes).map_err(|error| error.to_string())?;
        let weight = |index: u32| {
            let weight = self.model.weights().get(usize::try_from(index).ok()?)?;
            match &weight.data {
                WeightData::Bytes(bytes) => ReferenceTensor::from_bytes(weight.tensor.clone(), bytes),
                WeightData::Elsewhere(_) => None,
            }
        };
        reference::run(&graph, &self.inputs, &weight).map_err(|error| error.to_string())
    }

    /// Returns the model in every precision, with each of these batch sizes, or with the only batch
    /// size that the model accepts.
    fn variants(&self, batches: &[u32]) -> Vec<NetworkVariant<'_>> {
        let first = self.model.signature().inputs.first().and_then(|port| port.shape.first());
        let batches = match first {
            Some(Some(fixed)) => vec![*fixed],
            Some(None) => batches.to_vec(),
            None => vec![1],
        };
        let variant = |batch, precision| NetworkVariant {
            asked: self,
            precision,
            batch,
            name: format!("{}, {precision}, batch {batch}", self.name),
        };
        let of_batch = |batch| Precision::ALL.into_iter().map(move |precision| variant(batch, precision));
        batches.into_iter().flat_map(of_batch).collect()
    }
}

fn inputs(model: &OnnxModel, batch: u32) -> Result<(Vec<ReferenceTensor>, Vec<Shape>), String> {
    let inputs: Option<Vec<ReferenceTensor>> =
        model.signature().inputs.iter().map(|port| made_up(port, batch)).collect();
    let inputs = inputs.ok_or("its inputs cannot be made up")?;
    let shapes: Option<Vec<Shape>> = inputs.iter().map(shape).collect();
    Ok((inputs, shapes.ok_or("its inputs are too large")?))
}

impl NetworkVariant<'_> {
    fn passed(&self, what: &str) -> Check {
        Check::passed(STAGE, format!("{}: {what}", self.name))
    }

    /// Stores the model like a node, and makes inputs for it.
    fn stored(&self) -> Result<StoredVariant, String> {
        let (inputs, shapes) = inputs(&self.asked.model, self.batch)?;
        let folder = TemporaryFolder::new().map_err(|error| error.to_string())?;
        let model =
            stored_for(self.asked.model.clone(), self.precision).map_err(|error| error.to_string())?;
        Ok(StoredVariant { model: Stored::new(&model, &Arc::new(folder))?, inputs, shapes })
    }

    fn check(
        &self,
        bench: &Bench<'_>,
        expected: &dyn Fn() -> Result<Vec<ReferenceTensor>, String>,
        report: &mut Reporter<'_>,
    ) -> Result<(), CheckFailure> {
        let stored = match self.stored() {
            Ok(stored) => stored,
            Err(why) => {
                report.check(Check::failed(STAGE, &self.name, why));
                return Ok(());
            }
        };
        let trial = Trial { variant: self, gpu: &bench.gpu, timer: &bench.timer, stored };
        let began = Instant::now();
        let program = match trial.compile() {
            Ok(program) => program,
            Err(why) => {
                report.check(Check::failed(STAGE, &self.name, why));
                return Ok(());
            }
        };
        report.check(self.passed("its program made").took(trial.timer.since(began), 0, 0));
        report.launches(LaunchParameters::of_steps(&program.steps));
        let cost = program.steps.iter().fold(LaunchCost::default(), |cost, step| cost + step.cost());
        trial.gpu.trim();
        let kept_before = kept_bytes(trial.gpu);

        let loaded = trial.timed_load()?;
        let weights = trial.load()?;
        report.check(self.passed("load").took(loaded, trial.weight_bytes(), 0));

        let inputs = PinnedInputs::new(trial.gpu, &trial.stored.inputs)?;
        let ran = trial.run(program, weights, &inputs, cost, expected, report)?;
        report.check(self.evicted(trial.gpu, "evicted", kept_before));

        let longer_ns = loaded.time_ns.max(ran.whole_ns);
        report.check(trial.cold_runs(&inputs, &ran, longer_ns, cost.flops)?);
        report.check(self.evicted(trial.gpu, "evicted after cold runs", kept_before));
        Ok(())
    }

    /// Checks that an evicted model leaves no device memory in use.
    fn evicted(&self, gpu: &Gpu, what: &str, kept_before: u64) -> Check {
        let held = kept_bytes(gpu);
        gpu.trim();
        let kept = kept_bytes(gpu);
        let check = self.passed(what);
        if kept > kept_before {
            let why = format!("{kept} bytes are held still, and were {kept_before} before");
            return Check::failed(STAGE, check.what, why);
        }
        Check { detail: format!("{} KiB given back", held.saturating_sub(kept) >> 10), ..check }
    }
}

/// Maximum number of launches that measure a step.
const STEP_LAUNCHES_MAX: u32 = 20;
/// Number of kernels that a list of the slowest steps shows.
const SLOWEST_STEPS_MAX: usize = 24;

/// Stored model with inputs of one batch size.
struct StoredVariant {
    model: Stored,
    inputs: Vec<ReferenceTensor>,
    shapes: Vec<Shape>,
}

/// Runs of the loaded model.
struct WarmRuns {
    outputs: Outputs,
    /// Time that a caller waits for a run: with the copies of its inputs and outputs, and with the
    /// launches of its kernels.
    whole_ns: u64,
}

/// Variant on the device that runs it.
struct Trial<'a> {
    variant: &'a NetworkVariant<'a>,
    gpu: &'a Gpu,
    timer: &'a Timer,
    stored: StoredVariant,
}

impl Trial<'_> {
    fn compile(&self) -> Result<Program, ModelProgramError> {
        let StoredVariant { model, shapes, .. } = &self.stored;
        let tier = self.gpu.products.tier();
        Program::compile(&model.model, shapes, self.variant.precision, &self.gpu.target, tier)
    }

    /// Loads the weights, and waits until they have arrived.
    fn load(&self) -> Result<Weights, CheckFailure> {
        let weights = self.stored.model.load(self.gpu)?;
        weights.wait().map_err(|error| weights_failure(&error))?;
        Ok(weights)
    }

    /// Measures loads after a warm-up: the median time.
    fn timed_load(&self) -> Result<MeasuredTime, CheckFailure> {
        let load = || {
            let began = Instant::now();
            let weights = self.load()?;
            let time_ns = nanoseconds(began.elapsed());
            drop_weights(self.gpu, weights);
            Ok::<_, CheckFailure>(time_ns)
        };
        self.timer.warm_up(|| load().map(drop))?;
        let times = (0..self.timer.repeats().min(LOADS_MAX)).map(|_| load());
        Ok(self.timer.measured(median(times.collect::<Result<_, _>>()?)))
    }

    fn weight_bytes(&self) -> u64 {
        self.stored.model.model.weights().iter().map(|weight| weight.bytes() as u64).sum()
    }

    /// Checks runs of the loaded model, launched kernel by kernel and as a graph, and then drops
    /// it.
    fn run(
        &self,
        program: Program,
        weights: Weights,
        inputs: &PinnedInputs,
        cost: LaunchCost,
        expected: &dyn Fn() -> Result<Vec<ReferenceTensor>, String>,
        report: &mut Reporter<'_>,
    ) -> Result<WarmRuns, CheckFailure> {
        let NetworkVariant { asked, precision, batch, .. } = *self.variant;
        let launches = program.steps.len();
        let info = self.gpu.context.info();
        let floor_ns = Floor::for_device(info, precision).map(|floor| floor.time_ns(&program.steps));
        let began = Instant::now();
        let bound = Bound::new(self.gpu, program, &weights, OWNER)?;
        report.check(self.variant.passed("its program bound").took(self.timer.since(began), 0, 0));
        let (BothWays { launched, captured, in_sequence }, steps) =
            in_slot(self.gpu, OWNER, &bound, &weights, &self.stored.inputs, |ready| {
                Ok((
                    both_ways(ready, self.timer)?,
                    ready.step_times_ns(self.timer.repeats().min(STEP_LAUNCHES_MAX))?,
                ))
            })?;
        report.check(Check { detail: slowest(steps), ..self.variant.passed("slowest steps") });
        let took = |check: Check, measured| check.took(measured, cost.bytes, cost.flops).beside(floor_ns);
        let run = self.variant.passed(&format!("run, {launches} launches"));
        let run = Check { detail: memory(self.gpu, self.weight_bytes(), &bound.program), ..run };
        report.check(took(run, launched.measured));
        let time_ns = captured.measured.time_ns;
        let goal = Goal::for_run(info.compute_capability, &asked.name, precision, batch, time_ns);
        let repeated = took(self.variant.passed("run again, as a graph"), captured.measured).asked(goal);
        let detail = format!("with steps in sequence: {}", microseconds(in_sequence.time_ns));
        let repeated = Check { detail, ..repeated };
        let differs = Mismatch::of_outputs(&launched.outputs, &captured.outputs);
        report.check(repeated.same(differs, "the graph gives other answers"));
        report.check(match expected() {
            Ok(expected) => answers(self.variant.passed("answers"), &launched.outputs, &expected, precision),
            Err(why) => {
                let why = format!("the reference does not run it: {why}");
                Check::failed(STAGE, &self.variant.name, why)
            }
        });
        let whole = || cold_outputs(self.gpu, OWNER, &bound, &weights, inputs).map(drop);
        let whole = self.timer.host(self.timer.repeats().min(COLD_RUNS_MAX), whole)?;
        drop((bound, weights));
        Ok(WarmRuns { outputs: launched.outputs, whole_ns: whole.time_ns })
    }

    /// Checks runs that load the model first: their outputs, and their time relative to the longer
    /// of load and run, `longer_ns`.
    fn cold_runs(
        &self,
        inputs: &PinnedInputs,
        warm: &WarmRuns,
        longer_ns: u64,
        flops: u64,
    ) -> Result<Check, CheckFailure> {
        let cold = || self.cold_run(inputs, &warm.outputs);
        self.timer.warm_up(|| cold().map(drop))?;
        let runs = (0..self.timer.repeats().min(COLD_RUNS_MAX)).map(|_| cold());
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        let differs = runs.iter().find_map(|run| run.differs);
        let measured = self.timer.measured(median(runs.iter().map(|run| run.time_ns).collect()));
        let goal = cold_goal(measured.time_ns, longer_ns);
        let check = self.variant.passed("cold run").took(measured, self.weight_bytes(), flops).asked(goal);
        let [requested, bound, launched] =
            [0, 1, 2].map(|phase| median(runs.iter().map(|run| run.phases_ns[phase]).collect()) / 1000);
        let detail = format!(
            "load requested after {requested} us, program bound after {bound} us, steps enqueued after {launched} us; \
             a run of the loaded model, with its inputs, takes {} us",
            warm.whole_ns / 1000
        );
        let check = Check { detail, ..check };
        Ok(check.same(differs, "a cold run gives other answers"))
    }

    fn cold_run(&self, inputs: &PinnedInputs, expected: &[Vec<u8>]) -> Result<ColdRun, CheckFailure> {
        let program = self.compile().map_err(|error| InferenceError::Run(error.to_string().into()))?;
        let began = Instant::now();
        let weights = self.stored.model.load(self.gpu)?;
        let requested = began.elapsed();
        let bound = Bound::new(self.gpu, program, &weights, OWNER)?;
        let bound_after = began.elapsed();
        let cold = cold_outputs(self.gpu, OWNER, &bound, &weights, inputs)?;
        let time_ns = nanoseconds(began.elapsed());
        let phases_ns = [requested, bound_after, cold.launched_at - began].map(nanoseconds);
        // Weights that are still being transferred cannot be evicted.
        bound.wait(&weights)?;
        drop(bound);
        drop_weights(self.gpu, weights);
        let differs = Mismatch::of_outputs(expected, &cold.outputs);
        Ok(ColdRun { time_ns, phases_ns, differs })
    }
}

/// Result of a run that loads the model first.
struct ColdRun {
    time_ns: u64,
    /// Time until the load is requested, until the program is bound, and until all steps are
    /// enqueued.
    phases_ns: [u64; 3],
    /// First element that differs from the outputs of the loaded model.
    differs: Option<Mismatch>,
}

fn drop_weights(gpu: &Gpu, weights: Weights) {
    drop(weights);
    gpu.trim();
}

/// Model in the form in which nodes store it.
pub(super) struct Stored {
    pub(super) model: OnnxModel,
    folder: Arc<TemporaryFolder>,
}

impl Stored {
    /// Stores the model in a folder, which other models can share.
    pub(super) fn new(model: &OnnxModel, folder: &Arc<TemporaryFolder>) -> Result<Self, String> {
        let separated = model.without_weights();
        let folder = folder.clone();
        for file in &separated.weights {
            let path = folder.path().join(file.hash.to_string());
            if path.exists() {
                continue;
            }
            std::fs::write(path, &file.bytes).map_err(|error| error.to_string())?;
        }
        let model = OnnxModel::read_skeleton(separated.skeleton).map_err(|error| error.to_string())?;
        Ok(Self { model, folder })
    }

    /// Starts the transfer of the weights.
    pub(super) fn load(&self, gpu: &Gpu) -> Result<Weights, InferenceError> {
        let loaded = Weights::load(gpu, &self.model, self.folder.path());
        loaded.map_err(|error| load_failure(&error))
    }
}

/// Returns the device memory in use, excluding the slots' memory and blocks that are mapped for the
/// next load.
pub(super) fn kept_bytes(gpu: &Gpu) -> u64 {
    let spare_bytes = gpu.tensors.usage().spare_bytes;
    gpu.pool.usage().used_bytes.saturating_sub(gpu.slots.held_bytes() + spare_bytes)
}

/// Describes the memory of a model by use.
fn memory(gpu: &Gpu, weight_bytes: u64, program: &Program) -> String {
    let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1 << 10));
    let weights = kib(weight_bytes);
    let values = kib(program.arena_bytes);
    let kept = kib(program.resident_bytes);
    let held = kib(gpu.pool.usage().used_bytes.saturating_sub(gpu.tensors.usage().spare_bytes));
    format!("weights {weights}, values in between {values}, made of weights {kept}; {held} held in all")
}

fn microseconds(time_ns: u64) -> String {
    format!("{}.{} us", time_ns / 1000, time_ns % 1000 / 100)
}

/// Lists the steps that take the most time: number of equal steps, their kernel, their total time.
fn slowest(steps: Vec<(String, u64)>) -> String {
    let all_ns: u64 = steps.iter().map(|(_, time_ns)| time_ns).sum();
    let mut by_kernel: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (kernel, time_ns) in steps {
        let (count, total_ns) = by_kernel.entry(kernel).or_default();
        *count += 1;
        *total_ns += time_ns;
    }
    let mut sorted: Vec<_> = by_kernel.into_iter().collect();
    sorted.sort_by_key(|(_, (_, total_ns))| Reverse(*total_ns));
    let shown = sorted.into_iter().take(SLOWEST_STEPS_MAX);
    let shown = shown.map(|(kernel, (count, ns))| format!("{count} {kernel}: {}", microseconds(ns)));
    format!("all: {}; {}", microseconds(all_ns), shown.collect::<Vec<_>>().join("; "))
}

/// Goal of the time of a cold run relative to the longer of load and run.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn cold_goal(time_ns: u64, longer_ns: u64) -> Goal {
    let ratio = time_ns as f64 / longer_ns.max(1) as f64;
    Goal::at_most(ratio, COLD_RATIO_MAX, "of the longer of load and run")
}

/// Makes an input of a shape that the model accepts. A variable first dimension is the batch; all
/// items are equal.
pub(super) fn made_up(port: &Port, batch: u32) -> Option<ReferenceTensor> {
    let size =
        |(axis, dim): (usize, &Option<u32>)| dim.unwrap_or(if axis == 0 { batch } else { LENGTH }) as usize;
    let dims: Vec<usize> = port.shape.iter().enumerate().map(size).collect();
    let tensor = TensorType::new(port.datatype, dims).ok()?;
    let count = tensor.elements();
    let items = if port.shape.first() == Some(&None) { batch as usize } else { 1 };
    let item = (count / items.max(1)).max(1);
    Some(match port.datatype {
        ElementType::Fp32 | ElementType::Fp16 | ElementType::Bf16 | ElementType::Fp64 => {
            ReferenceTensor::floats(tensor, (0..count).map(|at| (at % item) as f32 / item as f32).collect())
        }
        // Masks are all ones; all other integer inputs are small indices.
        _ if port.name.contains("mask") => ReferenceTensor::integers(tensor, vec![1; count]),
        _ => ReferenceTensor::integers(tensor, (0..count).map(|at| (at % item % 2) as i64).collect()),
    })
}

fn shape(tensor: &ReferenceTensor) -> Option<Shape> {
    let dims: Option<Vec<u32>> = tensor.tensor().dims().iter().map(|dim| u32::try_from(*dim).ok()).collect();
    Shape::new(&dims?).ok()
}
