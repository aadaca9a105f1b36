//! Workloads from a file, a preset or a trace.

use crate::error::Problem;
use anyhow::Result;
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use weir_scheduler::sim::{Arrivals, AzureRecipe, Preset, Recipe, Workload};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct WorkloadArgs {
    /// Workload as JSON: `models` are [MB, load s, run s], `requests` are [arrival s, model], and
    /// `capacity` (MB) and `gpus` describe the cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "azure", "functions", "arrivals", "period_s", "minutes", "first_minute", "per_minute", "tenants", "seeds"])]
    workload: Option<PathBuf>,
    /// Generated workload: trace, overload or uniform
    #[arg(long, value_name = "PRESET", conflicts_with = "azure")]
    preset: Option<Preset>,
    /// Day of the public Azure Functions trace: a CSV file of invocations per function and minute
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "period_s", "tenants"])]
    azure: Option<PathBuf>,
    /// Number of functions, each with its own model: the working set
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// Distribution of the arrivals over time, for presets
    #[arg(long, value_enum, default_value_t)]
    arrivals: Spread,
    /// Length of bursts, busy periods or days, for arrivals that have them
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    period_s: f64,
    /// Length of the workload in minutes
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    minutes: u32,
    /// First minute of the Azure trace
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..1_440), conflicts_with = "preset")]
    first_minute: u32,
    /// Requests per minute [default: 325; for a trace, its own rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    per_minute: Option<u32>,
    /// Number of devices [default: 12; for a file, its own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    devices: Option<u32>,
    /// Memory per device in MB [default: 8192; for a file or preset, its own size]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    capacity_mb: Option<u64>,
    /// Number of tenants that the functions are distributed over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tenants: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds, starting at --seed; results are means over the seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Spread {
    /// Equal numbers of each function per minute, at random times
    #[default]
    PerMinute,
    /// Independent arrivals
    Poisson,
    /// Functions are idle most of the time
    Sporadic,
    /// Half of a minute's arrivals come at its start
    Burst,
    /// The rate rises and falls
    Diurnal,
}

impl WorkloadArgs {
    /// The workloads with their seeds.
    pub(super) fn read(&self) -> Result<Vec<(u64, Workload)>> {
        if let Some(path) = &self.workload {
            let bytes = fs::read(path).map_err(|error| unreadable(path, error.into()))?;
            let (workload, _) =
                Workload::from_json(&bytes).map_err(|error| unreadable(path, error.into()))?;
            let workload = workload.on(self.devices, self.capacity_mb);
            let workload =
                workload.map_err(|error| Problem::usage("the workload does not fit there").because(error))?;
            return Ok(vec![(self.seed, workload)]);
        }
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        seeds.map(|seed| Ok((seed, self.make(seed)?))).collect()
    }

    fn make(&self, seed: u64) -> Result<Workload> {
        if let Some(path) = &self.azure {
            let file = fs::File::open(path).map_err(|error| unreadable(path, error.into()))?;
            let workload = self.azure_recipe().read(std::io::BufReader::new(file), seed);
            return workload.map_err(|error| unreadable(path, error.into()).into());
        }
        let made = self.recipe().make(seed);
        made.map_err(|error| Problem::usage("there is no such workload").because(error).into())
    }

    fn recipe(&self) -> Recipe {
        let preset = self.preset.unwrap_or(Preset::Trace).recipe(self.functions);
        Recipe {
            arrivals: match self.arrivals {
                Spread::PerMinute => Arrivals::PerMinute,
                Spread::Poisson => Arrivals::Poisson,
                Spread::Sporadic => Arrivals::Sporadic(self.period_s),
                Spread::Burst => Arrivals::Burst(self.period_s),
                Spread::Diurnal => Arrivals::Diurnal(self.period_s),
            },
            minutes: self.minutes,
            per_minute: self.per_minute.unwrap_or(preset.per_minute),
            devices: self.devices.unwrap_or(preset.devices),
            capacity_mb: self.capacity_mb.unwrap_or(preset.capacity_mb),
            tenants: self.tenants,
            ..preset
        }
    }

    fn azure_recipe(&self) -> AzureRecipe {
        let preset = Preset::Trace.recipe(self.functions);
        AzureRecipe {
            functions: self.functions,
            first_minute: self.first_minute,
            minutes: self.minutes,
            per_minute: self.per_minute,
            devices: self.devices.unwrap_or(preset.devices),
            capacity_mb: self.capacity_mb.unwrap_or(preset.capacity_mb),
        }
    }
}

fn unreadable(path: &Path, error: anyhow::Error) -> Problem {
    Problem::new(format!("cannot use {}", path.display())).because(error)
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=1e6).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it is a time from 0.001 to 1000000 s".into())
    }
}
