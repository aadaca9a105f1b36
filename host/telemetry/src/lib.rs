//! Telemetry of the node: metrics, spans and function logs.

mod device_report;
pub mod events;
pub mod gpus;
pub mod logs;
pub use device_report::DeviceReport;

mod audit;
mod metrics;
mod spans;
mod trace;
pub mod usage;

pub use audit::{AuditConfig, AuditEvent, AuditLog};
pub use metrics::{
    AnswerScope, ColdStart, CutCause, DemandTotals, FunctionMetrics, GuestMemoryScope, HandshakeFailure,
    HedgeMetrics, Metrics, QuotaKind, Retired, Served, SizeMetrics, Tally, TextFormat, Times,
};
pub use spans::SpanLog;
pub use trace::{Phase, Sampler, Trace, TraceParent, TracesConfig};
