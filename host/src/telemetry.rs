//! Telemetry of the node: metrics, spans and function logs.

pub(crate) mod gpus;
pub(crate) mod logs;
mod metrics;
mod spans;
mod trace;
pub(crate) mod usage;

pub(crate) use metrics::{
    ColdStart, Demand, FunctionMetrics, HedgeMetrics, Metrics, Retired, Served, SizeMetrics, Tally, Times,
};
pub use spans::SpanLog;
pub(crate) use trace::{Phase, Sampler, Trace, TraceParent};
