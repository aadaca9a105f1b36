//! A whole model: what it takes to load, to run for the first time, behind its load, and again; whether its answers are right, and what is left of it.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::form::stored_for;
use super::super::model::{load_failure, weights_failure};
use super::super::program::Program;
use super::super::weights::Weights;
use super::answers::answers;
use super::bench::{self, BothWays, OWNER, in_slot, nanoseconds};
use super::floor::Floor;
use super::folder::Folder;
use super::{Check, CheckConfig, CheckFailure, Goal, Stage};
use crate::error::InferenceError;
use crate::mapping::Mapping;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weir_graph::reference::{self, Tensor};
use weir_graph::{Model, TensorType, WeightData};
use weir_kernels::Cost;
use weir_types::{ElementType, Port, Precision, Shape};

/// What a dimension is that the file leaves open: the first one counts items, others are lengths.
const LENGTH: u32 = 16;

/// Cold runs that are timed, at most.
const COLD_RUNS_MAX: u32 = 5;
/// What a cold run may take, in parts of what the longer of load and run takes by itself.
const COLD_RATIO_MAX: f64 = 1.15;

/// A model, and what it is asked.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) model: Model,
    pub(super) inputs: Vec<Tensor>,
    pub(super) shapes: Vec<Shape>,
}

/// The same of one item, and what the reference says.
struct Network {
    asked: Asked,
    expected: Vec<Tensor>,
}

pub(super) fn check(
    gpu: &Arc<Gpu>,
    config: &CheckConfig,
    path: &Path,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    let network = match Network::read(path) {
        Ok(network) => network,
        Err(why) => {
            tell(Check::failed(Stage::Networks, name(path), why));
            return Ok(());
        }
    };
    for batch in network.batches(&config.batches) {
        for precision in Precision::ALL {
            network.check(gpu, config, precision, batch, tell)?;
        }
    }
    Ok(())
}

pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

impl Asked {
    /// With inputs of so many items, where it takes any number.
    pub(super) fn read(path: &Path, batch: u32) -> Result<Self, String> {
        let file = Mapping::of(path).map_err(|error| error.to_string())?;
        let model = Model::read(Bytes::from_owner(file)).map_err(|error| error.to_string())?;
        let (inputs, shapes) = inputs(&model, batch)?;
        Ok(Self { name: name(path), model, inputs, shapes })
    }
}

fn inputs(model: &Model, batch: u32) -> Result<(Vec<Tensor>, Vec<Shape>), String> {
    let inputs: Option<Vec<Tensor>> =
        model.signature().inputs.iter().map(|port| made_up(port, batch)).collect();
    let inputs = inputs.ok_or("its inputs cannot be made up")?;
    let shapes: Option<Vec<Shape>> = inputs.iter().map(shape).collect();
    Ok((inputs, shapes.ok_or("its inputs are too large")?))
}

impl Network {
    fn read(path: &Path) -> Result<Self, String> {
        let Asked { name, model, inputs, shapes } = Asked::read(path, 1)?;
        let graph = model.specialise(&shapes).map_err(|error| error.to_string())?;
        let weight = |index: u32| {
            let weight = model.weights().get(usize::try_from(index).ok()?)?;
            match &weight.data {
                WeightData::Bytes(bytes) => Tensor::from_bytes(weight.tensor.clone(), bytes),
                WeightData::Elsewhere(_) => None,
            }
        };
        let expected = reference::run(&graph, &inputs, &weight).map_err(|error| error.to_string())?;
        Ok(Self { asked: Asked { name, model, inputs, shapes }, expected })
    }

    /// How many items it is run with: as many as it says, or else each of these.
    fn batches(&self, any: &[u32]) -> Vec<u32> {
        let first = self.asked.model.signature().inputs.first().and_then(|port| port.shape.first());
        match first {
            Some(Some(fixed)) => vec![*fixed],
            Some(None) => any.to_vec(),
            None => vec![1],
        }
    }

