//! `weir simulate reproduce`.

use super::plot;
use crate::commands::Context;
use crate::error::Problem;
use crate::output::table;
use anyhow::Result;
use std::path::PathBuf;
use weir_scheduler::sim::{Compared, Figure, Reproduction, SimulationError, reproduce};

/// Print the papers' figures, an independent reference's, and Weir's side by side
///
/// First the numbers of "Locality-aware load balancing" and "Kernel-as-a-Service", then all policies
/// beside each other at a working set of 35: under the papers' device rules, and with slots and
/// batches. Where the papers' numbers could not be had under any assumption, no reference is shown.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ReproduceArgs {
    /// The first seed of the workloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many; results are their means
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Draw the papers' figures as SVG files in this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

pub(super) fn run(args: &ReproduceArgs, context: &Context) -> Result<()> {
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
        "{}\n\n{}",
        table(["FIGURE", "PAPER", "REFERENCE", "WEIR"], figures),
        table(["WORKLOAD", "POLICY", "MEAN S", "P99 S", "WAIT MAX S", "MISSES", "BUSY"], compared)
    )
}
