//! The workload on a live cluster.

use super::{NODES, WorkloadOutcome};
use crate::args::Args;
use crate::server::ServerProcess;
use crate::weir;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use ureq::Agent;
use weir_scheduler::PolicyKind;
use weir_scheduler::sim::{ModelCosts, SimRequest, Workload};

/// Time limit for the nodes to start and to learn about the deployments.
const READY_MAX: Duration = Duration::from_secs(60);

/// Runs the workload on a new cluster.
pub(super) fn play(
    args: &Args,
    workload: &Workload,
    policy: PolicyKind,
    scratch: &Path,
) -> Result<WorkloadOutcome> {
    let (_server, nodes) = start(args, workload, policy, scratch)?;
    let agent = weir::agent();
    deploy(args, workload, &agent, &nodes)?;
    let latencies_ms = call_all(workload, &agent, &nodes)?;
    let mut loads = 0.0;
    for node in &nodes {
        let metrics = agent.get(format!("{node}/metrics")).call()?.body_mut().read_to_string()?;
        for line in metrics.lines().filter(|line| line.starts_with("weir_device_loads_total{")) {
            loads += line.rsplit_once(' ').map_or(Ok(0.0), |(_, value)| value.parse::<f64>())?;
        }
    }
    Ok(WorkloadOutcome::new(workload, latencies_ms, loads))
}

/// Pushes the models, deploys a function for each, and waits until all nodes know them.
fn deploy(args: &Args, workload: &Workload, agent: &Agent, nodes: &[String]) -> Result<()> {
    let put = |url: String, bytes: &[u8]| -> Result<()> {
        let answer = agent.put(&url).send(bytes)?;
        if answer.status().is_success() { Ok(()) } else { bail!("{url} answered {}", answer.status()) }
    };
    let component = std::fs::read(args.functions.join("infer.wasm"))?;
    for (index, costs) in workload.models().iter().enumerate() {
        put(format!("{}/v1/models/m{index}/versions/1", nodes[0]), fake(costs).as_bytes())?;
        put(format!("{}/v1/functions/f{index}?models=m{index}", nodes[0]), &component)?;
    }
    let began = Instant::now();
    for node in nodes {
        for index in 0..workload.models().len() {
            for url in [format!("{node}/v1/models/m{index}"), format!("{node}/v1/functions/f{index}")] {
                while agent.get(&url).call()?.status() != 200 {
                    if began.elapsed() > READY_MAX {
                        bail!("{url} is unknown {READY_MAX:?} after the deployment");
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
    Ok(())
}

/// Calls at the arrival times of the workload, at the nodes in turn. Returns the latencies of the
/// calls that ended before their deadline.
fn call_all(workload: &Workload, agent: &Agent, nodes: &[String]) -> Result<Vec<f64>> {
    let began = Instant::now();
    let call = |(at, request): (usize, &SimRequest)| -> Result<Option<f64>> {
        let due = Duration::from_nanos(request.arrived_at_ns);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let node = &nodes[at % nodes.len()];
        let model = request.model;
        let url = format!("{node}/fn/f{model}/m{model}?shape=1");
        let mut answer = agent.post(&url).send(&1_f32.to_le_bytes()[..])?;
        let body = answer.body_mut().read_to_vec()?;
        match answer.status().as_u16() {
            200 => Ok(Some(began.elapsed().saturating_sub(due).as_secs_f64() * 1e3)),
            504 => Ok(None),
            status => bail!("{url} answered {status}: {}", String::from_utf8_lossy(&body)),
        }
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = workload
            .requests()
            .iter()
            .enumerate()
            .map(|request| {
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, move || call(request))
            })
            .collect::<std::io::Result<_>>()?;
        let ended = callers.into_iter().map(|caller| match caller.join() {
            Ok(latency) => latency,
            Err(_) => bail!("a client panicked"),
        });
        Ok(ended.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

/// Starts a cluster at default settings, except for the policy, the fake backend and the memory of
/// a device. Returns its process and the nodes' URLs.
fn start(
    args: &Args,
    workload: &Workload,
    policy: PolicyKind,
    scratch: &Path,
) -> Result<(ServerProcess, Vec<String>)> {
    let log = scratch.join("log");
    let mut command = Command::new(&args.weir);
    command.args(["cluster", "up", "--port", "0", "--nodes", &NODES.to_string(), "--data"]);
    command.arg(scratch.join("data")).current_dir(scratch);
    for setting in [
        format!("scheduler.policy={policy}"),
        format!("models.memory_bytes_max={}", workload.capacity_bytes()),
        "models.backend=fake".to_owned(),
    ] {
        command.arg("--set").arg(setting);
    }
    let server = ServerProcess::start(command, &log)?;
    let asked = Instant::now();
    loop {
        let text = std::fs::read_to_string(&log)?;
        let line = text.lines().find(|line| line.starts_with("weir cluster of "));
        if let Some((_, nodes)) = line.and_then(|line| line.split_once(" at ")) {
            return Ok((server, nodes.split(", ").map(str::to_owned).collect()));
        }
        if asked.elapsed() > READY_MAX {
            bail!("the cluster did not start:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A model with these costs. Its shape is fixed, as that of the LALB paper's models, whose requests
/// are batches of 32 already.
fn fake(costs: &ModelCosts) -> String {
    let port = |name: &str| serde_json::json!([{ "name": name, "datatype": "FP32", "shape": [1] }]);
    serde_json::json!({
        "load_time_ms": costs.load_time_ns as f64 / 1e6,
        "run_time_ms": { "1": costs.run_time_ns as f64 / 1e6 },
        "resident_bytes": costs.bytes,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}