    fn check(
        &self,
        gpu: &Arc<Gpu>,
        config: &CheckConfig,
        precision: Precision,
        batch: u32,
        tell: &mut dyn FnMut(Check),
    ) -> Result<(), CheckFailure> {
        let model = &self.asked.model;
        let name = format!("{}, {precision}, batch {batch}", self.asked.name);
        let (inputs, shapes) = match inputs(model, batch) {
            Ok(made) => made,
            Err(why) => {
                tell(Check::failed(Stage::Networks, name, why));
                return Ok(());
            }
        };
        let (inputs, shapes) = (&inputs[..], &shapes[..]);
        let stored = Folder::new().map_err(|error| error.to_string()).and_then(|folder| {
            let model = stored_for(model.clone(), precision).map_err(|error| error.to_string())?;
            Stored::new(&model, &Arc::new(folder))
        });
        let compiled = stored.and_then(|stored| {
            let began = Instant::now();
            let program =
                Program::compile(&stored.model, shapes, precision, &gpu.target, gpu.products.tier());
            Ok((program.map_err(|error| error.to_string())?, nanoseconds(began), stored))
        });
        let (program, compile_ns, stored) = match compiled {
            Ok(compiled) => compiled,
            Err(why) => {
                tell(Check::failed(Stage::Networks, name, why));
                return Ok(());
            }
        };
        let cost = program.steps.iter().fold(Cost::default(), |cost, step| cost + step.cost());
        let floor_ns = Floor::of(gpu.context.info(), precision).map(|floor| floor.time_ns(&program.steps));
        let launches = program.steps.len();
        gpu.trim();
        let kept_before = kept_bytes(gpu);

        let began = Instant::now();
        let weights = stored.load(gpu)?;
        weights.wait().map_err(|error| weights_failure(&error))?;
        let load_ns = nanoseconds(began);
        let weight_bytes = stored.model.weights().iter().map(|weight| weight.bytes() as u64).sum();
        tell(Check::passed(Stage::Networks, format!("{name}: load")).took(load_ns, weight_bytes, 0));
        tell(Check::passed(Stage::Networks, format!("{name}: its program made")).took(compile_ns, 0, 0));

        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        let BothWays { launched, captured } =
            in_slot(gpu, OWNER, &bound, &weights, inputs, |ready| ready.both_ways(config.repeats))?;
        let run = Check::passed(Stage::Networks, format!("{name}: run, {launches} launches"));
        let run = Check { detail: memory(gpu, weight_bytes, &bound.program), ..run };
        let took = |check: Check, time_ns| check.took(time_ns, cost.bytes, cost.flops).beside(floor_ns);
        tell(took(run, launched.time_ns));
        let repeated = Check::passed(Stage::Networks, format!("{name}: run again, as a graph"));
        let same = launched.outputs == captured.outputs;
        let detail = if same { String::new() } else { "the graph gives other answers".to_owned() };
        let goal =
            Goal::of_run(&gpu.context.info().name, &self.asked.name, precision, batch, captured.time_ns);
        tell(Check { passed: same, detail, ..took(repeated, captured.time_ns).asked(goal) });

        let judged = Check::passed(Stage::Networks, format!("{name}: answers"));
        tell(answers(judged, &launched.outputs, &self.expected, precision));

        drop((bound, weights));
        tell(let_go(gpu, &name, kept_before));
        let mut cold = Vec::new();
        for _ in 0..config.repeats.clamp(1, COLD_RUNS_MAX) {
            let program =
                Program::compile(&stored.model, shapes, precision, &gpu.target, gpu.products.tier());
            let Ok(program) = program else { break };
            let began = Instant::now();
            let weights = stored.load(gpu)?;
            let bound = Bound::new(gpu, program, &weights, OWNER)?;
            let outputs = bench::cold(gpu, &bound, &weights, inputs)?;
            cold.push((nanoseconds(began), outputs == launched.outputs));
            // What is still on its way would not be let go of.
            bound.wait(&weights)?;
            drop((bound, weights));
            gpu.trim();
        }
        let checked = Check::passed(Stage::Networks, format!("{name}: cold run"));
        let checked = cold_run(checked, cold, load_ns.max(launched.time_ns));
        let time_ns = checked.time_ns.unwrap_or_default();
        tell(checked.took(time_ns, weight_bytes, cost.flops));
        tell(let_go(gpu, &format!("{name}, after cold runs"), kept_before));
        Ok(())
    }
}

/// A model as nodes have it.
pub(super) struct Stored {
    pub(super) model: Model,
    folder: Arc<Folder>,
}

