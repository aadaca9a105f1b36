//! Load generation with wrk, and the resource use of the server under load.

use crate::process::{self, ResidentMemory};
use crate::server::ServerProcess;
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Numbers of connections of the three measurements.
pub(crate) const CONNECTIONS: [u32; 3] = [1, 8, 64];

/// Time limit of a request. With 64 connections, a slow model's queue is long.
const REQUEST_TIMEOUT: &str = "60s";
/// Time limit for requests of one measurement to finish before the next measurement.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const WARM_UP_SECONDS: u32 = 1;
const WARM_UP_CONNECTIONS: u32 = 8;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) connections: u32,
    pub(crate) requests: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of the server and its children, user and system.
    pub(crate) cpu_us_per_request: f64,
    /// Maximum under load.
    pub(crate) resident_bytes: u64,
    /// Share of the machine's CPU time that programs other than the server and the load took.
    pub(crate) others_share: f64,
}

/// Request and duration of the load.
pub(crate) struct LoadSpec {
    script: PathBuf,
    body: Option<PathBuf>,
    header: Option<String>,
    seconds: u32,
    cores: f64,
}

#[derive(Debug, Deserialize)]
struct LoadResult {
    requests: u64,
    duration_us: u64,
    p50_us: f64,
    p99_us: f64,
    /// Responses with a status of 400 or more.
    refused: u64,
    /// Connections and requests without a response.
    broken: u64,
}

impl LoadSpec {
    /// Creates a load of `seconds` per measurement, which posts `body`, or sends GET requests
    /// without one. Scratch files go to `folder`.
    pub(crate) fn new(folder: &Path, body: Option<PathBuf>, seconds: u32) -> Result<Self> {
        let script = folder.join("load.lua");
        std::fs::write(&script, include_str!("load.lua"))?;
        let cores = thread::available_parallelism()?.get() as f64;
        Ok(Self { script, body, header: None, seconds, cores })
    }

    /// Adds a request header.
    pub(crate) fn with_header(self, name: &str, value: &str) -> Self {
        Self { header: Some(format!("{name}: {value}")), ..self }
    }

    /// Warms up `path` on the server, then measures it with each number of [`CONNECTIONS`].
    pub(crate) fn measure(&self, server: &ServerProcess, path: &str) -> Result<Vec<Sample>> {
        self.warm_up(server, path)?;
        let sample = |connections| {
            server.tree().settle(SETTLE_MAX)?;
            self.sample(server, path, connections)
        };
        CONNECTIONS.into_iter().map(sample).collect()
    }

    /// Warms up the server.
    pub(crate) fn warm_up(&self, server: &ServerProcess, path: &str) -> Result<()> {
        self.wrk(&server.url(path), WARM_UP_CONNECTIONS, WARM_UP_SECONDS, || Ok(())).map(drop)
    }

    /// Measures `path` on the server once.
    pub(crate) fn sample(&self, server: &ServerProcess, path: &str, connections: u32) -> Result<Sample> {
        let tree = server.tree();
        let mut resident = ResidentMemory::default();
        let watch = || {
            let now = tree.resident()?;
            if now.total_bytes > resident.total_bytes {
                resident = now;
            }
            Ok(())
        };
        let started = Instant::now();
        let times = || {
            anyhow::Ok((tree.cpu_time()?, process::ended_children_cpu_time()?, process::machine_busy_time()?))
        };
        let before = times()?;
        let measured = self.wrk(&server.url(path), connections, self.seconds, watch)?;
        let after = times()?;
        let elapsed = started.elapsed();

        let server_time = after.0.saturating_sub(before.0);
        let load_time = after.1.saturating_sub(before.1);
        let busy_time = after.2.saturating_sub(before.2);
        let others_time = busy_time.saturating_sub(server_time + load_time);
        Ok(Sample {
            connections,
            requests: measured.requests,
            requests_per_second: measured.requests as f64 * 1e6 / measured.duration_us as f64,
            p50_us: measured.p50_us,
            p99_us: measured.p99_us,
            cpu_us_per_request: server_time.as_secs_f64() * 1e6 / measured.requests as f64,
            resident_bytes: resident.total_bytes,
            others_share: others_time.as_secs_f64() / (elapsed.as_secs_f64() * self.cores),
        })
    }

    /// Runs wrk to its end, and calls `watch` four times per second.
    fn wrk(
        &self,
        url: &str,
        connections: u32,
        seconds: u32,
        mut watch: impl FnMut() -> Result<()>,
    ) -> Result<LoadResult> {
        let mut command = Command::new("wrk");
        command
            .args([
                "-t1",
                "--timeout",
                REQUEST_TIMEOUT,
                &format!("-c{connections}"),
                &format!("-d{seconds}s"),
            ])
            .arg("-s")
            .arg(&self.script)
            .arg(url)
            .env_remove("WEIR_BENCH_BODY")
            .env_remove("WEIR_BENCH_HEADER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(body) = &self.body {
            command.env("WEIR_BENCH_BODY", body);
        }
        if let Some(header) = &self.header {
            command.env("WEIR_BENCH_HEADER", header);
        }
        let mut wrk =
            command.spawn().context("cannot start wrk (Debian and Ubuntu: `apt-get install wrk`)")?;
        let started = Instant::now();
        // The output is short enough for the pipe, so it can be read at the end.
        while wrk.try_wait()?.is_none() {
            watch()?;
            let left = Duration::from_secs(seconds.into()).saturating_sub(started.elapsed());
            thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(250)));
        }
        let output = wrk.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.lines().find(|line| line.starts_with('{'));
        let Some(json) = json.filter(|_| output.status.success()) else {
            bail!("wrk failed on {url} ({}):\n{text}", output.status)
        };
        let measured: LoadResult =
            serde_json::from_str(json).with_context(|| format!("wrk wrote {json:?}"))?;
        if measured.refused + measured.broken > 0 || measured.requests == 0 {
            bail!("{url} did not answer everything with {connections} connections: {measured:?}");
        }
        Ok(measured)
    }
}
