//! A Weir node to measure: how it is started, deployed to and asked for its metrics.

use crate::args::Args;
use crate::protocol::Request;
use crate::server::Server;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use ureq::Agent;

/// A data folder, and how to start a node on it.
pub(crate) struct Weir<'a> {
    args: &'a Args,
    folder: PathBuf,
    settings: Vec<String>,
}

/// Spans of every n-th invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spans {
    /// Of none.
    Off,
    /// Of every one.
    On,
}

impl<'a> Weir<'a> {
    /// Nodes that keep everything under `folder`.
    pub(crate) fn new(args: &'a Args, folder: &Path) -> Result<Self> {
        let folder = folder.join("weir");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { args, folder, settings: Vec::new() })
    }

    /// Nodes that have settings of their own, as `name=value`.
    pub(crate) fn with_settings(mut self, settings: &[&str]) -> Self {
        self.settings.extend(settings.iter().map(ToString::to_string));
        self
    }

    /// Start a node. What was deployed to an earlier one is there.
    pub(crate) fn start(&self, spans: Spans) -> Result<Node> {
        let mut command = Command::new(&self.args.weir);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WEIR_") {
                command.env_remove(name);
            }
        }
        let ratio = if spans == Spans::On { 1 } else { 0 };
        command
            .args([
                "up",
                "--no-deploy",
                "--listen",
                "127.0.0.1:0",
                "--set",
                &format!("trace_sample_ratio={ratio}"),
            ])
            .args(self.settings.iter().flat_map(|setting| ["--set", setting]))
            .arg("--onnxruntime")
            .arg(&self.args.onnxruntime)
            .arg("--data")
            .arg(self.folder.join("data"))
            // No `weir.toml` above it.
            .current_dir(&self.folder);
        Ok(Node { server: Server::start(command, &self.folder.join("log"))?, agent: agent() })
    }
}

/// A client that takes answers of any status.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(600)))
        .build()
        .into()
}

/// A running node.
pub(crate) struct Node {
    pub(crate) server: Server,
    agent: Agent,
}

impl Node {
    /// Deploy or push; `path` says what and with which manifest. Gives what the node says about it.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        read(self.agent.put(self.server.url(path)).send(bytes), path)
    }

    /// Call a function without a body.
    pub(crate) fn get(&self, path: &str) -> Result<Vec<u8>> {
        read(self.agent.get(self.server.url(path)).call(), path)
    }

    /// Call a function with a body.
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        read(self.agent.post(self.server.url(path)).send(body), path)
    }

    /// Ask for an inference. Gives the tensors behind the JSON of the answer.
    pub(crate) fn infer(&self, path: &str, request: &Request) -> Result<Vec<u8>> {
        Ok(request.send(&self.agent, &self.server.url(path))?.tensors)
    }

    /// The node's metrics, now.
    pub(crate) fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics(String::from_utf8(self.get("/metrics")?)?))
    }

    /// The node's metrics, once so many guests have ended: the answer goes out a little before it is counted.
    pub(crate) fn metrics_after(&self, invocations: f64) -> Result<Metrics> {
        let started = Instant::now();
        loop {
            let metrics = self.metrics()?;
            if metrics.get("weir_phase_instantiate_seconds_count")? >= invocations {
                return Ok(metrics);
            }
            if started.elapsed() > Duration::from_secs(10) {
                bail!("the node did not count {invocations} invocations:\n{}", metrics.0);
            }
        }
    }
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>, path: &str) -> Result<Vec<u8>> {
    let mut answer = answer.with_context(|| format!("no answer from {path}"))?;
    let body = answer.body_mut().read_to_vec()?;
    if !answer.status().is_success() {
        bail!("{path} answered {}: {}", answer.status(), String::from_utf8_lossy(&body));
    }
    Ok(body)
}

/// Metrics in the OpenMetrics text format.
pub(crate) struct Metrics(String);

impl Metrics {
    /// The value of a metric without labels; nothing has been counted where it is not there.
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name} has the value {value:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics = Metrics("# TYPE a_b counter\na_b_count 3\na_b 2.5e-5\n".into());
        assert_eq!(metrics.get("a_b").unwrap(), 2.5e-5);
        assert_eq!(metrics.get("a").unwrap(), 0.0);
        assert!(Metrics("a x\n".into()).get("a").is_err());
    }
}
