//! Configuration of traces and of their export.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_telemetry::{RecentCallLimits, Sampler};

/// Traces of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// Fraction of requests that are traced, from 0 to 1. Requests with a sampled `traceparent` are
    /// always traced.
    pub sample_ratio: f64,
    /// Recent calls of all tenants whose timelines the node keeps in memory, for `/v1/calls`; 0: none.
    pub recent_calls_max: u32,
    /// Recent calls of a tenant whose timelines the node keeps.
    pub tenant_recent_calls_max: u32,
    /// Calls of a tenant whose timelines the node records per second, besides calls with the header
    /// `weir-explain`.
    pub recent_calls_per_s: u32,
    /// OpenTelemetry collector that receives the traces and the node's metrics. Without a collector,
    /// each span of a traced request becomes a line of the node's log.
    pub otlp: OtlpConfig,
}

/// Export to an OpenTelemetry collector. The standard variables `OTEL_EXPORTER_OTLP_*`,
/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` apply to settings that are not set here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpConfig {
    /// URL of the collector, such as `http://127.0.0.1:4317`. None: `OTEL_EXPORTER_OTLP_ENDPOINT`, or
    /// no export.
    pub endpoint: Option<String>,
    /// Protocol: `grpc` or `http/protobuf`. None: `OTEL_EXPORTER_OTLP_PROTOCOL`, or `grpc`.
    pub protocol: Option<OtlpProtocol>,
    /// File of headers for the collector, such as a token, one `NAME: VALUE` per line. The node
    /// refuses a file that every user of the machine can read. None: `OTEL_EXPORTER_OTLP_HEADERS`.
    pub headers_file: Option<PathBuf>,
    /// PEM file of the authority of the collector's certificate. None:
    /// `OTEL_EXPORTER_OTLP_CERTIFICATE`, or the system's authorities.
    pub ca: Option<PathBuf>,
    /// Longest time of one request to the collector.
    pub timeout_ms: u64,
    /// Longest time for which an ended span waits for others, to be sent with them.
    pub spans_interval_ms: u64,
    /// Memory of spans that wait to be sent. Spans that do not fit are dropped.
    pub queue_bytes_max: u64,
    /// Interval at which all metrics are sent. 0: metrics are not sent.
    pub metrics_interval_ms: u64,
    /// Further attributes of the node, such as `deployment.environment.name`.
    pub resource: BTreeMap<String, String>,
}

/// A protocol of OpenTelemetry collectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpProtocol {
    /// gRPC; usually at port 4317.
    #[serde(rename = "grpc")]
    Grpc,
    /// HTTP with messages in Protobuf; usually at port 4318.
    #[serde(rename = "http/protobuf")]
    Http,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            sample_ratio: 0.01,
            recent_calls_max: 2_000,
            tenant_recent_calls_max: 500,
            recent_calls_per_s: 10,
            otlp: OtlpConfig::default(),
        }
    }
}

impl TracesConfig {
    /// Creates the sampler of requests without a sampled `traceparent`.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        Sampler::new(self.sample_ratio)
    }

    /// The limits of recorded calls.
    #[must_use]
    pub fn recent_calls(&self) -> RecentCallLimits {
        RecentCallLimits {
            calls_max: self.recent_calls_max as usize,
            tenant_calls_max: self.tenant_recent_calls_max as usize,
            calls_per_s: self.recent_calls_per_s,
        }
    }
}

impl Default for OtlpConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            headers_file: None,
            ca: None,
            timeout_ms: 10_000,
            spans_interval_ms: 1_000,
            queue_bytes_max: 8 << 20,
            metrics_interval_ms: 60_000,
            resource: BTreeMap::new(),
        }
    }
}
