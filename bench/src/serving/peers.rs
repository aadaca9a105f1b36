//! Peer servers and how to start them.

use crate::args::Args;
use crate::server::ServerProcess;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings that Ray's performance guide recommends for throughput: HAProxy in front, and no second
/// thread in the replicas.
const RAY_THROUGHPUT: [(&str, &str); 2] =
    [("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1"), ("RAY_SERVE_ENABLE_HA_PROXY", "1")];

/// Ray's timeouts for its own processes, in seconds: the defaults are too short on a busy machine.
const RAY_PATIENCE: [(&str, &str); 2] =
    [("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"), ("RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S", "60")];

/// Server in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A minimal Python server around a model.
    Uvicorn,
    /// Ray Serve with its defaults: requests go through its own proxy.
    Ray,
    /// Ray Serve with [`RAY_THROUGHPUT`].
    RayHaproxy,
    /// [`Peer::RayHaproxy`] with batching in the replicas.
    RayBatches,
    /// One service, mounted into BentoML's server.
    Bento,
    /// Two services: one accepts requests, the other batches them.
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

    /// Path of the inference endpoint.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Bento | Self::BentoBatches => "/v2/",
            _ => "/",
        }
    }
}

/// Paths and settings for starting the peers.
pub(super) struct Peers {
    python: PathBuf,
    scripts: PathBuf,
    scratch: PathBuf,
    /// Number of model processes: one per core.
    workers: String,
}

impl Peers {
    /// Creates the settings for peers with logs and sockets under `scratch`.
    pub(super) fn new(args: &Args, scratch: &Path) -> Result<Self> {
        let python = args.serving_python.clone().context(
            "--serving-python is missing: a Python with what bench/python/serving/requirements.txt pins",
        )?;
        only_loopback()?;
        let workers = std::thread::available_parallelism()?.to_string();
        Ok(Self { python, scripts: args.scripts.join("serving"), scratch: scratch.to_owned(), workers })
    }

    /// Starts `peer` with the model file `model`.
    pub(super) fn start(&self, peer: Peer, model: &Path) -> Result<ServerProcess> {
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
        ServerProcess::start(command, &self.scratch.join("log"))
    }

    /// Runs the script `name` to its end.
    pub(super) fn script(&self, model: &Path, name: &str, arguments: &[String]) -> Result<()> {
        let output = self.python(model).arg(name).args(arguments).output();
        let output = output.with_context(|| format!("cannot run {name}"))?;
        if !output.status.success() {
            bail!("{name} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Folder for files of the measurement.
    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Creates an empty folder with a short path: Ray's Unix sockets are deep in it, and their
    /// paths are limited to about a hundred bytes.
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

/// Finds a free TCP port, for servers that cannot choose one.
fn free_port() -> Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port().to_string())
}

/// Requires a network namespace with only loopback: Ray's processes and HAProxy's statistics listen
/// on every address regardless of settings, and Ray executes code that it receives there.
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
