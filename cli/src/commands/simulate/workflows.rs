//! `weir simulate workflows`.

use super::slo::{PlacementArgs, time_ns};
use crate::commands::CommandContext;
use crate::commands::workload::unreadable;
use crate::error::Problem;
use crate::output::table;
use anyhow::Result;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use weir_scheduler::WorkflowPolicyKind;
use weir_scheduler::sim::{
    WorkflowMetrics, WorkflowOptions, WorkflowPreset, WorkflowWorkload, run_workflows,
};
use weir_types::Cost;

/// Simulate workflows whose steps are placed separately, on devices of different kinds
///
/// Each device runs one step at a time. Policies: `fifo` starts the ready steps in the order in
/// which their workflows arrived, `clockwork` runs whole workflows on one device, the earliest due
/// time first, and `admission` (Weir) reserves a time on a device for each step, or rejects the
/// workflow.
///
/// Columns of the table, each a mean over the seeds:
///
///   LATENCY /S  workflows per second that ended within their maximum latency
///   COST /S     workflows per second that ended within their maximum cost
///   BOTH /S     workflows per second that met both objectives
///   REJECTED    requests that were rejected on arrival
///   GIVEN UP    requests that were given up while they waited
///   MISSED      requests that were admitted and missed an objective
///   COST EACH   mean cost of the workflows that ended
///   MEAN MS     mean latency of the workflows that ended
///   BUSY        part of the devices' time spent loading and running
///
/// Examples:
///   weir simulate workflows
///   weir simulate workflows --slo 20ms --slo 40ms --cost-slo 60 --seeds 10
///   weir simulate workflows --workload flows.json --policy admission --jitter 0.3
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct WorkflowsArgs {
    /// Workload as JSON: devices, models, workflows and requests
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "seeds"])]
    workload: Option<PathBuf>,
    /// Generated workload: pipelines (an ensemble and a cascade on four CPUs and a GPU)
    #[arg(long, value_name = "PRESET", default_value = "pipelines")]
    preset: WorkflowPreset,
    /// Maximum latency of all requests, as 500ms or 30s; may be repeated [default: that of each
    /// workflow]
    #[arg(long = "slo", value_name = "TIME", value_parser = time_ns)]
    slos_ns: Vec<u64>,
    /// Maximum cost of all requests, including loads [default: that of each workflow]
    #[arg(long, value_name = "COST")]
    cost_slo: Option<Cost>,
    /// Policy: fifo, clockwork, admission or node (the scheduler of a node); may be repeated
    /// [default: all]
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<WorkflowPolicyKind>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds, starting at --seed; results are means over the seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    #[command(flatten)]
    placement: PlacementArgs,
}

/// One row of the result.
#[derive(Debug, Serialize)]
struct WorkflowRow {
    policy: &'static str,
    /// Maximum latency of all requests; `None` for that of each workflow.
    slo_ms: Option<f64>,
    #[serde(flatten)]
    metrics: WorkflowMetrics,
}

pub(super) fn run(args: &WorkflowsArgs, context: &CommandContext) -> Result<()> {
    let workloads = args.workloads()?;
    let policies = args.policies(&workloads)?;
    let own = [None];
    let given: Vec<Option<u64>> = args.slos_ns.iter().copied().map(Some).collect();
    let mut rows = Vec::new();
    for latency_ns in if given.is_empty() { &own[..] } else { &given } {
        let options = args.options(*latency_ns);
        for policy in &policies {
            let mut all = Vec::with_capacity(workloads.len());
            for (seed, workload) in &workloads {
                let schedule = run_workflows(workload, *policy, &options).map_err(|violation| {
                    Problem::new(format!("{policy} violated an invariant with seed {seed}"))
                        .because(violation)
                        .hint("this is a fault in Weir: report it with the command")
                })?;
                all.push(WorkflowMetrics::from_schedule(workload, &options, &schedule));
            }
            let slo_ms = latency_ns.map(|latency_ns| latency_ns as f64 / 1e6);
            rows.push(WorkflowRow { policy: policy.as_str(), slo_ms, metrics: WorkflowMetrics::mean(&all) });
        }
    }
    context.output.result(&rows, |rows| text(rows))
}

impl WorkflowsArgs {
    fn workloads(&self) -> Result<Vec<(u64, WorkflowWorkload)>> {
        if let Some(path) = &self.workload {
            let bytes = fs::read(path).map_err(|error| unreadable(path, error.into()))?;
            let workload =
                WorkflowWorkload::from_json(&bytes).map_err(|error| unreadable(path, error.into()))?;
            return Ok(vec![(self.seed, workload)]);
        }
        let seeds = self.seed..self.seed.saturating_add(self.seeds);
        seeds.map(|seed| Ok((seed, self.preset.make(seed)?))).collect()
    }

    /// The named policies, or all that the workloads allow.
    fn policies(&self, workloads: &[(u64, WorkflowWorkload)]) -> Result<Vec<WorkflowPolicyKind>> {
        let kinds_max = WorkflowPolicyKind::NODE_KINDS_MAX;
        let has_many_kinds = workloads.iter().any(|(_, workload)| workload.kinds_len() > kinds_max);
        if has_many_kinds && self.policies.contains(&WorkflowPolicyKind::Node) {
            let text = format!("the policy node has at most {kinds_max} kinds of devices");
            return Err(Problem::new(text).hint("simulate the other policies: --policy admission").into());
        }
        Ok(if self.policies.is_empty() {
            let is_possible =
                |policy: &WorkflowPolicyKind| !has_many_kinds || *policy != WorkflowPolicyKind::Node;
            WorkflowPolicyKind::ALL.into_iter().filter(is_possible).collect()
        } else {
            self.policies.clone()
        })
    }

    fn options(&self, latency_ns: Option<u64>) -> WorkflowOptions {
        WorkflowOptions {
            latency_ns,
            cost_max: self.cost_slo,
            jitter: self.placement.jitter,
            settings: self.placement.settings(),
        }
    }
}

fn text(rows: &[WorkflowRow]) -> String {
    let header = [
        "SLO MS",
        "POLICY",
        "LATENCY /S",
        "COST /S",
        "BOTH /S",
        "REJECTED",
        "GIVEN UP",
        "MISSED",
        "COST EACH",
        "MEAN MS",
        "BUSY",
    ];
    let percent = |part: f64| format!("{:.2} %", 100.0 * part);
    let cells = rows.iter().map(|row| {
        let m = &row.metrics;
        [
            row.slo_ms.map_or("-".to_owned(), |slo_ms| slo_ms.to_string()),
            row.policy.to_owned(),
            format!("{:.1}", m.latency_goodput),
            format!("{:.1}", m.cost_goodput),
            format!("{:.1}", m.goodput),
            percent(m.rejected),
            percent(m.given_up),
            percent(m.missed),
            format!("{:.1}", m.cost),
            format!("{:.1}", m.latency_s * 1e3),
            percent(m.busy),
        ]
    });
    table(header, cells)
}
