//! A cluster of three nodes under a skewed workload, compared with the simulator's prediction for
//! the same arrivals.
//!
//! The nodes run fake models with declared times, so the comparison covers placement and
//! scheduling.

use crate::args::Args;
use crate::report::{Section, Table};
use crate::server::Server;
use crate::weir;
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_scheduler::sim::{
    Arrivals, Cluster, Costs, Metrics, Popularity, Recipe, SimRequest, Workload, run as simulate,
};
use weir_scheduler::{PolicyKind, PolicyOptions};

const NODES: u32 = 3;
const POLICIES: [PolicyKind; 3] = [PolicyKind::FinishFirst, PolicyKind::LalbO3, PolicyKind::Lb];
/// Number of functions, each with its own model. A node holds two or three models at once.
const FUNCTIONS: u32 = 10;
/// Arrivals per minute of the recipe: about 80 % of the capacity of three devices without repeated
/// loads.
const PER_MINUTE: u32 = 85;
const MINUTES: u32 = 8;
/// Speed-up over the times of seed 000.
const FASTER: u64 = 10;
const SEED: u64 = 1;
/// Time for the nodes to learn about the deployments.
const SETTLE: Duration = Duration::from_secs(3);

/// Result of the workload.
#[derive(Debug, Serialize)]
struct Outcome {
    mean_ms: f64,
    p99_ms: f64,
    misses: f64,
}

#[derive(Debug, Serialize)]
struct Compared {
    policy: String,
    live: Outcome,
    simulated: Outcome,
}

pub(crate) fn run(args: &Args) -> Result<Section> {
    let workload = workload(if args.quick { 1 } else { MINUTES })?;
    let mut compared = Vec::new();
    for policy in POLICIES {
        let cluster = Cluster { tells_costs: false, ..Cluster::default() };
        let schedule = simulate(&workload, &cluster, policy.build(&PolicyOptions::default()))
            .map_err(|violation| anyhow::anyhow!("{violation}"))?;
        let metrics = Metrics::of(&workload, &schedule);
        let requests = workload.requests().len() as f64;
        let simulated = Outcome {
            mean_ms: metrics.avg * 1e3,
            p99_ms: metrics.p99 * 1e3,
            misses: (metrics.miss * requests).round(),
        };
        let scratch = tempfile::tempdir()?;
        let live = play(args, &workload, policy, scratch.path())
            .with_context(|| format!("the cluster with {policy} failed"))?;
        compared.push(Compared { policy: policy.to_string(), live, simulated });
    }
    let seconds = workload.requests().last().map_or(0.0, |last| last.arrived_at_ns as f64 / 1e9);
    Ok(Section {
        key: "cluster",
        notes: vec![format!(
            "{} calls in {seconds:.0} s of {FUNCTIONS} functions, each with a model of its own (Table I of seed 000 at a tenth of its times, popularity of the `trace` preset, Poisson arrivals, seed {SEED}), \
             to {NODES} nodes in turn, one call at a time on each device. Live: processes on this machine with an etcd and the fake backend; the simulator plays the same arrivals, and learns costs as the nodes do.",
            workload.requests().len(),
        )],
        tables: vec![table(&compared)],
        samples: serde_json::to_value(&compared)?,
    })
}

