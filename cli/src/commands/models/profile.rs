//! `weir models profile` and `weir models capacity`.

use crate::client::Client;
use crate::commands::CommandContext;
use crate::error::{Exit, Problem};
use crate::output::{OutputSettings, size as bytes, table};
use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;
use weir_types::api::{ModelCapacity, ProfileEvent, ProfileRequest};
use weir_types::{Measured, Name, Version};

#[derive(Debug, clap::Args)]
pub(super) struct ProfileArgs {
    /// Name of the model
    name: Name,
    /// Version to measure [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Latency objective, in milliseconds: skip larger batches after one that misses it
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    slo_ms: Option<u64>,
    /// Threads per run [default: 1, 2, 4, ... up to the device's processors or 8]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    threads: Vec<u32>,
    /// Items per run [default: 1,2,4,8, or 1 for a model without a batch dimension]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    batch: Vec<u32>,
    /// Concurrent runs [default: one, and as many as the device has slots]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    concurrency: Vec<u32>,
    /// Time per measurement, as 500ms or 2s; at most 10s, and 5 minutes in total [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration_ms)]
    duration: Option<u64>,
    /// Sizes of an input's dynamic dimensions in order, without the batch; may be repeated for
    /// other inputs
    #[arg(long = "dims", value_name = "INPUT=N,...", value_parser = dims)]
    dims: Vec<(String, Vec<u32>)>,
}

#[derive(Debug, clap::Args)]
pub(super) struct CapacityArgs {
    /// Name of the model
    name: Name,
    /// Version to use [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Request rate, in items per second
    #[arg(long, value_name = "R")]
    rate: f64,
    /// Latency objective of an item, in milliseconds
    #[arg(long, value_name = "MS")]
    slo_ms: f64,
}

/// Output of `weir models profile --json`.
#[derive(Debug, Default, Serialize)]
struct Profiled {
    name: String,
    version: Option<Version>,
    device: String,
    measured: Vec<Measured>,
    skipped: Vec<Skipped>,
    left_out: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<String>,
}

#[derive(Debug, Serialize)]
struct Skipped {
    threads: u32,
    batch: u32,
    concurrency: u32,
    why: String,
}

pub(super) fn profile(args: ProfileArgs, client: &Client, context: &CommandContext) -> Result<()> {
    let ProfileArgs { name, version, slo_ms, threads, batch, concurrency, duration, dims } = args;
    let dims: BTreeMap<_, _> = dims.into_iter().collect();
    let version = version.map(Version);
    let request =
        ProfileRequest { version, threads, batch, concurrency, duration_ms: duration, slo_ms, dims };
    let what = format!("profile {name}");
    let stream = client.post_stream(&format!("/v1/models/{name}/profile"), &what, &request)?;
    let output = context.output;
    let mut progress = Progress::new(output, &name);
    let mut profiled = Profiled { name: name.to_string(), ..Profiled::default() };
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| gone().because(error))?;
        // Empty lines are keep-alives.
        if line.is_empty() {
            continue;
        }
        let event = serde_json::from_str(&line).map_err(|error| {
            Problem::new("the node sent a line that cannot be read").because(error).exit(Exit::Refused)
        })?;
        match event {
            ProfileEvent::Started { version, device, configurations, left_out, .. } => {
                progress.begin(configurations);
                profiled = Profiled { version: Some(version), device, left_out, ..profiled };
            }
            ProfileEvent::Measured { measured } => {
                progress.step();
                profiled.measured.push(measured);
            }
            ProfileEvent::Skipped { threads, batch, concurrency, why } => {
                progress.step();
                profiled.skipped.push(Skipped { threads, batch, concurrency, why });
            }
            ProfileEvent::Done { incomplete, .. } => {
                profiled.incomplete = incomplete;
                drop(progress);
                return output.result(&profiled, |profiled| text(profiled, &name));
            }
            ProfileEvent::Failed { error, code } => {
                return Err(Problem::new(format!("cannot {what}: {error} ({code})"))
                    .exit(Exit::Refused)
                    .hint("earlier measurements are kept; `weir status` shows the node's load")
                    .into());
            }
        }
    }
    Err(gone().into())
}

pub(super) fn capacity(args: &CapacityArgs, client: &Client, context: &CommandContext) -> Result<()> {
    let CapacityArgs { name, version, rate, slo_ms } = args;
    let version = version.map_or_else(String::new, |version| format!("&version={version}"));
    let path = format!("/v1/models/{name}/capacity?rate={rate}&slo_ms={slo_ms}{version}");
    let plan: ModelCapacity = client.get(&path, &format!("plan the capacity of {name}"))?;
    context.output.result(&plan, plan_text)
}

/// Table of the measurements, one line per configuration.
pub(super) fn measured(measured: &[Measured]) -> String {
    let rows = measured.iter().map(|one| {
        [
            one.threads.to_string(),
            one.batch.to_string(),
            one.concurrency.to_string(),
            time(one.latency_p50_ns),
            time(one.latency_p95_ns),
            format!("{:.1}/s", one.throughput_per_s),
            bytes(one.memory_bytes),
            one.runs.to_string(),
        ]
    });
    table(["THREADS", "BATCH", "CONCURRENCY", "P50", "P95", "THROUGHPUT", "MEMORY", "RUNS"], rows)
}

