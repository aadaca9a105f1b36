//! What is compared, and for how long.

use clap::{Parser, ValueEnum};
use std::fmt;
use std::path::PathBuf;

/// Measures programs side by side; `cargo xtask bench` gives it the programs.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// Rounds; each measures every contender once
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// How long each measurement lasts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// What to measure [default: everything]
    #[arg(long, value_delimiter = ',')]
    only: Vec<Suite>,
    /// One round of one second and few restarts: to see that everything runs, not for figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Replace the measured sections of this page
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// The commit that is measured
    #[arg(long)]
    pub(crate) commit: String,
    /// The `weir` program
    #[arg(long)]
    pub(crate) weir: PathBuf,
    /// The `wasmtime` program
    #[arg(long)]
    pub(crate) wasmtime: PathBuf,
    /// A Python that has what `bench/python/requirements.txt` pins
    #[arg(long)]
    pub(crate) python: PathBuf,
    /// A Python that has what `bench/python/serving/requirements.txt` pins; only `serving` needs it
    #[arg(long)]
    pub(crate) serving_python: Option<PathBuf>,
    /// The folder of Python scripts
    #[arg(long)]
    pub(crate) scripts: PathBuf,
    /// The folder of built functions
    #[arg(long)]
    pub(crate) functions: PathBuf,
    /// embed-text, pre-initialised
    #[arg(long)]
    pub(crate) embed_snapshot: PathBuf,
    /// The folder of ONNX models
    #[arg(long)]
    models: PathBuf,
    /// The `libonnxruntime.so` that Weir uses
    #[arg(long)]
    pub(crate) onnxruntime: PathBuf,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// A request that does nothing.
    Hello,
    /// A model behind HTTP.
    Inference,
    /// Models beside servers of models.
    Serving,
    /// The first call after a restart, and memory per function.
    Coldstart,
    /// A function beside one that misbehaves.
    Neighbours,
    /// One function in every language.
    Languages,
    /// Three nodes beside what the simulator predicts.
    Cluster,
    /// Requests for one model, together or one by one.
    Batching,
    /// Several models put together.
    Workflows,
    /// More requests than can be served.
    Overload,
    /// What calls of the host take.
    Calls,
    /// What is lost when parts of a cluster fail.
    Faults,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Inference => "inference",
            Self::Serving => "serving",
            Self::Coldstart => "coldstart",
            Self::Neighbours => "neighbours",
            Self::Languages => "languages",
            Self::Cluster => "cluster",
            Self::Batching => "batching",
            Self::Workflows => "workflows",
            Self::Overload => "overload",
            Self::Calls => "calls",
            Self::Faults => "faults",
        })
    }
}

impl Args {
    /// What to measure, in the order of the page.
    pub(crate) fn suites(&self) -> Vec<Suite> {
        let all = Suite::value_variants().iter().copied();
        all.filter(|suite| self.only.is_empty() || self.only.contains(suite)).collect()
    }

    /// The file of the model of that name.
    pub(crate) fn model(&self, name: &str) -> PathBuf {
        // The one that is in the repository itself.
        let folder = if name == "digits" {
            self.scripts.join("../../functions/classify-digits/model")
        } else {
            self.models.clone()
        };
        folder.join(format!("{name}.onnx"))
    }

    /// Rounds to measure.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Seconds of one measurement.
    pub(crate) fn seconds(&self) -> u32 {
        if self.quick { 1 } else { self.seconds }
    }

    /// What a person types to run this again.
    pub(crate) fn command_line(&self) -> String {
        if self.quick {
            return "cargo xtask bench --quick".to_owned();
        }
        let mut line = format!("cargo xtask bench --rounds {} --seconds {}", self.rounds, self.seconds);
        if !self.only.is_empty() {
            let suites: Vec<_> = self.suites().iter().map(ToString::to_string).collect();
            line.push_str(&format!(" --only {}", suites.join(",")));
        }
        line
    }
}
