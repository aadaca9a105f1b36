//! Frames of `weir top`: rates and latencies between two readings.

use super::Reading;
use crate::output::{duration, size, table, time};
use serde::Serialize;
use std::time::Duration;
use weir_types::api::{DeviceStatus, Event};

/// Functions and models that a frame shows.
const ROWS_MAX: usize = 15;
/// Cells of a bar.
const BAR: usize = 20;

/// One frame.
#[derive(Debug, Serialize)]
pub(super) struct Frame {
    url: String,
    version: String,
    state: String,
    uptime_ms: u64,
    running: u64,
    queued: u64,
    /// Processor time of the node's process, in cores.
    cpu_cores: f64,
    resident_bytes: f64,
    arena_bytes: f64,
    all: Rates,
    functions: Vec<Rates>,
    models: Vec<ModelRates>,
    devices: Vec<DeviceStatus>,
    nodes: Vec<NodeLoad>,
    events: Vec<Event>,
}

/// Calls of one function, or of all.
#[derive(Debug, Serialize)]
struct Rates {
    name: String,
    calls_per_s: f64,
    failures_per_s: f64,
    p50_s: Option<f64>,
    p99_s: Option<f64>,
    cpu_cores: f64,
}

/// Inferences of one model.
#[derive(Debug, Serialize)]
struct ModelRates {
    name: String,
    inferences_per_s: f64,
    failures_per_s: f64,
    runs_per_s: f64,
}

/// Load of a node of the cluster.
#[derive(Debug, Serialize)]
struct NodeLoad {
    node: u32,
    address: String,
    is_dispatcher: bool,
    running: u64,
    queued: u64,
    used_bytes: u64,
    capacity_bytes: u64,
}

impl Frame {
    pub(super) fn new(url: &str, before: &Reading, now: &Reading) -> Self {
        let change = Change { before, now, seconds: (now.at - before.at).as_secs_f64() };
        let status = &now.status;
        let names = now.samples.values("weir_invocations_total", "function");
        let mut functions: Vec<Rates> = names.iter().map(|name| change.function(Some(name))).collect();
        functions.sort_by(|one, other| other.calls_per_s.total_cmp(&one.calls_per_s));
        let names = now.samples.values("nv_inference_count", "model");
        let mut models: Vec<ModelRates> = names.iter().map(|name| change.model(name)).collect();
        models.sort_by(|one, other| other.inferences_per_s.total_cmp(&one.inferences_per_s));
        let cluster = status.cluster.as_ref();
        let nodes = cluster.into_iter().flat_map(|cluster| {
            cluster.nodes.iter().map(|member| {
                let bytes = |of: fn(&DeviceStatus) -> u64| member.devices.iter().map(of).sum();
                NodeLoad {
                    node: member.node.0,
                    address: member.address.clone(),
                    is_dispatcher: cluster.dispatcher == Some(member.node),
                    running: member.running,
                    queued: member.queued,
                    used_bytes: bytes(|device| device.used_bytes),
                    capacity_bytes: bytes(|device| device.capacity_bytes),
                }
            })
        });
        Self {
            url: url.to_owned(),
            version: status.version.clone(),
            state: status.state.clone(),
            uptime_ms: status.uptime_ms,
            running: status.running,
            queued: status.queued,
            cpu_cores: change.rate("process_cpu_seconds_total", &[]),
            resident_bytes: now.samples.sum("process_resident_memory_bytes", &[]),
            arena_bytes: now.samples.sum("weir_arena_used_bytes", &[]),
            all: change.function(None),
            functions,
            models,
            devices: status.devices.clone(),
            nodes: nodes.collect(),
            events: now.events.events.clone(),
        }
    }

    /// The frame as text.
    pub(super) fn lines(&self) -> Vec<String> {
        let Rates { calls_per_s, failures_per_s, p50_s, p99_s, .. } = &self.all;
        let mut lines = vec![
            format!(
                "weir top  {}  {}  version {}  up {}",
                self.url,
                self.state,
                self.version,
                duration(Duration::from_millis(self.uptime_ms))
            ),
            format!(
                "calls     {} running, {} waiting  {calls_per_s:.1}/s  {failures_per_s:.1} failed/s  p50 {}  p99 {}",
                self.running,
                self.queued,
                seconds(*p50_s),
                seconds(*p99_s)
            ),
            format!(
                "process   {:.2} cores  {} resident  {} of requests",
                self.cpu_cores,
                bytes(self.resident_bytes),
                bytes(self.arena_bytes)
            ),
        ];
        let mut add = |text: String| {
            lines.push(String::new());
            lines.extend(text.lines().map(str::to_owned));
        };
        add(table(["DEVICE", "MODEL MEMORY", "", "WAITING", "RESIDENT"], self.devices.iter().map(device)));
        if !self.nodes.is_empty() {
            add(table(
                ["NODE", "ADDRESS", "RUNNING", "WAITING", "MODEL MEMORY"],
                self.nodes.iter().map(node),
            ));
        }
        if !self.functions.is_empty() {
            let rows = self.functions.iter().take(ROWS_MAX).map(function);
            add(table(["FUNCTION", "CALLS/S", "FAILED/S", "P50", "P99", "CORES"], rows));
        }
        if !self.models.is_empty() {
            let rows = self.models.iter().take(ROWS_MAX).map(model);
            add(table(["MODEL", "INFERENCES/S", "FAILED/S", "RUNS/S"], rows));
        }
        if !self.events.is_empty() {
            let event = |event: &Event| [time(event.at_ms), event.kind.to_string(), event.text.clone()];
            add(table(["LATEST EVENTS", "", ""], self.events.iter().rev().map(event)));
        }
        lines
    }
}