impl Stored {
    /// In a folder that others may be in, too.
    pub(super) fn new(model: &Model, folder: &Arc<Folder>) -> Result<Self, String> {
        let (separated, folder) = (model.without_weights(), Arc::clone(folder));
        for file in &separated.weights {
            let path = folder.path().join(file.hash.to_string());
            if path.exists() {
                continue;
            }
            std::fs::write(path, &file.bytes).map_err(|error| error.to_string())?;
        }
        let model = Model::read_skeleton(separated.skeleton).map_err(|error| error.to_string())?;
        Ok(Self { model, folder })
    }

    /// Have its weights on their way.
    pub(super) fn load(&self, gpu: &Gpu) -> Result<Weights, InferenceError> {
        let loaded = Weights::load(gpu, &self.model, self.folder.path());
        loaded.map_err(|error| load_failure(&error))
    }
}

/// What the device holds besides what runs work in, and what is mapped for the next load.
pub(super) fn kept_bytes(gpu: &Gpu) -> u64 {
    let spare_bytes = gpu.tensors.usage().spare_bytes;
    gpu.pool.usage().used_bytes.saturating_sub(gpu.slots.held_bytes() + spare_bytes)
}

/// What a model takes, and where.
fn memory(gpu: &Gpu, weight_bytes: u64, program: &Program) -> String {
    let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1 << 10));
    let (weights, values, kept) = (kib(weight_bytes), kib(program.arena_bytes), kib(program.resident_bytes));
    let held = kib(gpu.pool.usage().used_bytes.saturating_sub(gpu.tensors.usage().spare_bytes));
    format!("weights {weights}, values in between {values}, made of weights {kept}; {held} held in all")
}

/// A model that nobody has any more leaves nothing behind.
fn let_go(gpu: &Gpu, name: &str, kept_before: u64) -> Check {
    let held = kept_bytes(gpu);
    gpu.trim();
    let kept = kept_bytes(gpu);
    let what = format!("{name}: evicted");
    if kept > kept_before {
        let why = format!("{kept} bytes are held still, and were {kept_before} before");
        return Check::failed(Stage::Networks, what, why);
    }
    let detail = format!("{} KiB given back", held.saturating_sub(kept) >> 10);
    Check { detail, ..Check::passed(Stage::Networks, what) }
}

/// The median of cold runs, beside what the longer of load and run takes by itself. Not to keep to the bound is reported; other answers fail.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn cold_run(check: Check, mut runs: Vec<(u64, bool)>, longer_ns: u64) -> Check {
    runs.sort_unstable();
    let same = runs.iter().all(|(_, same)| *same);
    let time_ns = runs.get(runs.len() / 2).map_or(0, |(time_ns, _)| *time_ns);
    let ratio = time_ns as f64 / longer_ns.max(1) as f64;
    let passed = same && !runs.is_empty();
    let detail = if passed { String::new() } else { "a cold run gives other answers".to_owned() };
    let goal = Goal::at_most(ratio, COLD_RATIO_MAX, "of the longer of load and run");
    Check { passed, detail, time_ns: Some(time_ns), ..check.asked(goal) }
}

/// An input of a shape that the model may take. The first dimension counts items, where it is open: all of them are alike.
pub(super) fn made_up(port: &Port, batch: u32) -> Option<Tensor> {
    let size =
        |(axis, dim): (usize, &Option<u32>)| dim.unwrap_or(if axis == 0 { batch } else { LENGTH }) as usize;
    let dims: Vec<usize> = port.shape.iter().enumerate().map(size).collect();
    let tensor = TensorType::new(port.datatype, dims).ok()?;
    let count = tensor.elements();
    let items = if port.shape.first() == Some(&None) { batch as usize } else { 1 };
    let item = (count / items.max(1)).max(1);
    Some(match port.datatype {
        ElementType::Fp32 | ElementType::Fp16 | ElementType::Bf16 | ElementType::Fp64 => {
            Tensor::floats(tensor, (0..count).map(|at| (at % item) as f32 / item as f32).collect())
        }
        // Masks say that everything is there; whatever else is whole is a small index.
        _ if port.name.contains("mask") => Tensor::integers(tensor, vec![1; count]),
        _ => Tensor::integers(tensor, (0..count).map(|at| (at % item % 2) as i64).collect()),
    })
}

fn shape(tensor: &Tensor) -> Option<Shape> {
    let dims: Option<Vec<u32>> = tensor.tensor().dims().iter().map(|dim| u32::try_from(*dim).ok()).collect();
    Shape::new(&dims?).ok()
}
