//! Memory use of many functions on one device, each with its own fine-tuned model of one family.
//! The results are compared with one process per function, and with one process in which functions
//! share nothing (StreamBox, Wu et al., USENIX ATC 2024, section 6).

use super::network::{NetworkInputs, Stored, kept_bytes, name};
use crate::bench::{Bench, OWNER};
use crate::config::{CheckConfig, CheckFailure};
use crate::folder::TemporaryFolder;
use crate::goal::Goal;
use crate::outcome::{Check, LaunchParameters, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::nanoseconds;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use weir_cuda::executor::{Bound, Gpu, Program, Weights, in_slot, weights_failure};
use weir_device::cuda::{BLOCK_BYTES, CudaError};
use weir_graph::{OnnxModel, WeightData};
use weir_types::{ElementType, Precision};

const STAGE: Stage = Stage::Functions;
/// Number of functions.
const FUNCTIONS: u32 = 24;
/// Maximum share of fine-tuned weights in a model's weights, as a divisor: 20 is 5 %.
const OWN_SHARE: usize = 20;
/// Required saving of memory compared with one process per function, in per cent.
const BELOW_PERCENT: f64 = 93.0;

/// Device memory of one function.
struct Function {
    bound: Bound,
    weights: Weights,
}

/// Device memory by use, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    contexts: u64,
    weights: u64,
    /// Working memory of runs.
    activations: u64,
}

