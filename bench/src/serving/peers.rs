//! The servers that Weir is compared with, and how each of them is started.

use crate::args::Args;
use crate::server::Server;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Ray's guide to performance names for more throughput: HAProxy in front, and no second thread in the replicas.
const RAY_THROUGHPUT: [(&str, &str); 2] =
    [("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1"), ("RAY_SERVE_ENABLE_HA_PROXY", "1")];

/// How long Ray waits for its own processes, in seconds: on a busy machine they need longer than it gives them.
const RAY_PATIENCE: [(&str, &str); 2] =
    [("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"), ("RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S", "60")];

/// A server, set up in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// The least that there can be around a model in Python.
    Uvicorn,
    /// Ray Serve as it comes: requests go through its own proxy.
    Ray,
    /// With [`RAY_THROUGHPUT`].
    RayHaproxy,
    /// And requests that wait in a replica run together.
    RayBatches,
    /// One service, mounted into BentoML's server.
    Bento,
    /// Two services: one takes requests, the other runs them together.
    BentoBatches,
}

impl Peer {
    pub(super) const ALL: [Self; 6] =
        [Self::Uvicorn, Self::Ray, Self::RayHaproxy, Self::RayBatches, Self::Bento, Self::BentoBatches];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uvicorn => "uvicorn + onnxruntime",
            Self::Ray => "Ray Serve",
            Self::RayHaproxy => "Ray Serve, HAProxy",
            Self::RayBatches => "Ray Serve, HAProxy, batches",
            Self::Bento => "BentoML",
            Self::BentoBatches => "BentoML, batches",
        }
    }

    /// Where it answers.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Bento | Self::BentoBatches => "/v2/",
            _ => "/",
        }
    }
}

/// What the peers take to be started.
pub(super) struct Peers {
    python: PathBuf,
    scripts: PathBuf,
    scratch: PathBuf,
    /// Processes that run models: one a core.
    workers: String,
}

impl Peers {
    /// Peers that keep their logs and sockets under `scratch`.
    pub(super) fn new(args: &Args, scratch: &Path) -> Result<Self> {
        let python = args.serving_python.clone().context(
            "--serving-python is missing: a Python with what bench/python/serving/requirements.txt pins",
        )?;
        only_loopback()?;
        let workers = std::thread::available_parallelism()?.to_string();
        Ok(Self { python, scripts: args.scripts.join("serving"), scratch: scratch.to_owned(), workers })
    }

    /// Start `peer` with the model in the file `model`.
    pub(super) fn start(&self, peer: Peer, model: &Path) -> Result<Server> {
        let mut command = self.python(model);
        match peer {
            Peer::Uvicorn => {
                command.args(["-m", "uvicorn", "uvicorn_app:app", "--host", "127.0.0.1", "--port", "0"]);
                command.args(["--no-access-log", "--workers", &self.workers]);
            }
            Peer::Ray | Peer::RayHaproxy | Peer::RayBatches => {
                command.args(["ray_app.py", "--replicas", &self.workers, "--folder"]).arg(self.ray_folder()?);
                command.envs(RAY_PATIENCE);
                if peer != Peer::Ray {
                    command.envs(RAY_THROUGHPUT);
                }
                if peer == Peer::RayBatches {
                    command.arg("--batch");
                }
            }
            Peer::Bento | Peer::BentoBatches => {
                let service = if peer == Peer::Bento { "OneByOne" } else { "Together" };
                command.args(["-m", "bentoml", "serve", &format!("bento_service:{service}")]);
                command.args(["--host", "127.0.0.1", "--port", &free_port()?]);
                command.arg("--working-dir").arg(&self.scripts);
            }
        }
        Server::start(command, &self.scratch.join("log"))
    }

    /// Run the script `name` of these to its end.
    pub(super) fn script(&self, model: &Path, name: &str, arguments: &[String]) -> Result<()> {
        let output = self.python(model).arg(name).args(arguments).output();
        let output = output.with_context(|| format!("cannot run {name}"))?;
        if !output.status.success() {
            bail!("{name} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// A folder for files of the measurement.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// An empty folder. Unix sockets lie deep in it, and their paths can have some hundred bytes.
    fn ray_folder(&self) -> Result<PathBuf> {
        let folder = self.scratch.join("ray");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder)?;
        Ok(folder)
    }

    fn python(&self, model: &Path) -> Command {
        let mut command = Command::new(&self.python);
        command
            .current_dir(&self.scripts)
            .env("BENCH_MODEL", model)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("RAY_USAGE_STATS_ENABLED", "0")
            .env("BENTOML_DO_NOT_TRACK", "True")
            .env("BENTOML_HOME", self.scratch.join("bentoml"));
        command
    }
}

/// A port that nobody listens on, for servers that cannot be told to find one.
fn free_port() -> Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port().to_string())
}

/// Ray's processes and HAProxy's statistics listen on every address, whatever they are told, and Ray runs what it is sent there.
fn only_loopback() -> Result<()> {
    let interfaces = procfs::net::dev_status().context("cannot see which networks this machine has")?;
    let other: Vec<_> = interfaces.into_keys().filter(|name| name != "lo").collect();
    if !other.is_empty() {
        bail!(
            "Ray listens on all networks ({} among them); run this in a network namespace that has none but loopback, as `cargo xtask bench --only serving` does",
            other.join(", ")
        );
    }
    Ok(())
}
