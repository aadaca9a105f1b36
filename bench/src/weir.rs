//! Weir node under measurement: start, deployments and metrics.

use crate::args::Args;
use crate::collector::Collector;
use crate::protocol::BinaryRequest;
use crate::server::ServerProcess;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use ureq::config::ConfigBuilder;
use ureq::http::header::AUTHORIZATION;
use ureq::http::{HeaderValue, Request};
use ureq::middleware::MiddlewareNext;
use ureq::typestate::AgentScope;
use ureq::{Agent, SendBody};

/// Starts nodes on one data folder.
pub(crate) struct Weir<'a> {
    args: &'a Args,
    folder: PathBuf,
    settings: Vec<String>,
}

/// Sampling of traces.
#[derive(Clone, Copy)]
pub(crate) enum Spans<'a> {
    /// No traces.
    Off,
    /// The default.
    Default,
    /// All invocations, as log lines.
    Logged,
    /// All invocations, exported over OTLP.
    Exported(&'a Collector),
}

impl Spans<'_> {
    fn settings(self) -> Vec<String> {
        let ratio = |ratio: u32| format!("traces.sample_ratio={ratio}");
        match self {
            Self::Off => vec![ratio(0)],
            Self::Default => Vec::new(),
            Self::Logged => vec![ratio(1)],
            Self::Exported(collector) => vec![
                ratio(1),
                format!("traces.otlp.endpoint={}", collector.url()),
                "traces.otlp.protocol=http/protobuf".to_owned(),
            ],
        }
    }
}

impl<'a> Weir<'a> {
    /// Creates a data folder under `folder`.
    pub(crate) fn new(args: &'a Args, folder: &Path) -> Result<Self> {
        let folder = folder.join("weir");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { args, folder, settings: Vec::new() })
    }

    /// Adds settings, as `name=value`.
    pub(crate) fn with_settings(mut self, settings: &[&str]) -> Self {
        self.settings.extend(settings.iter().map(ToString::to_string));
        self
    }

    /// Starts a node with the deployments of earlier nodes.
    pub(crate) fn start(&self, spans: Spans<'_>) -> Result<BenchNode> {
        let mut command = Command::new(&self.args.weir);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WEIR_") {
                command.env_remove(name);
            }
        }
        command
            .args(["up", "--no-deploy", "--listen", "127.0.0.1:0"])
            .args(spans.settings().iter().chain(&self.settings).flat_map(|setting| ["--set", setting]))
            .arg("--onnxruntime")
            .arg(&self.args.onnxruntime)
            .arg("--data")
            .arg(self.folder.join("data"))
            // Outside any folder with a `weir.toml`.
            .current_dir(&self.folder);
        Ok(BenchNode { server: ServerProcess::start(command, &self.folder.join("log"))?, agent: agent() })
    }
}

/// HTTP client that returns responses of any status.
pub(crate) fn agent() -> Agent {
    config().build().into()
}

/// [`agent`] that sends a tenant's token.
pub(crate) fn agent_with_token(token: &str) -> Result<Agent> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    let authorize = move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
        request.headers_mut().insert(AUTHORIZATION, value.clone());
        next.handle(request)
    };
    Ok(config().middleware(authorize).build().into())
}

fn config() -> ConfigBuilder<AgentScope> {
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(600)))
}

/// Running node.
pub(crate) struct BenchNode {
    pub(crate) server: ServerProcess,
    agent: Agent,
}

impl BenchNode {
    /// The node as a client with the token of a tenant.
    pub(crate) fn with_token(self, token: &str) -> Result<Self> {
        Ok(Self { agent: agent_with_token(token)?, ..self })
    }

    /// Deploys or pushes to `path`, which includes the manifest. Returns the response body.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        read(self.agent.put(self.server.url(path)).send(bytes), path)
    }

    /// Calls a function without a body.
    pub(crate) fn get(&self, path: &str) -> Result<Vec<u8>> {
        read(self.agent.get(self.server.url(path)).call(), path)
    }

    /// Calls a function with a body.
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        read(self.agent.post(self.server.url(path)).send(body), path)
    }

    /// Runs an inference. Returns the binary tensors of the response.
    pub(crate) fn infer(&self, path: &str, request: &BinaryRequest) -> Result<Vec<u8>> {
        Ok(request.send(&self.agent, &self.server.url(path))?.tensors)
    }

    /// The node's current metrics.
    pub(crate) fn metrics(&self) -> Result<ScrapedMetrics> {
        Ok(ScrapedMetrics(String::from_utf8(self.get("/metrics")?)?))
    }

    /// The node's metrics after `invocations` guests have ended: a response is sent shortly before
    /// it is counted.
    pub(crate) fn metrics_after(&self, invocations: f64) -> Result<ScrapedMetrics> {
        let started = Instant::now();
        loop {
            let metrics = self.metrics()?;
            if metrics.get("weir_phase_seconds_count{phase=\"instantiate\"}")? >= invocations {
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
pub(crate) struct ScrapedMetrics(String);

impl ScrapedMetrics {
    /// Value of a sample by its name, with its labels if it has some; a missing sample counts as
    /// zero.
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name} has the value {value:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_matched_by_its_whole_name() {
        let metrics = ScrapedMetrics("# TYPE a_b counter\na_b_count 3\na_b 2.5e-5\na_b{c=\"d\"} 7\n".into());
        assert_eq!(metrics.get("a_b").unwrap(), 2.5e-5);
        assert_eq!(metrics.get("a_b{c=\"d\"}").unwrap(), 7.0);
        assert_eq!(metrics.get("a").unwrap(), 0.0);
        assert!(ScrapedMetrics("a x\n".into()).get("a").is_err());
    }
}
