//! A cluster of three nodes at default settings, compared with the simulator's prediction for the
//! same arrivals, under every policy.
//!
//! The nodes run fake models with declared times, so the comparison covers placement and
//! scheduling.

mod live;

use crate::args::Args;
use crate::report::{Section, TextTable};
use anyhow::{Context as _, Result};
use serde::Serialize;
use weir_scheduler::sim::{
    ModelCosts, Preset, Recipe, SimRequest, SimulatedCluster, Workload, run as simulate,
};
use weir_scheduler::{PolicyKind, PolicyOptions};

const NODES: u32 = 3;
const WORKLOADS: [Preset; 2] = [Preset::Trace, Preset::Overload];
/// Number of functions, each with its own model. A node holds two or three models at once, and the
/// ratio to the number of devices is about that of the LALB paper with a working set of 35.
const FUNCTIONS: u32 = 10;
const MINUTES: u32 = 8;
/// Speed-up over the times of the LALB paper.
const FASTER: u64 = 10;
const SEED: u64 = 1;
/// Time from a placement until the device starts the run, between processes of this machine.
const HAND_OVER_NS: u64 = 1_000_000;
/// Deadline of a call by default.
const DEADLINE_NS: u64 = 30_000_000_000;

/// Result of the workload.
#[derive(Debug, Serialize)]
struct WorkloadOutcome {
    /// Of the calls that were answered before their deadline.
    mean_ms: f64,
    p99_ms: f64,
    /// Loads of models.
    loads: f64,
    /// Calls that were not answered before their deadline.
    late: usize,
}

#[derive(Debug, Serialize)]
struct Compared {
    workload: &'static str,
    policy: String,
    live: WorkloadOutcome,
    simulated: WorkloadOutcome,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let slots = slots()?;
    let mut compared = Vec::new();
    for preset in WORKLOADS {
        let workload = workload(preset, slots, if args.quick { 1 } else { MINUTES })?;
        for policy in PolicyKind::ALL {
            let simulated = predict(&workload, policy, slots)?;
            let scratch = tempfile::tempdir()?;
            let live = live::play(args, &workload, policy, scratch.path())
                .with_context(|| format!("the cluster with {policy} failed"))?;
            let name = preset.as_str();
            eprintln!(
                "{name}, {policy}: mean {:.0} ms, {:.0} simulated; p99 {:.0} ms, {:.0} simulated",
                live.mean_ms, simulated.mean_ms, live.p99_ms, simulated.p99_ms
            );
            compared.push(Compared { workload: name, policy: policy.to_string(), live, simulated });
        }
    }
    Ok(Section {
        key: "cluster",
        notes: vec![format!(
            "Functions with a model of their own (Table I of the LALB paper at a tenth of its times, popularity, memory and arrivals of the presets `trace` and `overload`, {FUNCTIONS} functions, \
             {} calls a minute of the preset, seed {SEED}), called at {NODES} nodes in turn. Live: processes on this machine with an etcd and the fake backend; the policy and the memory of a device are the only other settings, so a node has {slots} run slots, as many as processors. \
             The simulator plays the same arrivals under the same device rule with a hand-over of {:.0} ms, and learns costs as the nodes do. Late calls had no answer within their deadline of 30 s, and do not count in the mean and the percentile.",
            per_minute(slots),
            HAND_OVER_NS as f64 / 1e6,
        )],
        tables: WORKLOADS.iter().map(|preset| table(*preset, &compared)).collect(),
        samples: serde_json::to_value(&compared)?,
    })
}

/// Run slots of a node without settings: one for each processor.
fn slots() -> Result<u32> {
    let processors = std::thread::available_parallelism().context("cannot count processors")?;
    Ok(u32::try_from(processors.get())?)
}

/// Arrivals a minute at the rate of the LALB paper, which has 12 devices of one slot.
fn per_minute(slots: u32) -> u32 {
    325 * NODES * slots / 12
}

/// A preset on three devices with this number of slots each, sped up.
fn workload(preset: Preset, slots: u32, minutes: u32) -> Result<Workload> {
    let recipe =
        Recipe { devices: NODES, minutes, per_minute: per_minute(slots), ..preset.recipe(FUNCTIONS) };
    let slow = recipe.make(SEED)?;
    let models = slow.models().iter().map(|costs| ModelCosts {
        load_time_ns: costs.load_time_ns / FASTER,
        run_time_ns: costs.run_time_ns / FASTER,
        ..*costs
    });
    let requests = slow
        .requests()
        .iter()
        .map(|request| SimRequest { arrived_at_ns: request.arrived_at_ns / FASTER, ..*request });
    Ok(Workload::new(models.collect(), requests.collect(), NODES, slow.capacity_bytes())?)
}

fn predict(workload: &Workload, policy: PolicyKind, slots: u32) -> Result<WorkloadOutcome> {
    let cluster = SimulatedCluster {
        tells_costs: false,
        slots,
        hand_over_ns: HAND_OVER_NS,
        deadline_ns: Some(DEADLINE_NS),
        ..SimulatedCluster::weir()
    };
    let schedule = simulate(workload, &cluster, || policy.build(&PolicyOptions::default()))
        .map_err(|violation| anyhow::anyhow!("{violation}"))?;
    let loads = schedule.placed.iter().flatten().filter(|placed| !placed.hit).count();
    let ended = workload.requests().iter().zip(&schedule.placed).filter_map(|(request, placed)| {
        Some(placed.as_ref()?.ended_at_ns.saturating_sub(request.arrived_at_ns))
    });
    // The client of a node gets no answer after the deadline.
    let latencies_ms = ended.filter(|latency_ns| *latency_ns <= DEADLINE_NS).map(|ns| ns as f64 / 1e6);
    Ok(WorkloadOutcome::new(workload, latencies_ms.collect(), loads as f64))
}

impl WorkloadOutcome {
    /// The result of a workload, from the latencies of the calls that were answered in time.
    fn new(workload: &Workload, mut latencies_ms: Vec<f64>, loads: f64) -> Self {
        latencies_ms.sort_by(f64::total_cmp);
        let mean_ms = latencies_ms.iter().sum::<f64>() / latencies_ms.len().max(1) as f64;
        let p99_ms = latencies_ms.get(latencies_ms.len() * 99 / 100).copied().unwrap_or_default();
        Self { mean_ms, p99_ms, loads, late: workload.requests().len() - latencies_ms.len() }
    }
}

fn table(preset: Preset, compared: &[Compared]) -> TextTable {
    let columns = [
        "policy",
        "mean ms",
        "simulated",
        "live / simulated",
        "p99 ms",
        "simulated",
        "live / simulated",
        "loads",
        "simulated",
        "late",
        "simulated",
    ];
    let title = format!("Workload `{}` on three nodes, live and simulated", preset.as_str());
    let mut table = TextTable::new(&title, &columns);
    for row in compared.iter().filter(|row| row.workload == preset.as_str()) {
        let Compared { policy, live, simulated, .. } = row;
        table.row([
            policy.clone(),
            format!("{:.0}", live.mean_ms),
            format!("{:.0}", simulated.mean_ms),
            format!("{:.3}x", live.mean_ms / simulated.mean_ms),
            format!("{:.0}", live.p99_ms),
            format!("{:.0}", simulated.p99_ms),
            format!("{:.3}x", live.p99_ms / simulated.p99_ms),
            format!("{:.0}", live.loads),
            format!("{:.0}", simulated.loads),
            live.late.to_string(),
            simulated.late.to_string(),
        ]);
    }
    table
}
