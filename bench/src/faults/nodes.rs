//! Processes of a cluster that can be killed and stopped.

use super::FUNCTIONS;
use crate::args::Args;
use crate::server::ServerProcess;
use crate::weir;
use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Time limit for the nodes to form a cluster.
const PATIENCE: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// Etcd and the nodes. A node is `None` while it restarts.
pub(super) struct Nodes {
    nodes: Vec<Option<ServerProcess>>,
    urls: Vec<String>,
    commands: Vec<(PathBuf, Vec<String>)>,
    weir: PathBuf,
    /// Dropped after the nodes, which return their leases.
    etcd: ServerProcess,
}

/// Process of the cluster.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClusterProcess {
    Node(usize),
    Etcd,
}

impl Nodes {
    pub(super) fn start(args: &Args, scratch: &Path, lease_ms: u64) -> Result<Self> {
        let client = free_port()?;
        let peer = free_port()?;
        let mut etcd = Command::new("sh");
        let urls = format!(
            "--listen-client-urls=http://127.0.0.1:{client} --advertise-client-urls=http://127.0.0.1:{client} \
             --listen-peer-urls=http://127.0.0.1:{peer} --initial-advertise-peer-urls=http://127.0.0.1:{peer} --initial-cluster=default=http://127.0.0.1:{peer}"
        );
        // Etcd's versions print their listen address differently, so the shell prints it.
        etcd.args([
            "-c",
            &format!("echo http://127.0.0.1:{client} ; exec etcd --log-level=error {urls} --data-dir=\"$0\""),
        ]);
        etcd.arg(scratch.join("etcd"));
        let etcd = ServerProcess::start(etcd, &scratch.join("etcd.log")).context("etcd cannot be started")?;
        let mut cluster =
            Self { nodes: Vec::new(), urls: Vec::new(), commands: Vec::new(), weir: args.weir.clone(), etcd };
        for number in 0..NODES {
            let mut arguments: Vec<String> = [
                "node",
                &format!("--listen=127.0.0.1:{}", free_port()?),
                &format!("--data={}", scratch.join(format!("node-{number}")).display()),
                &format!("--datastore=etcd://127.0.0.1:{client}"),
                &format!("--blobs=file://{}", scratch.join("blobs").display()),
            ]
            .map(str::to_owned)
            .to_vec();
            for setting in [
                "models.backend=fake".to_owned(),
                // Each node has room for about a third of the models.
                format!("models.memory_bytes_max={}", FUNCTIONS.div_ceil(NODES) + 1),
                format!("cluster.lease_ms={lease_ms}"),
                format!("cluster.heartbeat_timeout_ms={lease_ms}"),
            ] {
                arguments.push(format!("--set={setting}"));
            }
            cluster.commands.push((scratch.join(format!("node-{number}.log")), arguments));
            let server = cluster.spawn(number)?;
            cluster.urls.push(server.url(""));
            cluster.nodes.push(Some(server));
        }
        Ok(cluster)
    }

    fn spawn(&self, node: usize) -> Result<ServerProcess> {
        let (log, arguments) = &self.commands[node];
        let mut command = Command::new(&self.weir);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WEIR_") {
                command.env_remove(name);
            }
        }
        // Outside any folder with a `weir.toml`.
        command.args(arguments).current_dir(log.parent().unwrap_or(Path::new("/")));
        ServerProcess::start(command, log)
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn url(&self, node: usize) -> &str {
        &self.urls[node]
    }

    /// Deploys functions that each run their own model; every other function is idempotent.
    pub(super) fn deploy(&self, args: &Args, run_time_ms: f64) -> Result<()> {
        let agent = weir::agent();
        let put = |url: String, bytes: &[u8]| -> Result<()> {
            let answer = agent.put(&url).send(bytes)?;
            if answer.status().is_success() { Ok(()) } else { bail!("{url} answered {}", answer.status()) }
        };
        let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
        let model = json!({
            "load_time_ms": 5, "run_time_ms": {"1": run_time_ms}, "resident_bytes": 1,
            "signature": {"inputs": port("x"), "outputs": port("y")},
        });
        let component = std::fs::read(args.functions.join("infer.wasm"))?;
        for index in 0..FUNCTIONS {
            put(format!("{}/v1/models/m{index}/versions/1", self.urls[0]), model.to_string().as_bytes())?;
            let grants = format!("models=m{index}&idempotent={}", index.is_multiple_of(2));
            put(format!("{}/v1/functions/f{index}?{grants}", self.urls[0]), &component)?;
        }
        Ok(())
    }

    /// Waits until all nodes use one dispatcher and know all functions. Returns the dispatcher's
    /// index.
    pub(super) fn settle(&self) -> Result<usize> {
        let began = Instant::now();
        loop {
            let statuses: Vec<Value> = (0..NODES).map(|node| self.status(node)).collect::<Result<_>>()?;
            let is_dispatcher = |status: &Value| {
                !status["cluster"]["dispatcher"].is_null()
                    && status["cluster"]["dispatcher"] == status["cluster"]["node"]
            };
            let dispatcher = statuses.iter().position(is_dispatcher);
            let asks = statuses.iter().filter(|status| status["cluster"]["asks_dispatcher"] == true).count();
            let knows = |status: &Value| status["functions"] == FUNCTIONS && status["models"] == FUNCTIONS;
            if let Some(dispatcher) = dispatcher.filter(|_| asks == NODES - 1 && statuses.iter().all(knows)) {
                return Ok(dispatcher);
            }
            if began.elapsed() > PATIENCE {
                bail!("the nodes did not find each other: {statuses:?}");
            }
            std::thread::sleep(ASKED_EVERY);
        }
    }

    fn status(&self, node: usize) -> Result<Value> {
        let mut answer = weir::agent().get(format!("{}/v1/status", self.urls[node])).call()?;
        Ok(serde_json::from_str(&answer.body_mut().read_to_string()?)?)
    }

    pub(super) fn signal(&self, part: ClusterProcess, signal: Signal) -> Result<()> {
        let server = match part {
            ClusterProcess::Etcd => Some(&self.etcd),
            ClusterProcess::Node(node) => self.nodes[node].as_ref(),
        };
        let pid = server.and_then(|server| Pid::from_raw(server.pid().cast_signed()));
        Ok(kill_process(pid.context("the process is gone")?, signal)?)
    }

    /// Restarts a node gracefully.
    pub(super) fn restart(&mut self, node: usize) -> Result<()> {
        // Dropping the server stops it with SIGTERM and waits.
        self.nodes[node] = None;
        self.nodes[node] = Some(self.spawn(node)?);
        self.settle().map(drop)
    }

    /// Calls that ran on another node after their node was lost, as counted by the reachable nodes.
    pub(super) fn rescheduled(&self) -> f64 {
        let agent = weir::agent();
        let of_node = |url: &String| -> Option<f64> {
            let text = agent.get(format!("{url}/metrics")).call().ok()?.body_mut().read_to_string().ok()?;
            text.lines()
                .find_map(|line| line.strip_prefix("weir_invocations_rescheduled_total "))?
                .parse()
                .ok()
        };
        self.urls.iter().filter_map(of_node).sum()
    }
}

/// Finds a TCP port that is free at this moment.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
