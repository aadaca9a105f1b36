//! `weir doctor --gpu`: checks a GPU's results and measures its speed.
//!
//! ```text
//!   gpu.rs ── for each stage ──► supervise: StageChild ──order──► stage process, holds the device
//!       StageRecorder, ResultsFile ◄── events: cases, launches, checks ──┘    (stage_process.rs)
//! ```
//!
//! This process never opens the driver, so it can record any failure of a stage process.

mod kept;
mod limits;
mod message;
mod table;

mod child;
mod record;
mod stage_process;
mod supervise;
pub(crate) use stage_process::{STAGE_COMMAND, main as stage_main};

use crate::error::Problem;
use crate::output::OutputSettings;
use anyhow::Result;
use kept::ResultsFile;
use limits::{CASE_TIME_S, StageLimits};
use record::StageRecorder;
use serde::Serialize;
use std::path::PathBuf;
use weir_device::cuda::Search;
use weir_gpu_check::{CaseSelection, CheckConfig, FLOPS_MIN, Stage, WARM_UP_MS};

/// Maximum device memory that the checks use.
const MEMORY_BYTES_MAX: u64 = 8 << 30;

/// Options of the GPU checks.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "GPU")]
pub(crate) struct GpuArgs {
    /// Check a GPU instead: operations, copies, launches, memory and models, against a CPU
    /// reference
    #[arg(long)]
    pub(super) gpu: bool,
    /// Ordinal of the GPU
    #[arg(long, value_name = "N", default_value_t = 0, requires = "gpu")]
    gpu_device: u32,
    /// Stages to run
    #[arg(long, value_name = "STAGES", value_delimiter = ',', requires = "gpu", help = stages())]
    stage: Vec<Stage>,
    /// Case to run, or a prefix that ends at a comma: "conv 3x3, tf32"; may be repeated
    #[arg(long, value_name = "NAME", requires = "gpu")]
    case: Vec<String>,
    /// List the cases of the stages without running them
    #[arg(long, requires = "gpu")]
    list_cases: bool,
    /// ONNX model to run; may be repeated
    #[arg(long, value_name = "FILE", requires = "gpu")]
    model: Vec<PathBuf>,
    /// Batch sizes for models with a dynamic batch dimension, separated by commas: 1,32
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1", requires = "gpu", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batch: Vec<u32>,
    /// Repetitions of each measurement
    #[arg(long, value_name = "N", default_value_t = 50, requires = "gpu", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Warm-up time before each measurement, so that the GPU reaches its full clocks
    #[arg(long, value_name = "MS", default_value_t = WARM_UP_MS, requires = "gpu", value_parser = clap::value_parser!(u64).range(0..=60_000))]
    warm_up_ms: u64,
    /// If cuBLASLt is installed: minimum size of the matrix products that it computes in models, in
    /// floating-point operations
    #[arg(long, value_name = "FLOPS", default_value_t = FLOPS_MIN, requires = "gpu")]
    library_flops_min: u64,
    /// Time limit of a stage [default: by stage, 60 to 600 s]
    #[arg(long, value_name = "S", requires = "gpu", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    stage_time_s: Option<u64>,
    /// Time limit for a case without progress
    #[arg(long, value_name = "S", default_value_t = CASE_TIME_S, requires = "gpu", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    case_time_s: u64,
    /// Also write the results to this file, as JSON and after every check; an existing file resumes
    /// the run
    #[arg(value_name = "OUT", requires = "gpu")]
    out: Option<PathBuf>,
}

/// Case that can be selected with `--case`.
#[derive(Debug, Serialize)]
struct ListedCase {
    stage: Stage,
    case: String,
}

fn stages() -> String {
    format!("Only these: {} [default: all]", Stage::ALL.map(Stage::as_str).join(", "))
}

pub(super) fn run(args: &GpuArgs, output: OutputSettings) -> Result<()> {
    let needs_models = |stage: &&Stage| matches!(stage, Stage::Networks | Stage::Functions);
    if let Some(stage) = args.stage.iter().find(needs_models).filter(|_| args.model.is_empty()) {
        let hint = "give one or more with --model FILE";
        return Err(Problem::new(format!("stage {stage} has no models to check")).hint(hint).into());
    }
    let config = args.config();
    if args.list_cases {
        let listed = args
            .stages()
            .flat_map(|stage| stage.cases(&config).into_iter().map(move |case| ListedCase { stage, case }));
        return output.result(&listed.collect::<Vec<_>>(), |cases| list(cases));
    }
    let stages = args.selected_stages(&config)?;
    let mut kept = ResultsFile::open(args.out.as_deref(), &config)?;
    if let Some(running) = kept.cut_off_in() {
        output.note(format_args!("an earlier run was cut off in {}: {}", running.stage, running.case));
    }
    for stage in stages {
        if args.case.is_empty() && kept.has_passed(stage) {
            output.note(format_args!("{stage} has passed before"));
            continue;
        }
        let limits = StageLimits::new(stage, args.model.len(), args.stage_time_s, args.case_time_s);
        let mut config = config.clone();
        config.selection.skip = kept.begin(stage, &config.selection);
        supervise::run(stage, &config, limits, &mut StageRecorder::new(&mut kept, output))?;
    }
    let checks = &kept.checks;
    output.result(checks, |checks| table::text(checks))?;
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        count => Err(Problem::new(format!("{count} of {} checks failed; see above", checks.len())).into()),
    }
}

impl GpuArgs {
    fn config(&self) -> CheckConfig {
        CheckConfig {
            ordinal: self.gpu_device,
            memory_bytes_max: MEMORY_BYTES_MAX,
            models: self.model.clone(),
            batches: self.batch.clone(),
            repeats: self.repeats,
            warm_up_ms: self.warm_up_ms,
            library_flops_min: self.library_flops_min,
            selection: CaseSelection { only: self.case.clone(), skip: Vec::new() },
            // The stage process finds the driver and the libraries.
            search: Search::default(),
        }
    }

    fn stages(&self) -> impl Iterator<Item = Stage> {
        Stage::ALL.into_iter().filter(|stage| self.stage.is_empty() || self.stage.contains(stage))
    }

    /// The stages to run. With `--case`, only stages that contain a selected case.
    fn selected_stages(&self, config: &CheckConfig) -> Result<Vec<Stage>> {
        if self.case.is_empty() {
            // Model stages without models have no cases.
            let has_cases = |stage: &Stage| *stage == Stage::Environment || !stage.cases(config).is_empty();
            return Ok(self.stages().filter(has_cases).collect());
        }
        let cases: Vec<_> = self.stages().map(|stage| (stage, stage.cases(config))).collect();
        for wanted in &self.case {
            let only = CaseSelection { only: vec![wanted.clone()], skip: Vec::new() };
            if !cases.iter().any(|(_, names)| names.iter().any(|name| only.includes(name))) {
                let hint =
                    "`weir doctor --gpu --list-cases`, with the same stages and models, lists the cases";
                return Err(Problem::usage(format!("there is no case {wanted:?}")).hint(hint).into());
            }
        }
        let has_selected =
            |(_, names): &(Stage, Vec<String>)| names.iter().any(|name| config.selection.includes(name));
        Ok(cases.into_iter().filter(has_selected).map(|(stage, _)| stage).collect())
    }
}

fn list(cases: &[ListedCase]) -> String {
    let rows = cases.iter().map(|listed| [listed.stage.to_string(), listed.case.clone()]);
    crate::output::table(["STAGE", "CASE"], rows)
}