fn text(profiled: &Profiled, name: &Name) -> String {
    let mut text = measured(&profiled.measured);
    for Skipped { threads, batch, concurrency, why } in &profiled.skipped {
        text.push_str(&format!(
            "\nskipped threads {threads}, batch {batch}, concurrency {concurrency}: {why}"
        ));
    }
    if profiled.left_out > 0 {
        text.push_str(&format!(
            "\nleft out {} combinations that need more processors than the device has",
            profiled.left_out
        ));
    }
    if let Some(why) = &profiled.incomplete {
        text.push_str(&format!("\nmeasurements are incomplete: {why}"));
    }
    let version = profiled.version.map_or_else(String::new, |version| format!(":{version}"));
    text.push_str(&format!(
        "\nstored in the profile of {name}{version} on {}; `weir models capacity {name} --rate R --slo-ms MS` chooses a configuration",
        profiled.device
    ));
    text
}

fn plan_text(plan: &ModelCapacity) -> String {
    let Measured { threads, batch, concurrency, latency_p95_ns, .. } = plan.configuration;
    let instance = |count: u64| if count == 1 { "instance" } else { "instances" };
    let mut facts = vec![
        ("instances", plan.instances.to_string()),
        ("each with", format!("threads {threads}, batch {batch}, concurrency {concurrency}")),
        ("run", format!("{} (p95)", time(latency_p95_ns))),
        ("throughput", format!("{:.1}/s for a rate of {:.1}/s", plan.throughput_per_s, plan.rate_per_s)),
        (
            "memory",
            format!(
                "{} for {} {}, and {} once per node",
                bytes(plan.memory_bytes),
                plan.instances,
                instance(plan.instances),
                bytes(plan.resident_bytes)
            ),
        ),
        ("measured on", plan.kind.clone()),
    ];
    if plan.sessions > u64::from(plan.slots) {
        let more = format!(
            "{} concurrent runs, and this node's device has {} slots: add nodes, or raise models.slots",
            plan.sessions, plan.slots
        );
        facts.push(("takes", more));
    }
    facts.iter().map(|(name, value)| format!("{name:<13}{value}\n")).collect()
}

fn time(time_ns: u64) -> String {
    format!("{:.2?}", Duration::from_nanos(time_ns))
}

fn gone() -> Problem {
    Problem::new("the node closed the connection before profiling ended")
        .exit(Exit::Unreachable)
        .hint("it may be shutting down; `weir status` shows whether it answers")
}

/// Parses `500ms`, `2s`, or a number of milliseconds.
fn duration_ms(text: &str) -> Result<u64, String> {
    let (number, unit_ms) = match text.strip_suffix("ms") {
        Some(number) => (number, 1.0),
        None => text.strip_suffix('s').map_or((text, 1.0), |number| (number, 1e3)),
    };
    let ms = number.trim().parse::<f64>().ok().map(|number| (number * unit_ms).round());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the bounds")]
    ms.filter(|ms| (1.0..=1e9).contains(ms))
        .map(|ms| ms as u64)
        .ok_or_else(|| "a time is a number with ms or s, such as 500ms".to_owned())
}

/// Parses `INPUT=N,N`.
fn dims(text: &str) -> Result<(String, Vec<u32>), String> {
    let bad = || "write INPUT=N,N,... with a size for each dimension that may vary".to_owned();
    // An input's name may contain `=`; the sizes follow the last one.
    let (input, sizes) = text.rsplit_once('=').ok_or_else(bad)?;
    let sizes: Result<Vec<u32>, _> = sizes.split(',').map(|size| size.trim().parse()).collect();
    Ok((input.to_owned(), sizes.map_err(|_| bad())?))
}

/// Progress bar on standard error.
struct Progress {
    output: OutputSettings,
    what: String,
    bar: ProgressBar,
}

impl Progress {
    fn new(output: OutputSettings, name: &Name) -> Self {
        let what = format!("profiling {name}");
        Self { output, bar: output.spinner(&what), what }
    }

    fn begin(&mut self, configurations: usize) {
        self.bar.finish_and_clear();
        self.bar = self.output.count_bar(&self.what, configurations as u64);
    }

    fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_dimensions_are_parsed() {
        assert_eq!(["500ms", "2s", "0.5s", "70"].map(duration_ms), [Ok(500), Ok(2_000), Ok(500), Ok(70)]);
        for bad in ["", "s", "-1s", "0", "1h", "nan", "1e99s"] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
        assert_eq!(dims("a=b=1, 2"), Ok(("a=b".to_owned(), vec![1, 2])));
        for bad in ["x", "x=", "x=1,", "x=-1"] {
            assert!(dims(bad).is_err(), "{bad}");
        }
    }
}
