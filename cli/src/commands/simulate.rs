//! `weir simulate`: runs the production scheduler in virtual time.

mod bound;
mod replay;
mod reproduce;
mod slo;
mod workflows;

use crate::commands::workload::{WorkloadArgs, WorkloadUsers, seconds};
use crate::commands::{CommandContext, plot};
use crate::error::Problem;
use crate::output::table;
use anyhow::Result;
use bound::LatencyBracket;
use clap::ValueEnum;
use serde::Serialize;
use slo::SloArgs;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_scheduler::sim::{
    Chart, ChartKind, Losses, SimulatedBatching, SimulatedCluster, SimulatedKind, SimulatedSchedule,
    SimulationMetrics, Workload, run as play,
};
use weir_scheduler::{
    BusyChoice, DeviceRule, ExclusiveOptions, PolicyKind, PolicyOptions, SloSettings, VictimKind,
};

/// Simulate scheduling policies on a workload, in virtual time
///
/// Uses the same scheduler as the nodes, with simulated devices, loads and runs. Requests come from
/// a file, a preset, or a trace of Azure Functions. Invariants are checked on every step: no
/// request is lost or runs twice, memory stays within its bounds, and granted allocations stay.
/// Equal arguments give equal results.
///
/// Columns of the table, each a mean over the seeds:
///
///   MEAN, P50, P99 S  latency from arrival to completion, in seconds, with its VARIANCE
///   MISSES            requests whose model was not in the memory of their device
///   FALSE             misses whose model was in the memory of another device
///   BUSY              part of the devices' time spent computing
///   COPIES            devices that hold the most requested model, on average
///   WAIT MAX S        longest time from arrival to start, in seconds
///   FAIRNESS          Jain's index over the tenants' mean latencies: 1 if all are equal
///   LOST              requests that were rejected
///
/// With --slo, a second table has the GOODPUT (requests per second that kept their objective), the
/// parts of requests that KEPT it, were TURNED AWAY, MISSED it, or missed it ON TRIAL (admitted
/// although an idle cluster would be too late), and the COST of the device time of each request.
///
/// With --bound, a table compares each mean with a lower BOUND that no policy can beat, even if it
/// knew all arrivals, and with the best KNOWN schedule, which a search with that knowledge found.
///
/// Examples:
///   weir simulate --preset trace --policy finish-first --policy lalb-o3 --seeds 10
///   weir simulate --preset overload --policy all --bound
///   weir simulate --workload day.json --policy lalb --dump schedule.json
///   weir simulate --azure invocations_per_function.csv --functions 50 --policy all --plots out
///   weir simulate --preset overload --per-minute 1100 --slo 20x \
///                 --policy finish-first --policy clockwork
///   weir simulate --preset trace --rule committed-work --hand-over-ms 2 --fail-share 0.1
///   weir simulate reproduce --plots out
///   weir simulate workflows --slo 20ms --slo 80ms --seeds 10
///   weir simulate --replay record.jsonl
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    command: Option<SimulateCommand>,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    users: UsersArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    slo: SloArgs,
    /// Compute a lower bound on the mean latency of any policy, and a schedule close to the best one,
    /// with about ten seconds of computing for each seed
    #[arg(long)]
    bound: bool,
    /// Write the schedule of the first policy and seed as JSON: the workload's format, with
    /// placements and times
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Write SVG charts of mean latency, p99, misses and utilisation to this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Replay a recording of a running scheduler, and verify that the decisions are the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "preset", "azure", "policies", "bound", "dump", "plots"])]
    replay: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum SimulateCommand {
    Reproduce(reproduce::ReproduceArgs),
    Workflows(workflows::WorkflowsArgs),
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
struct UsersArgs {
    /// Number of devices [default: 12; for a file, its own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    devices: Option<u32>,
    /// Memory per device in MB [default: 8192; for a file or preset, its own size]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    capacity_mb: Option<u64>,
    /// Number of tenants that the functions are distributed over
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["workload", "azure"], value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tenants: u32,
    /// Number of seeds, starting at --seed; results are means over the seeds
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "workload", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policies")]
struct PolicyArgs {
    /// Policy, or `all`; may be repeated [default: finish-first]
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Number of times lalb-o3 may skip a request before it places the request at any cost
    #[arg(long, value_name = "N", default_value_t = 25)]
    o3_limit: u32,
    /// Busy device that lalb and lalb-o3 wait for
    #[arg(long, value_enum, default_value_t)]
    busy: Busy,
    /// Eviction policy [default: the policy's published choice]
    #[arg(long, value_enum)]
    victims: Option<Victims>,
    /// exclusive: reassign devices to queues longer, per device, than 150 % of another queue
    #[arg(long)]
    stealing: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Busy {
    /// The first device that is faster than a load
    #[default]
    First,
    /// The device that becomes free first
    Soonest,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Victims {
    /// The least recently used models
    Lru,
    /// The models with the lowest expected cost of eviction
    LeastLoss,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Devices")]
struct DeviceArgs {
    /// When a device accepts one more request
    #[arg(long, value_enum, default_value_t)]
    rule: Rule,
    /// Concurrent requests per device; under committed-work, concurrent runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    slots: u32,
    /// Nodes to distribute the devices over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Use mixed devices: one in three is small and fast, one in three large and slow
    #[arg(long)]
    mixed: bool,
    /// Mean time between node losses; a loss ends all runs on the node
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    lose_every_s: Option<f64>,
    /// Mean time until a lost node returns with empty memory
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds, requires = "lose_every_s")]
    away_s: f64,
    /// Maximum batch size of runs of one model that are ready together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    batch_max: u32,
    /// Cost of each further run in a batch, as a fraction of one run
    #[arg(long, value_name = "PART", default_value_t = 0.5, value_parser = part)]
    batch_marginal: f64,
    /// Time from a decision until the device can start the request, under committed-work
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = milliseconds)]
    hand_over_ms: f64,
    /// Fraction of the requests that fail or are cancelled during their run
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    fail_share: f64,
    /// Hide the models' costs from the scheduler, which then has to learn them
    #[arg(long)]
    unknown_costs: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Rule {
    /// While fewer requests run there than it has slots: the papers' rule
    #[default]
    CountedInvocations,
    /// While the work committed to it is below a bound, as on a node
    CommittedWork,
}

/// One row of the result.
#[derive(Debug, Serialize)]
struct Row {
    policy: PolicyName,
    /// Whether requests that would miss their SLO were rejected on arrival; `None` without SLOs.
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<bool>,
    #[serde(flatten)]
    metrics: SimulationMetrics,
    #[serde(flatten)]
    bracket: Option<BracketedMean>,
}

/// A mean latency compared with that of other schedules.
#[derive(Debug, Clone, Copy, Serialize)]
struct BracketedMean {
    #[serde(flatten)]
    bracket: LatencyBracket,
    /// The mean latency relative to the lower bound.
    of_bound: f64,
}

/// A policy, serialized by its name.
#[derive(Debug, Clone, Copy)]
struct PolicyName(PolicyKind);

impl Serialize for PolicyName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

pub(crate) fn run(args: &SimulateArgs, context: &CommandContext) -> Result<()> {
    match &args.command {
        Some(SimulateCommand::Reproduce(args)) => return reproduce::run(args, context),
        Some(SimulateCommand::Workflows(args)) => return workflows::run(args, context),
        None => {}
    }
    if let Some(path) = &args.replay {
        return replay::run(path, context);
    }
    let policies = args.policy.kinds()?;
    let UsersArgs { devices, capacity_mb, tenants, seeds } = args.users;
    let workloads = args.workload.read(WorkloadUsers { devices, capacity_mb, tenants }, seeds)?;
    let bracket = match args.bound {
        true => Some(LatencyBracket::measure(&workloads, &args.cluster(args.workload.seed()))?),
        false => None,
    };
    let mut rows = Vec::with_capacity(policies.len());
    let begun = Instant::now();
    let mut decisions = 0;
    let ways = args.slo.settings();
    for (policy, way) in policies.into_iter().flat_map(|policy| ways.iter().map(move |way| (policy, way))) {
        let mut all = Vec::with_capacity(workloads.len());
        for (seed, workload) in &workloads {
            let schedule = play_one(args, workload, policy, way, *seed)?;
            decisions += schedule.decisions;
            let metrics = SimulationMetrics::from_schedule(workload, &schedule);
            if let Some(path) = args.dump.as_deref().filter(|_| rows.is_empty() && all.is_empty()) {
                dump(path, workload, policy, &schedule, &metrics)?;
            }
            all.push(metrics);
        }
        let admission = args.slo.rule().map(|_| way.admission);
        let metrics = SimulationMetrics::mean(&all);
        let bracket = bracket.map(|bracket: LatencyBracket| BracketedMean {
            bracket,
            of_bound: metrics.avg / bracket.bound_s,
        });
        rows.push(Row { policy: PolicyName(policy), admission, metrics, bracket });
    }
    let taken_s = begun.elapsed().as_secs_f64();
    let each_us = taken_s * 1e6 / decisions.max(1) as f64;
    context
        .output
        .note(format!("{decisions} decisions in {taken_s:.2} s, {each_us:.2} µs each, simulation included; --help explains the columns"));
    if let Some(folder) = &args.plots {
        plot::draw(folder, &charts(&rows))?;
    }
    context.output.result(&rows, |rows| text(rows))
}

impl SimulateArgs {
    fn cluster(&self, seed: u64) -> SimulatedCluster {
        SimulatedCluster { slo: self.slo.rule(), jitter: self.slo.jitter(), ..self.devices.cluster(seed) }
    }
}

fn play_one(
    args: &SimulateArgs,
    workload: &Workload,
    policy: PolicyKind,
    way: &SloSettings,
    seed: u64,
) -> Result<SimulatedSchedule> {
    let options = PolicyOptions { seed, ..args.policy.options() };
    let mut cluster = args.cluster(seed);
    cluster.settings.slo = way.clone();
    play(workload, &cluster, policy.build(&options)).map_err(|violation| {
        Problem::new(format!("{policy} violated an invariant with seed {seed}"))
            .because(violation)
            .hint(format!("replay it with `{}`", replay(policy, seed)))
            .into()
    })
}

/// Command line that replays one policy and seed.
fn replay(policy: PolicyKind, seed: u64) -> String {
    let mut words = vec!["weir".to_owned()];
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        let name = word.split('=').next().unwrap_or_default();
        if ["--policy", "--seed", "--seeds"].contains(&name) {
            if !word.contains('=') {
                given.next();
            }
        } else {
            words.push(word);
        }
    }
    words.push(format!("--policy {policy} --seed {seed}"));
    words.join(" ")
}

fn dump(
    path: &Path,
    workload: &Workload,
    policy: PolicyKind,
    schedule: &SimulatedSchedule,
    metrics: &SimulationMetrics,
) -> Result<()> {
    let failed =
        |error: anyhow::Error| Problem::new(format!("cannot write {}", path.display())).because(error);
    let file = File::create(path).map_err(|error| failed(error.into()))?;
    let mut out = BufWriter::new(file);
    workload.to_json(policy.as_str(), schedule, metrics, &mut out).map_err(|error| failed(error.into()))?;
    std::io::Write::flush(&mut out).map_err(|error| failed(error.into()))?;
    Ok(())
}

fn text(rows: &[Row]) -> String {
    let mut more = String::new();
    if rows.iter().any(|row| row.admission.is_some()) {
        more = format!("\n{}", slos(rows));
    }
    if rows.iter().any(|row| row.bracket.is_some()) {
        more = format!("{more}\n{}", brackets(rows));
    }
    let header = [
        "POLICY",
        "MEAN S",
        "P50 S",
        "P99 S",
        "VARIANCE",
        "MISSES",
        "FALSE",
        "BUSY",
        "COPIES",
        "WAIT MAX S",
        "FAIRNESS",
        "LOST",
    ];
    let cells = rows.iter().map(|row| {
        let m = &row.metrics;
        [
            row.name(),
            format!("{:.3}", m.avg),
            format!("{:.3}", m.p50),
            format!("{:.3}", m.p99),
            format!("{:.2}", m.var),
            format!("{:.2} %", 100.0 * m.miss),
            format!("{:.1} %", 100.0 * m.false_miss),
            format!("{:.1} %", 100.0 * m.sm_util),
            format!("{:.2}", m.dup_top),
            format!("{:.2}", m.wait_max),
            format!("{:.3}", m.fairness),
            format!("{:.2} %", 100.0 * m.rejected),
        ]
    });
    table(header, cells) + &more
}

/// Table of mean latencies, relative to the lower bound.
fn brackets(rows: &[Row]) -> String {
    let header = ["POLICY", "MEAN S", "BOUND S", "OF BOUND", "KNOWN S", "OF BOUND"];
    let cells = rows.iter().filter_map(|row| {
        let BracketedMean { bracket: LatencyBracket { bound_s, known_s }, of_bound } = row.bracket?;
        Some([
            row.name(),
            format!("{:.3}", row.metrics.avg),
            format!("{bound_s:.3}"),
            format!("{of_bound:.3}"),
            format!("{known_s:.3}"),
            format!("{:.3}", known_s / bound_s),
        ])
    });
    table(header, cells)
}

/// Table of the results of requests with an SLO.
fn slos(rows: &[Row]) -> String {
    let header = ["POLICY", "GOODPUT /S", "KEPT", "TURNED AWAY", "MISSED", "ON TRIAL", "COST EACH"];
    let percent = |part: f64| format!("{:.2} %", 100.0 * part);
    let cells = rows.iter().map(|row| {
        let m = &row.metrics;
        [
            row.name(),
            format!("{:.3}", m.goodput),
            percent(m.slo_met),
            percent(m.slo_rejected),
            percent(m.slo_missed),
            percent(m.slo_on_trial),
            format!("{:.3}", m.cost),
        ]
    });
    table(header, cells)
}

impl Row {
    fn name(&self) -> String {
        let admission = if self.admission == Some(true) { " + admission" } else { "" };
        format!("{}{admission}", self.policy.0)
    }
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    type Measure = fn(&SimulationMetrics) -> f64;
    let measures: [(&str, &str, &str, Measure); 4] = [
        ("mean-latency", "Mean latency", "s", |m| m.avg),
        ("p99-latency", "99th percentile of the latency", "s", |m| m.p99),
        ("misses", "Misses", "part of requests", |m| m.miss),
        ("utilisation", "Utilisation", "part of device time", |m| m.sm_util),
    ];
    let chart = |(name, title, y, measure): (&str, &str, &str, Measure)| Chart {
        name: name.into(),
        title: title.into(),
        x: "policy".into(),
        y: y.into(),
        labels: rows.iter().map(Row::name).collect(),
        series: vec![("mean over seeds".into(), rows.iter().map(|row| measure(&row.metrics)).collect())],
        kind: ChartKind::Bars,
    };
    let of_slos: [(&str, &str, &str, Measure); 3] = [
        ("goodput", "Goodput: requests that kept their SLO", "per second", |m| m.goodput),
        ("slo-rejections", "Requests turned away", "part of those with an SLO", |m| m.slo_rejected),
        ("slo-misses", "Requests that were served and missed their SLO", "part of those with an SLO", |m| {
            m.slo_missed
        }),
    ];
    let of_slos = of_slos.into_iter().filter(|_| rows.iter().any(|row| row.admission.is_some()));
    measures.into_iter().chain(of_slos).map(chart).collect()
}

impl PolicyArgs {
    fn kinds(&self) -> Result<Vec<PolicyKind>> {
        let mut kinds = Vec::new();
        for name in &self.policies {
            if name == "all" {
                kinds.extend(PolicyKind::ALL);
            } else {
                kinds.push(name.parse().map_err(|error| Problem::usage(format!("{error}")))?);
            }
        }
        if kinds.is_empty() {
            kinds.push(PolicyKind::default());
        }
        Ok(kinds)
    }

    fn options(&self) -> PolicyOptions {
        PolicyOptions {
            o3_limit: self.o3_limit,
            busy_choice: match self.busy {
                Busy::First => BusyChoice::First,
                Busy::Soonest => BusyChoice::Soonest,
            },
            exclusive: ExclusiveOptions { stealing: self.stealing, models_expected: None },
            victims: self.victims.map(|victims| match victims {
                Victims::Lru => VictimKind::LeastRecentlyUsed,
                Victims::LeastLoss => VictimKind::LeastLoss,
            }),
            ..PolicyOptions::default()
        }
    }
}

impl DeviceArgs {
    fn cluster(&self, seed: u64) -> SimulatedCluster {
        let ns = |seconds: f64| Duration::from_secs_f64(seconds).as_nanos().try_into().unwrap_or(u64::MAX);
        SimulatedCluster {
            slots: self.slots,
            rule: match self.rule {
                Rule::CountedInvocations => DeviceRule::CountedInvocations,
                Rule::CommittedWork => DeviceRule::CommittedWork,
            },
            hand_over_ns: ns(self.hand_over_ms / 1e3),
            faults: self.fail_share,
            nodes: self.nodes,
            kinds: if self.mixed { SimulatedKind::MIXED.to_vec() } else { Vec::new() },
            losses: self.lose_every_s.map(|every_s| Losses {
                every_ns: ns(every_s),
                away_ns: ns(self.away_s),
                seed,
            }),
            batching: SimulatedBatching { batch_max: self.batch_max, marginal: self.batch_marginal },
            tells_costs: !self.unknown_costs,
            ..SimulatedCluster::default()
        }
    }
}

/// A time of up to an hour, in milliseconds.
fn milliseconds(text: &str) -> Result<f64, String> {
    let ms: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=3.6e6).contains(&ms) { Ok(ms) } else { Err("it is a time, from 0 to 3600000".into()) }
}

fn part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err("it is a part, from 0 to 1".into()) }
}
