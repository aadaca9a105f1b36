//! What the node tells about itself: metrics, spans and the functions' logs.

pub(crate) mod logs;
mod metrics;
mod spans;
mod trace;

pub(crate) use metrics::{ColdStart, FunctionMetrics, Metrics, Retired, Served, Tally, Times};
pub use spans::SpanLog;
pub(crate) use trace::{Phase, Sampler, Trace, TraceParent};