/// Two readings, and the time between them.
struct Change<'a> {
    before: &'a Reading,
    now: &'a Reading,
    seconds: f64,
}

impl Change<'_> {
    /// The rate of a counter per second. A counter that was reset has no rate.
    fn rate(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let grown = self.now.samples.sum(metric, labels) - self.before.samples.sum(metric, labels);
        if self.seconds > 0.0 { grown.max(0.0) / self.seconds } else { 0.0 }
    }

    fn function(&self, name: Option<&str>) -> Rates {
        let labels: Vec<(&str, &str)> = name.map(|name| ("function", name)).into_iter().collect();
        let ok: Vec<(&str, &str)> = labels.iter().copied().chain([("code", "ok")]).collect();
        let quantile = |fraction| {
            self.now.samples.quantile(&self.before.samples, "weir_invocation_seconds", &labels, fraction)
        };
        let calls_per_s = self.rate("weir_invocations_total", &labels);
        Rates {
            name: name.unwrap_or_default().to_owned(),
            calls_per_s,
            failures_per_s: (calls_per_s - self.rate("weir_invocations_total", &ok)).max(0.0),
            p50_s: quantile(0.5),
            p99_s: quantile(0.99),
            cpu_cores: self.rate("weir_guest_cpu_seconds_total", &labels),
        }
    }

    fn model(&self, name: &str) -> ModelRates {
        let labels = [("model", name)];
        ModelRates {
            name: name.to_owned(),
            inferences_per_s: self.rate("nv_inference_count", &labels),
            failures_per_s: self.rate("nv_inference_request_failure", &labels),
            runs_per_s: self.rate("nv_inference_exec_count", &labels),
        }
    }
}

fn device(device: &DeviceStatus) -> [String; 5] {
    let name = match &device.lost {
        None => device.name.clone(),
        Some(_) => format!("{} (lost)", device.name),
    };
    [
        name,
        bar(device.used_bytes, device.capacity_bytes),
        format!("{} of {}", size(device.used_bytes), size(device.capacity_bytes)),
        device.runs_waiting.to_string(),
        device.resident.join(", "),
    ]
}

fn node(node: &NodeLoad) -> [String; 5] {
    let role = if node.is_dispatcher { " (dispatcher)" } else { "" };
    [
        format!("{}{role}", node.node),
        node.address.clone(),
        node.running.to_string(),
        node.queued.to_string(),
        format!("{} of {}", size(node.used_bytes), size(node.capacity_bytes)),
    ]
}

fn function(rates: &Rates) -> [String; 6] {
    [
        rates.name.clone(),
        format!("{:.1}", rates.calls_per_s),
        format!("{:.1}", rates.failures_per_s),
        seconds(rates.p50_s),
        seconds(rates.p99_s),
        format!("{:.2}", rates.cpu_cores),
    ]
}

fn model(rates: &ModelRates) -> [String; 4] {
    [
        rates.name.clone(),
        format!("{:.1}", rates.inferences_per_s),
        format!("{:.1}", rates.failures_per_s),
        format!("{:.1}", rates.runs_per_s),
    ]
}

/// A bar of the used share.
fn bar(used: u64, of: u64) -> String {
    let cells = if of == 0 { 0 } else { (u128::from(used) * BAR as u128).div_ceil(of.into()) };
    let full = usize::try_from(cells).unwrap_or(BAR).min(BAR);
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.1?}", Duration::from_secs_f64(value)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "memory is positive and small")]
fn bytes(value: f64) -> String {
    size(value as u64)
}

#[cfg(test)]
mod tests {
    use super::super::samples::Samples;
    use super::*;
    use std::time::Instant;
    use weir_types::api::{EventPage, Status};

    fn reading(at: Instant, calls: u32, failed: u32) -> Reading {
        let text = format!(
            "weir_invocations_total{{function=\"f\",code=\"ok\"}} {calls}\nweir_invocations_total{{function=\"f\",code=\"guest-trap\"}} {failed}\nweir_invocation_seconds_bucket{{function=\"f\",le=\"0.01\"}} {calls}\nnv_inference_count{{model=\"m\",version=\"1\"}} {calls}\n"
        );
        let device = DeviceStatus {
            name: "cpu".into(),
            kind: "cpu".into(),
            backend: "onnxruntime".into(),
            slots: 2,
            runs_waiting: 3,
            capacity_bytes: 1_000,
            used_bytes: 251,
            resident: vec!["m:1".into()],
            memory: None,
            lost: None,
        };
        let status = Status {
            version: "0.1.0".into(),
            state: "ready".into(),
            uptime_ms: 61_000,
            functions: 1,
            models: 1,
            running: 4,
            queued: 5,
            async_queued: 0,
            damaged: Vec::new(),
            devices: vec![device],
            cluster: None,
        };
        Reading { at, status, samples: Samples::parse(&text), events: EventPage::default() }
    }

    #[test]
    fn frame_shows_rates_between_two_readings() {
        let began = Instant::now();
        let before = reading(began, 10, 1);
        let now = reading(began + Duration::from_secs(2), 30, 5);
        let text = Frame::new("http://node:1", &before, &now).lines().join("\n");
        for part in [
            "4 running, 5 waiting  12.0/s  2.0 failed/s",
            "f          12.0      2.0",
            "m       10.0",
            "[######--------------]",
            "m:1",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn restarted_node_has_no_negative_rates() {
        let began = Instant::now();
        let before = reading(began, 1_000, 50);
        let now = reading(began + Duration::from_secs(1), 2, 0);
        let text = Frame::new("http://node:1", &before, &now).lines().join("\n");
        assert!(text.contains("0.0/s  0.0 failed/s"), "{text}");
    }
}
