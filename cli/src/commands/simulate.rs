//! `weir simulate`: runs the production scheduler in virtual time.

mod bound;
mod replay;
mod reproduce;
mod rows;
mod slo;
mod workflows;

use crate::commands::workload::{WorkloadArgs, WorkloadUsers, seconds};
use crate::commands::{CommandContext, plot};
use crate::error::Problem;
use anyhow::Result;
use bound::LatencyBracket;
use clap::ValueEnum;
use rows::{BracketedMean, PolicyName, Row};
use slo::SloArgs;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_scheduler::sim::{
    Losses, SimulatedBatching, SimulatedCluster, SimulatedKind, SimulatedSchedule, SimulationMetrics,
    Workload, run as play,
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
    /// Groups to divide the nodes into, each with its own dispatcher
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,
    /// Interval between reports of the groups' work, from which the group of a request is chosen
    #[arg(long, value_name = "MS", default_value_t = 1_000.0, value_parser = milliseconds)]
    report_interval_ms: f64,
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
        plot::draw(folder, &rows::charts(&rows))?;
    }
    context.output.result(&rows, |rows| rows::text(rows))
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
    play(workload, &cluster, || policy.build(&options)).map_err(|violation| {
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
            groups: self.groups,
            report_interval_ns: ns(self.report_interval_ms / 1e3),
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