/// Seed 000's costs and popularity on three devices, sped up.
fn workload(minutes: u32) -> Result<Workload> {
    let recipe = Recipe {
        functions: FUNCTIONS,
        popularity: Popularity::Zipf(1.2176),
        arrivals: Arrivals::Poisson,
        minutes,
        per_minute: PER_MINUTE,
        devices: NODES,
        capacity_mb: 8_192,
        tenants: 1,
    };
    let slow = recipe.make(SEED)?;
    let models = slow.models().iter().map(|costs| Costs {
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

/// Runs the workload on a new cluster.
fn play(args: &Args, workload: &Workload, policy: PolicyKind, scratch: &Path) -> Result<Outcome> {
    let (_server, nodes) = start(args, workload, policy, scratch)?;
    let agent = weir::agent();
    let put = |url: String, bytes: &[u8]| -> Result<()> {
        let answer = agent.put(&url).send(bytes)?;
        if answer.status().is_success() { Ok(()) } else { bail!("{url} answered {}", answer.status()) }
    };
    let component = std::fs::read(args.functions.join("infer.wasm"))?;
    for (index, costs) in workload.models().iter().enumerate() {
        put(format!("{}/v1/models/m{index}/versions/1", nodes[0]), fake(costs).as_bytes())?;
        put(format!("{}/v1/functions/f{index}?models=m{index}", nodes[0]), &component)?;
    }
    std::thread::sleep(SETTLE);
    let began = Instant::now();
    let call = |(at, request): (usize, &SimRequest)| -> Result<Duration> {
        let due = Duration::from_nanos(request.arrived_at_ns);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let (node, model) = (&nodes[at % nodes.len()], request.model);
        let url = format!("{node}/fn/f{model}/m{model}?shape=1,1");
        let mut answer = agent.post(&url).send(&1_f32.to_le_bytes()[..])?;
        let body = answer.body_mut().read_to_vec()?;
        if answer.status() != 200 {
            bail!("{url} answered {}: {}", answer.status(), String::from_utf8_lossy(&body));
        }
        Ok(began.elapsed().saturating_sub(due))
    };
    let mut latencies_ms = std::thread::scope(|scope| {
        let callers: Vec<_> = workload
            .requests()
            .iter()
            .enumerate()
            .map(|request| {
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, move || call(request))
            })
            .collect::<std::io::Result<_>>()?;
        let ended = callers.into_iter().map(|caller| match caller.join() {
            Ok(latency) => Ok(latency?.as_secs_f64() * 1e3),
            Err(_) => bail!("a client panicked"),
        });
        ended.collect::<Result<Vec<f64>>>()
    })?;
    latencies_ms.sort_by(f64::total_cmp);
    let mut misses = 0.0;
    for node in &nodes {
        let metrics = agent.get(format!("{node}/metrics")).call()?.body_mut().read_to_string()?;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("weir_cold_starts_total{cause=\"model\"} "));
        misses += line.map_or(Ok(0.0), str::parse)?;
    }
    let mean_ms = latencies_ms.iter().sum::<f64>() / latencies_ms.len().max(1) as f64;
    let p99_ms = latencies_ms.get(latencies_ms.len() * 99 / 100).copied().unwrap_or_default();
    Ok(Outcome { mean_ms, p99_ms, misses })
}

/// Starts a cluster. Returns its process and the nodes' URLs.
fn start(
    args: &Args,
    workload: &Workload,
    policy: PolicyKind,
    scratch: &Path,
) -> Result<(Server, Vec<String>)> {
    let log = scratch.join("log");
    let mut command = Command::new(&args.weir);
    command.args(["cluster", "up", "--port", "0", "--nodes", &NODES.to_string(), "--data"]);
    command.arg(scratch.join("data")).current_dir(scratch);
    for setting in [
        format!("scheduler.policy={policy}"),
        format!("models.memory_bytes_max={}", workload.capacity_bytes()),
        "models.backend=fake".to_owned(),
        // One call at a time per node.
        "sandbox.instances_max=1".to_owned(),
        "models.slots=1".to_owned(),
    ] {
        command.arg("--set").arg(setting);
    }
    let server = Server::start(command, &log)?;
    let asked = Instant::now();
    loop {
        let text = std::fs::read_to_string(&log)?;
        let line = text.lines().find(|line| line.starts_with("weir cluster of "));
        if let Some((_, nodes)) = line.and_then(|line| line.split_once(" at ")) {
            return Ok((server, nodes.split(", ").map(str::to_owned).collect()));
        }
        if asked.elapsed() > Duration::from_secs(60) {
            bail!("the cluster did not start:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fake(costs: &Costs) -> String {
    let port = |name: &str| serde_json::json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    serde_json::json!({
        "load_time_ms": costs.load_time_ns as f64 / 1e6,
        "run_time_ms": { "1": costs.run_time_ns as f64 / 1e6 },
        "resident_bytes": costs.bytes,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}

fn table(compared: &[Compared]) -> Table {
    let columns =
        ["policy", "mean ms", "simulated", "live / simulated", "p99 ms", "simulated", "loads", "simulated"];
    let mut table = Table::new("Three nodes, live and simulated", &columns);
    for Compared { policy, live, simulated } in compared {
        table.row([
            policy.clone(),
            format!("{:.0}", live.mean_ms),
            format!("{:.0}", simulated.mean_ms),
            format!("{:.3}x", live.mean_ms / simulated.mean_ms),
            format!("{:.0}", live.p99_ms),
            format!("{:.0}", simulated.p99_ms),
            format!("{:.0}", live.misses),
            format!("{:.0}", simulated.misses),
        ]);
    }
    table
}
