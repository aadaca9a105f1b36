//! `weir simulate reproduce`.

use crate::commands::{CommandContext, plot};
use crate::error::Problem;
use crate::output::table;
use anyhow::Result;
use std::path::PathBuf;
use weir_scheduler::sim::{Compared, Figure, Reproduction, SimulationError, Table41Row, reproduce};

/// Compare Weir's results with published and reference results
///
/// First prints three columns for "Locality-aware load balancing" and "Kernel-as-a-Service": the
/// published numbers, those of an independent reference, and those of Weir. Then compares all
/// policies at a working set of 35: under the papers' device rules, and with slots and batches. A
/// missing reference means that no assumption reproduced the paper's number. Last comes Table 4.1
/// of "Kernel-as-a-Service", workflows on CPUs and a GPU; `weir simulate workflows` varies it.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ReproduceArgs {
    /// First seed of the workloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds; results are means over the seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Write the papers' figures as SVG files to this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

pub(super) fn run(args: &ReproduceArgs, context: &CommandContext) -> Result<()> {
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(args.seeds)).collect();
    let all = reproduce(&seeds).map_err(failed)?;
    if let Some(folder) = &args.plots {
        plot::draw(folder, &all.charts)?;
    }
    context.output.result(&all, text)
}

fn failed(error: SimulationError) -> Problem {
    let hint = match &error {
        SimulationError::Violation { seed, .. } => {
            format!("replay it with `weir simulate reproduce --seed {seed} --seeds 1`")
        }
        SimulationError::Workload(_) => "this is a fault in Weir".into(),
    };
    Problem::new("the simulation did not come to its end").because(error).hint(hint)
}

fn text(all: &Reproduction) -> String {
    let number = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.2}"));
    let figures = all.figures.iter().map(|Figure { what, paper, reference, weir }| {
        [what.clone(), number(*paper), number(*reference), number(Some(*weir))]
    });
    let compared = all.compared.iter().map(|Compared { preset, policy, metrics: m }| {
        [
            (*preset).to_owned(),
            policy.clone(),
            format!("{:.3}", m.avg),
            format!("{:.2}", m.p99),
            format!("{:.2}", m.wait_max),
            format!("{:.2} %", 100.0 * m.miss),
            format!("{:.1} %", 100.0 * m.sm_util),
        ]
    });
    format!(
        "{}\n\n{}\n\n{}",
        table(["FIGURE", "PAPER", "REFERENCE", "WEIR"], figures),
        table(["WORKLOAD", "POLICY", "MEAN S", "P99 S", "WAIT MAX S", "MISSES", "BUSY"], compared),
        workflows(&all.workflows)
    )
}

/// Table 4.1: goodput by latency and by cost, in the thesis and here.
fn workflows(rows: &[Table41Row]) -> String {
    let header = ["SLO MS", "POLICY", "PAPER LATENCY", "PAPER COST", "LATENCY /S", "COST /S", "BOTH /S"];
    let cells = rows.iter().map(|row| {
        [
            row.slo_ms.to_string(),
            row.policy.to_owned(),
            row.paper_latency_goodput.map_or("-".to_owned(), |goodput| format!("{goodput:.3}")),
            row.paper_cost_goodput.map_or("-".to_owned(), |goodput| format!("{goodput:.2}")),
            format!("{:.1}", row.metrics.latency_goodput),
            format!("{:.1}", row.metrics.cost_goodput),
            format!("{:.1}", row.metrics.goodput),
        ]
    });
    table(header, cells)
}
