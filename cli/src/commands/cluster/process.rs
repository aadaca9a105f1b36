//! Child processes of a local cluster. Each has its own process group, so Ctrl-C reaches only this
//! process. The children are killed when this process drops their handles.

use crate::error::Problem;
use anyhow::Result;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Time limit for the start of a process.
const READY_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum number of starts of etcd: another process may take a port between its choice and etcd's
/// start, and etcd then exits.
const ETCD_STARTS_MAX: usize = 3;
/// Time in which etcd exits if a port is taken.
const ETCD_EXIT_TIME: Duration = Duration::from_millis(500);
/// Interval between readiness checks.
const READY_ASKED_EVERY: Duration = Duration::from_millis(50);

/// Single-server etcd for the nodes of this machine.
pub(super) struct EtcdProcess {
    child: Child,
    port: u16,
}

impl EtcdProcess {
    /// Starts etcd and waits until it accepts connections.
    pub(super) async fn start(data: PathBuf, log: PathBuf) -> Result<Self> {
        for _ in 0..ETCD_STARTS_MAX {
            if let Some(etcd) = Self::start_once(&data, &log).await? {
                return Ok(etcd);
            }
        }
        Err(Problem::new("etcd exits at its start").hint(see(&log)).into())
    }

    /// Starts etcd on free ports. Returns `None` if it exits.
    async fn start_once(data: &Path, log: &Path) -> Result<Option<Self>> {
        let port = free_port()?;
        let peer_port = free_port()?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data).args([
            "--name=weir".to_owned(),
            "--log-level=warn".to_owned(),
            format!("--listen-client-urls={}", url(port)),
            format!("--advertise-client-urls={}", url(port)),
            format!("--listen-peer-urls={}", url(peer_port)),
            format!("--initial-advertise-peer-urls={}", url(peer_port)),
            format!("--initial-cluster=weir={}", url(peer_port)),
        ]);
        let child = spawn(&mut command, log, Stdio::null()).map_err(|error| {
            Problem::new("etcd cannot be started")
                .because(error)
                .hint("install it (Debian and Ubuntu: apt-get install etcd-server), or name one with --datastore etcd://HOST")
        })?;
        let mut etcd = Self { child, port };
        let listens = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(READY_ASKED_EVERY).await;
            }
        };
        tokio::select! {
            ready = timeout(READY_TIME_MAX, listens) => {
                ready.map_err(|_| Problem::new("etcd does not answer").hint(see(log)))?;
            }
            _ = etcd.child.wait() => return Ok(None),
        }
        // The connection may have reached the process that has taken the port.
        let exited = timeout(ETCD_EXIT_TIME, etcd.child.wait()).await.is_ok();
        Ok((!exited).then_some(etcd))
    }

    /// The datastore URL.
    pub(super) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Stops etcd with SIGTERM and waits for its exit.
    pub(super) async fn stop(mut self) {
        terminate(&self.child);
        let _ = self.child.wait().await;
    }
}

/// Node process.
pub(super) struct NodeProcess {
    number: u16,
    child: Child,
    pub(super) url: String,
    pub(super) log: PathBuf,
}

impl NodeProcess {
    /// Starts the node and waits until it prints its address.
    pub(super) async fn start(number: u16, arguments: &[String], data: &Path) -> Result<Self> {
        let log = data.join(format!("node-{number}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = spawn(command.args(arguments), &log, Stdio::piped())
            .map_err(|error| Problem::new(format!("node {number} cannot be started")).because(error))?;
        let stdout = child.stdout.take().map(BufReader::new);
        let ready = async {
            let mut lines = stdout?.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(url) = line.strip_prefix("weir listening on ") {
                    return Some(url.trim().to_owned());
                }
            }
            None
        };
        match timeout(READY_TIME_MAX, ready).await {
            Ok(Some(url)) => Ok(Self { number, child, url, log }),
            _ => Err(Problem::new(format!("node {number} did not start")).hint(see(&log)).into()),
        }
    }

    /// Waits for the node's exit and describes it.
    pub(super) async fn ended(&mut self) -> String {
        let how = self.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("node {} at {} has ended ({how}); {}", self.number, self.url, see(&self.log))
    }

    /// Stops the node with SIGTERM and waits for its exit.
    pub(super) async fn stop(&mut self) {
        terminate(&self.child);
        let _ = self.child.wait().await;
    }
}

fn spawn(command: &mut Command, log: &Path, stdout: Stdio) -> std::io::Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(log).process_group(0).kill_on_drop(true).spawn()
}

fn terminate(child: &Child) {
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        // The process may have exited already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

fn see(log: &Path) -> String {
    format!("see {}", log.display())
}

/// Finds a TCP port that is free at this moment.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
