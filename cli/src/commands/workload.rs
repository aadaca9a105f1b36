//! Workloads from a file, a preset or a trace.

use crate::error::Problem;
use anyhow::Result;
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use weir_scheduler::sim::{Arrivals, AzureRecipe, Preset, Recipe, Workload};

/// Source of the requests.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Workload as JSON: `models` are [MB, load s, run s], `requests` are [arrival s, model], and
    /// `capacity` (MB) and `gpus` describe the cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "azure", "functions", "arrivals", "period_s", "minutes", "first_minute", "per_minute"])]
    workload: Option<PathBuf>,
    /// Generated workload: trace, overload or uniform
    #[arg(long, value_name = "PRESET", conflicts_with = "azure")]
    preset: Option<Preset>,
    /// Day of the public Azure Functions trace: a CSV file of invocations per function and minute
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "period_s"])]
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
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The cluster and the tenants that a workload is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadUsers {
    /// Number of devices, if not the workload's own.
    pub(crate) devices: Option<u32>,
    /// Memory of a device in MB, if not the workload's own.
    pub(crate) capacity_mb: Option<u64>,
    /// Number of tenants.
    pub(crate) tenants: u32,
}

impl Default for WorkloadUsers {
    fn default() -> Self {
        Self { devices: None, capacity_mb: None, tenants: 1 }
    }
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
    /// Whether a source is named. Otherwise, the requests are those of the preset `trace`.
    pub(crate) fn is_named(&self) -> bool {
        self.workload.is_some() || self.preset.is_some() || self.azure.is_some()
    }

    /// The seed of the first workload.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The source of the requests, for people.
    pub(crate) fn source(&self) -> String {
        match (&self.workload, &self.azure) {
            (Some(path), _) | (None, Some(path)) => path.display().to_string(),
            (None, None) => {
                format!("the preset {}, seed {}", self.preset.unwrap_or(Preset::Trace).as_str(), self.seed)
            }
        }
    }

    /// The workload of the first seed, for any cluster.
    pub(crate) fn read_one(&self) -> Result<Workload> {
        let workload = self.read(WorkloadUsers::default(), 1)?.into_iter().next();
        workload.map(|(_, workload)| workload).ok_or_else(|| Problem::usage("there is no workload").into())
    }

    /// The workloads of `seeds` seeds, each with its seed.
    pub(crate) fn read(&self, users: WorkloadUsers, seeds: u64) -> Result<Vec<(u64, Workload)>> {
        if let Some(path) = &self.workload {
            let bytes = fs::read(path).map_err(|error| unreadable(path, error.into()))?;
            let (workload, _) =
                Workload::from_json(&bytes).map_err(|error| unreadable(path, error.into()))?;
            let workload = workload.on(users.devices, users.capacity_mb);
            let workload =
                workload.map_err(|error| Problem::usage("the workload does not fit there").because(error))?;
            return Ok(vec![(self.seed, workload)]);
        }
        let seeds = self.seed..self.seed.saturating_add(seeds);
        seeds.map(|seed| Ok((seed, self.make(users, seed)?))).collect()
    }

    fn make(&self, users: WorkloadUsers, seed: u64) -> Result<Workload> {
        if let Some(path) = &self.azure {
            let file = fs::File::open(path).map_err(|error| unreadable(path, error.into()))?;
            let workload = self.azure_recipe(users).read(std::io::BufReader::new(file), seed);
            return workload.map_err(|error| unreadable(path, error.into()).into());
        }
        let made = self.recipe(users).make(seed);
        made.map_err(|error| Problem::usage("there is no such workload").because(error).into())
    }

    fn recipe(&self, users: WorkloadUsers) -> Recipe {
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
            devices: users.devices.unwrap_or(preset.devices),
            capacity_mb: users.capacity_mb.unwrap_or(preset.capacity_mb),
            tenants: users.tenants,
            ..preset
        }
    }

    fn azure_recipe(&self, users: WorkloadUsers) -> AzureRecipe {
        let preset = Preset::Trace.recipe(self.functions);
        AzureRecipe {
            functions: self.functions,
            first_minute: self.first_minute,
            minutes: self.minutes,
            per_minute: self.per_minute,
            devices: users.devices.unwrap_or(preset.devices),
            capacity_mb: users.capacity_mb.unwrap_or(preset.capacity_mb),
        }
    }
}

pub(crate) fn unreadable(path: &Path, error: anyhow::Error) -> Problem {
    Problem::new(format!("cannot use {}", path.display())).because(error)
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=1e6).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it is a time from 0.001 to 1000000 s".into())
    }
}