pub(super) fn cases(config: &CheckConfig) -> Vec<String> {
    config.models.iter().map(|path| name(path)).collect()
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    for path in &bench.config.models {
        let name = name(path);
        report.case(&name, |report| {
            let what = format!("{name}: {FUNCTIONS} functions");
            match NetworkInputs::read(path, 1).and_then(|asked| Ok((family(&asked.model)?, asked))) {
                Ok((family, asked)) => together(bench, &what, &family, &asked, report)?,
                Err(why) => report.check(Check::failed(STAGE, what, why)),
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Creates variants of a model that differ in some of their weights.
fn family(model: &OnnxModel) -> Result<Vec<Stored>, String> {
    let folder = Arc::new(TemporaryFolder::new().map_err(|error| error.to_string())?);
    let own = own_weights(model);
    let variant = |number: u32| {
        let mut variant = model.clone();
        for (index, bytes) in &own {
            let mut bytes = bytes.to_vec();
            // A changed low byte changes the number, but only slightly.
            if let Some(byte) = bytes.first_mut() {
                *byte ^= u8::try_from(number).unwrap_or_default();
            }
            variant = variant.with_weight(*index, Bytes::from(bytes)).map_err(|error| error.to_string())?;
        }
        Stored::new(&variant, &folder)
    };
    (0..FUNCTIONS).map(variant).collect()
}

/// Returns the weights that fine-tuning changes: the last weights that a run reads, up to the
/// share.
fn own_weights(model: &OnnxModel) -> Vec<(u32, Bytes)> {
    let mut left = model.weights().iter().map(weir_graph::ModelWeight::bytes).sum::<usize>() / OWN_SHARE;
    let mut own = Vec::new();
    for index in model.weights_by_use().into_iter().rev() {
        let weight = usize::try_from(index).ok().and_then(|index| model.weights().get(index));
        let Some(WeightData::Bytes(bytes)) = weight.map(|weight| &weight.data) else { continue };
        let is_float = weight.is_some_and(|weight| weight.stored_as == ElementType::Fp32);
        if !is_float || bytes.is_empty() || bytes.len() > left {
            continue;
        }
        left -= bytes.len();
        own.push((index, bytes.clone()));
    }
    own
}

fn together(
    bench: &Bench<'_>,
    what: &str,
    family: &[Stored],
    asked: &NetworkInputs,
    report: &mut Reporter<'_>,
) -> Result<(), CheckFailure> {
    let gpu = &*bench.gpu;
    let timer = &bench.timer;
    gpu.trim();
    let kept_before = kept_bytes(gpu);
    let mut functions = Vec::new();
    let mut load_times_ns = Vec::new();
    for stored in family {
        let program = Program::compile(
            &stored.model,
            &asked.shapes,
            Precision::default(),
            &gpu.target,
            gpu.products.tier(),
        );
        let program = match program {
            Ok(program) => program,
            Err(why) => {
                report.check(Check::failed(STAGE, what, why));
                return Ok(());
            }
        };
        if functions.is_empty() {
            // All variants have the same launches.
            report.launches(LaunchParameters::of_steps(&program.steps));
        }
        let began = Instant::now();
        let weights = stored.load(gpu)?;
        weights.wait().map_err(|error| weights_failure(&error))?;
        load_times_ns.push(nanoseconds(began.elapsed()));
        let bound = Bound::new(gpu, program, &weights, OWNER)?;
        functions.push(Function { bound, weights });
    }
    let (first_ns, others_ns) = load_times_ns
        .split_first()
        .map_or((0, 0), |(first, others)| (*first, others.iter().sum::<u64>() / others.len().max(1) as u64));
    let loaded = Check::passed(STAGE, format!("{what}: load of one that is not the first"));
    let detail = format!("{} us for the first", first_ns / 1000);
    report.check(Check { detail, ..loaded.took(timer.measured(others_ns), 0, 0) });
    report.check(at_once(bench, what, &functions, asked)?);

    let context_bytes = bench.context_bytes.filter(|bytes| *bytes > 0);
    let activations = gpu.slots.held_bytes();
    let weights = kept_bytes(gpu).saturating_sub(kept_before);
    let found = Taken { contexts: context_bytes.unwrap_or_default(), weights, activations };
    let each = functions.first().map(|function| function.alone(context_bytes)).unwrap_or_default();
    let processes = each.times(u64::from(FUNCTIONS));
    let goal =
        Goal::at_least(below(found.sum(), processes.sum()), BELOW_PERCENT, "% below a process for each");
    let detail = found.beside(processes, context_bytes.is_some());
    let memory_bytes = Some(found.sum());
    let check = Check { memory_bytes, detail, ..Check::passed(STAGE, format!("{what}: memory")) };
    report.check(check.asked(goal));
    Ok(())
}

/// Calls all functions concurrently. Each must return the same answers as when it runs alone.
fn at_once(
    bench: &Bench<'_>,
    what: &str,
    functions: &[Function],
    asked: &NetworkInputs,
) -> Result<Check, CheckFailure> {
    let gpu = &*bench.gpu;
    let alone: Vec<_> =
        functions.iter().map(|function| function.run(gpu, asked)).collect::<Result<_, _>>()?;
    bench.timer.warm_up(|| functions.iter().try_for_each(|function| function.run(gpu, asked).map(drop)))?;
    let began = Instant::now();
    let answers = std::thread::scope(|threads| {
        let run = |function| threads.spawn(move || Function::run(function, gpu, asked));
        let running: Vec<_> = functions.iter().map(run).collect();
        let lost = || Err(CudaError::Invalid("a thread panicked".to_owned()).into());
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost()));
        ended.collect::<Result<Vec<_>, CheckFailure>>()
    })?;
    let measured = bench.timer.since(began);
    let differs = alone.iter().zip(&answers).find_map(|(alone, found)| Mismatch::of_outputs(alone, found));
    let detail = format!("{} run at a time, each with the answers that it has alone", gpu.slots.count());
    let check = Check::passed(STAGE, format!("{what}: all called at once")).took(measured, 0, 0);
    Ok(Check { detail, ..check }.same(differs, "a function returned other answers than when it ran alone"))
}

impl Function {
    /// Runs the function once, from any thread.
    fn run(&self, gpu: &Gpu, asked: &NetworkInputs) -> Result<Vec<Vec<u8>>, CheckFailure> {
        gpu.context.make_current()?;
        Ok(in_slot(gpu, OWNER, &self.bound, &self.weights, &asked.inputs, |ready| {
            ready.run()?;
            ready.outputs()
        })?)
    }

    /// Returns the minimum memory of the function in a separate process, in whole blocks as in this
    /// process.
    fn alone(&self, context_bytes: Option<u64>) -> Taken {
        let program = &self.bound.program;
        let blocks = |bytes: u64| bytes.next_multiple_of(BLOCK_BYTES);
        let constants = program.constants.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        Taken {
            contexts: context_bytes.unwrap_or_default(),
            weights: blocks(self.weights.bytes() + constants) + blocks(program.resident_bytes),
            activations: blocks(program.arena_bytes),
        }
    }
}

impl Taken {
    fn times(self, count: u64) -> Self {
        Self {
            contexts: self.contexts * count,
            weights: self.weights * count,
            activations: self.activations * count,
        }
    }

    fn sum(self) -> u64 {
        self.contexts + self.weights + self.activations
    }

    /// Describes the memory next to the memory of separate processes. One process with a stream per
    /// function would use as much memory for weights and activations as separate processes.
    fn beside(self, processes: Self, has_contexts: bool) -> String {
        let part = |name: &str, taken: u64, of: u64| {
            format!("{name} {} MiB instead of {} ({:.1} % less)", taken >> 20, of >> 20, below(taken, of))
        };
        let contexts = if has_contexts {
            part("context", self.contexts, processes.contexts)
        } else {
            "contexts not counted, which the driver does not tell".to_owned()
        };
        format!(
            "{contexts}; {} and {}, of which streams alone in one process would save nothing",
            part("weights", self.weights, processes.weights),
            part("activations", self.activations, processes.activations),
        )
    }
}

/// Returns the saving of `taken` compared with `of`, in per cent.
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn below(taken: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { (1.0 - taken as f64 / of as f64) * 100.0 }
}
