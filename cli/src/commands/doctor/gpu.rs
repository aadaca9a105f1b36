//! `weir doctor --gpu`: whether a GPU computes what it should, and how fast.

mod kept;

use crate::error::Problem;
use crate::output::{Output, table};
use anyhow::Result;
use kept::Kept;
use std::path::PathBuf;
use std::sync::Arc;
use weir_device::cuda::{Devices, Search};
use weir_inference::gpu_check::{Check, CheckConfig, Stage, check};

/// Memory of the device that the checks use, at most.
const MEMORY_BYTES_MAX: u64 = 8 << 30;

/// What is to be checked.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "GPU")]
pub(crate) struct GpuArgs {
    /// Check a GPU instead: every kind of operation, copies, launches, memory, and models, against a reference on the processor and in a worker
    #[arg(long)]
    pub(super) gpu: bool,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0, requires = "gpu")]
    gpu_device: u32,
    /// Only some stages
    #[arg(long, value_name = "STAGES", value_delimiter = ',', requires = "gpu", help = stages())]
    stage: Vec<Stage>,
    /// An ONNX model to run; may be given several times
    #[arg(long, value_name = "FILE", requires = "gpu")]
    model: Vec<PathBuf>,
    /// Items of a run, for models that take any number; may be several: 1,32
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1", requires = "gpu", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batch: Vec<u32>,
    /// How often what is timed is repeated
    #[arg(long, value_name = "N", default_value_t = 50, requires = "gpu", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Write what is found to this file as well, as JSON and after each stage; stages that it has with nothing wrong are not run again
    #[arg(value_name = "OUT", requires = "gpu")]
    out: Option<PathBuf>,
}

fn stages() -> String {
    format!("Only these: {} [default: all]", Stage::ALL.map(Stage::as_str).join(", "))
}

pub(super) fn run(args: &GpuArgs, output: Output) -> Result<()> {
    let needs_models = |stage: &&Stage| matches!(stage, Stage::Networks | Stage::Functions);
    if let Some(stage) = args.stage.iter().find(needs_models).filter(|_| args.model.is_empty()) {
        let hint = "give one or more with --model FILE";
        return Err(Problem::new(format!("stage {stage} has no models to check")).hint(hint).into());
    }
    let search = Search::from_environment();
    let devices = Devices::discover(&search).map_err(|unavailable| {
        Problem::new(unavailable.to_string()).hint("a node without a GPU runs models on its processor")
    })?;
    let devices = Arc::new(devices);
    let config = CheckConfig {
        ordinal: args.gpu_device,
        memory_bytes_max: MEMORY_BYTES_MAX,
        models: args.model.clone(),
        batches: args.batch.clone(),
        repeats: args.repeats,
        search,
    };
    let out = args.out.as_deref();
    let mut kept = Kept::open(out, &config)?;
    let mut ended = Ok(());
    for stage in Stage::ALL.into_iter().filter(|stage| args.stage.is_empty() || args.stage.contains(stage)) {
        if kept.has_passed(stage) {
            output.note(format_args!("{stage} was checked before"));
            continue;
        }
        let mut checks = Vec::new();
        ended = check(&devices, &config, stage, &mut |check| {
            output.note(format_args!("{} {}", if check.passed { "ok    " } else { "FAILED" }, check.what));
            checks.push(check);
        });
        let is_same = kept.put(stage, checks);
        if let (Stage::Environment, false, Some(out)) = (stage, is_same, out) {
            let text = format!("{} is of another device, driver or library", out.display());
            return Err(Problem::new(text).hint("remove it, or give another file").into());
        }
        if ended.is_err() {
            break;
        }
        // One that ended early is begun anew the next time.
        kept.write(out)?;
    }
    let checks = &kept.checks;
    output.result(checks, |checks| text(checks))?;
    ended.map_err(|error| Problem::new(format!("the checks ended early: {error}")))?;
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        count => Err(Problem::new(format!("{count} of {} checks failed; see above", checks.len())).into()),
    }
}

fn text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        [
            check.stage.to_string(),
            check.what.clone(),
            check.tier.map_or_else(String::new, |tier| tier.to_string()),
            if check.passed { "ok" } else { "FAILED" }.to_owned(),
            check
                .error
                .zip(check.tolerance)
                .map_or_else(String::new, |(error, of)| format!("{error:.1e} of {of:.1e}")),
            check.time_ns.map_or_else(String::new, time),
            rate(check),
            check.share_of_floor.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
            check.goal.as_ref().map_or_else(String::new, ToString::to_string),
            check.detail.clone(),
        ]
    });
    table(["STAGE", "WHAT", "TIER", "", "OFF BY", "TIME", "RATE", "OF FLOOR", "GOAL", ""], rows)
}

#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// What matters more of both, for what it is.
fn rate(check: &Check) -> String {
    let bytes = check.bytes_per_s.map(|rate| format!("{:.1} GB/s", rate / 1e9));
    let flops = check.flops_per_s.map(|rate| format!("{:.2} TFLOP/s", rate / 1e12));
    [bytes, flops].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
