//! The cluster: an etcd, three nodes, and proxies on every link between them.

use crate::process::Process;
use crate::proxy::Proxy;
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::sync::Mutex;
use weir_torture::checker::Settings;
use weir_torture::plan::NODES;

/// Settings of the nodes that the checker knows.
pub(crate) const SETTINGS: Settings = Settings { versions_keep: 40, attempts_max: 10 };

/// Running cluster. Its processes end on drop.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Member>,
    pub(crate) etcd: Mutex<Process>,
    logs: PathBuf,
    /// Data of etcd and of the nodes. Dropped after the processes.
    _data: TempDir,
}

/// One node with its links.
pub(crate) struct Member {
    /// Address for clients, without a proxy.
    pub(crate) url: String,
    pub(crate) process: Mutex<Process>,
    /// The link from the node to etcd.
    pub(crate) to_etcd: Proxy,
    /// The links from other nodes to the node.
    pub(crate) from_peers: Proxy,
}

impl Cluster {
    /// Starts etcd and the nodes, with logs in `logs`.
    pub(crate) async fn start(weir: &Path, logs: &Path) -> Result<Self> {
        let data = in_memory().context("no folder for the data can be created")?;
        let etcd_at = free_address()?;
        let mut etcd = etcd(etcd_at, data.path(), logs)?;
        etcd.start().await?;
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let member = Member::new(number, weir, etcd_at, data.path(), logs).await?;
            member.process.lock().await.start().await?;
            nodes.push(member);
        }
        Ok(Self { nodes, etcd: Mutex::new(etcd), logs: logs.to_owned(), _data: data })
    }

    /// Addresses of the nodes for clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    /// Lines of the nodes' logs about panics.
    pub(crate) fn panics(&self) -> Vec<String> {
        let mut found = Vec::new();
        for number in 0..NODES {
            let log = std::fs::read(log_of_node(&self.logs, number)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let panics = log.lines().filter(|line| line.contains("panicked at"));
            found.extend(panics.map(|line| format!("node {number}: {line}")));
        }
        found
    }
}

impl Member {
    async fn new(number: usize, weir: &Path, etcd: SocketAddr, data: &Path, logs: &Path) -> Result<Self> {
        let to_etcd = Proxy::start(etcd).await?;
        let listen = free_address()?;
        let from_peers = Proxy::start(listen).await?;
        let url = format!("http://{listen}");
        let name = format!("node {number}");
        let mut arguments: Vec<OsString> = vec![
            "node".into(),
            format!("--listen={listen}").into(),
            format!("--data={}", data.join(format!("node-{number}")).display()).into(),
            format!("--datastore=etcd://{}", to_etcd.address()).into(),
            format!("--blobs=file://{}", data.join("blobs").display()).into(),
            format!("--advertise={}", from_peers.address()).into(),
        ];
        for setting in [
            // The shortest leases, so that faults are longer and shorter than a lease.
            "cluster.lease_ms=2000".to_owned(),
            "cluster.heartbeat_timeout_ms=2000".to_owned(),
            "async.lease_ms=2000".to_owned(),
            "async.backoff_ms=200".to_owned(),
            "async.backoff_ms_max=2000".to_owned(),
            format!("async.attempts_max={}", SETTINGS.attempts_max),
            // The audit compares the results of the whole run.
            "async.tenant_kept_max=10000000".to_owned(),
            "models.isolation=process".to_owned(),
            format!("models.versions_keep={}", SETTINGS.versions_keep),
            format!("sandbox.versions_keep={}", SETTINGS.versions_keep),
            "gateway.drain_timeout_ms=10000".to_owned(),
        ] {
            arguments.push(format!("--set={setting}").into());
        }
        let log = log_of_node(logs, number);
        let mut process =
            Process::new(name, weir.to_owned(), log, format!("{url}/readyz"))?.arguments(arguments);
        if let Some(library) = onnxruntime() {
            process = process.environment("WEIR_ONNXRUNTIME", library);
        }
        Ok(Self { url, process: Mutex::new(process), to_etcd, from_peers })
    }

    /// Worker processes of the node's models.
    pub(crate) async fn workers(&self) -> Vec<u32> {
        let Some(pid) = self.process.lock().await.pid() else { return Vec::new() };
        let is_worker = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("__run-cpu-models")
        };
        weir_tests::children(pid).into_iter().filter(is_worker).collect()
    }
}

fn etcd(address: SocketAddr, data: &Path, logs: &Path) -> Result<Process> {
    let peers = free_address()?;
    let process = Process::new(
        "etcd".to_owned(),
        "etcd".into(),
        logs.join("etcd.log"),
        format!("http://{address}/health"),
    )?;
    Ok(process.arguments([
        "--log-level=error".to_owned(),
        format!("--data-dir={}", data.join("etcd").display()),
        format!("--listen-client-urls=http://{address}"),
        format!("--advertise-client-urls=http://{address}"),
        format!("--listen-peer-urls=http://{peers}"),
        format!("--initial-advertise-peer-urls=http://{peers}"),
        format!("--initial-cluster=default=http://{peers}"),
    ]))
}

fn log_of_node(logs: &Path, number: usize) -> PathBuf {
    logs.join(format!("node-{number}.log"))
}

/// The ONNX Runtime of the environment, or that of `cargo xtask setup`.
fn onnxruntime() -> Option<OsString> {
    std::env::var_os("WEIR_ONNXRUNTIME").or_else(|| weir_tests::onnxruntime().map(Into::into))
}

/// Finds an address that is free at this moment.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?.local_addr()?)
}

/// A folder in memory if the system has such a file system: on a busy disk, etcd needs seconds to
/// make writes durable. Killed processes lose nothing of it.
fn in_memory() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("weir-torture-");
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
}
