//! Command line: suites, duration and paths.

use clap::{Parser, ValueEnum};
use std::fmt;
use std::path::PathBuf;

/// Benchmarks programs side by side; `cargo xtask bench` provides the programs.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// Number of rounds; each round measures every contender once
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Seconds per measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Suites to run [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<Suite>,
    /// Run one round of one second with few restarts, as a smoke test; the results are meaningless
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Replace the measured sections of this page
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// Commit under test
    #[arg(long)]
    pub(crate) commit: String,
    /// Path of the `weir` program
    #[arg(long)]
    pub(crate) weir: PathBuf,
    /// Path of the `wasmtime` program; only for `hello`
    #[arg(long)]
    pub(crate) wasmtime: Option<PathBuf>,
    /// Python with the packages in `bench/python/requirements.txt`
    #[arg(long)]
    pub(crate) python: PathBuf,
    /// Python with the packages in `bench/python/serving/requirements.txt`; only for `serving`
    #[arg(long)]
    pub(crate) serving_python: Option<PathBuf>,
    /// Folder of the Python scripts
    #[arg(long)]
    pub(crate) scripts: PathBuf,
    /// Folder of the built functions
    #[arg(long)]
    pub(crate) functions: PathBuf,
    /// Pre-initialised component of embed-text
    #[arg(long)]
    pub(crate) embed_snapshot: PathBuf,
    /// Folder of the ONNX models
    #[arg(long)]
    models: PathBuf,
    /// Path of the `libonnxruntime.so` for Weir
    #[arg(long)]
    pub(crate) onnxruntime: PathBuf,
}

/// Benchmark suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Requests to a trivial function.
    Hello,
    /// A model behind HTTP.
    Inference,
    /// Models in worker processes compared with models in the node's process.
    Isolation,
    /// Weir compared with model servers.
    Serving,
    /// First calls after a restart, and memory per function.
    Coldstart,
    /// A function beside a misbehaving one.
    Neighbours,
    /// A tenant within its quotas beside a tenant that attacks.
    Tenants,
    /// One function in every language.
    Languages,
    /// A cluster of three nodes compared with the simulator.
    Cluster,
    /// Batched and unbatched requests for one model.
    Batching,
    /// Workflows of several models.
    Workflows,
    /// Load beyond the capacity.
    Overload,
    /// Duration of host calls.
    Calls,
    /// Lost calls when parts of a cluster fail.
    Faults,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Inference => "inference",
            Self::Isolation => "isolation",
            Self::Serving => "serving",
            Self::Coldstart => "coldstart",
            Self::Neighbours => "neighbours",
            Self::Tenants => "tenants",
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
    /// The selected suites, in the order of the page.
    pub(crate) fn suites(&self) -> Vec<Suite> {
        let all = Suite::value_variants().iter().copied();
        all.filter(|suite| self.only.is_empty() || self.only.contains(suite)).collect()
    }

    /// Path of a model by name.
    pub(crate) fn model(&self, name: &str) -> PathBuf {
        // This model is in the repository.
        let folder = if name == "digits" {
            self.scripts.join("../../functions/classify-digits/model")
        } else {
            self.models.clone()
        };
        folder.join(format!("{name}.onnx"))
    }

    /// Number of rounds.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Seconds per measurement.
    pub(crate) fn seconds(&self) -> u32 {
        if self.quick { 1 } else { self.seconds }
    }

    /// Command line that repeats this run.
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
