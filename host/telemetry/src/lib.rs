//! Telemetry of the node: metrics, spans and function logs.

mod device_report;
pub mod events;
pub mod gpus;
pub mod logs;
pub use device_report::{DeviceMemory, DeviceReport};

mod audit;
mod metrics;
mod trace;
pub mod usage;

pub use audit::{AuditConfig, AuditEvent, AuditLog};
pub use metrics::{
    AnswerScope, BACKLOG_DEVICES_MAX, ClosedBy, ColdStart, CutCause, DemandTotals, FunctionColdStart,
    FunctionMetrics, HandshakeFailure, HedgeMetrics, InstanceScope, LoadReason, LoadSource, Metrics,
    ModelCanaryMetrics, ModelColdStart, QuotaKind, Retired, SchedulerBacklog, Served, ShadowMetrics, Signal,
    SizeMetrics, SpanDrop, Tally, TextFormat, Times,
};
pub use trace::{
    Attribute, AttributeValue, CallDescription, EndedSpan, Phase, RecentCallLimits, RecentCalls,
    ReservedSpan, Sampler, Span, SpanId, SpanKind, SpanLog, SpanSink, Spanned, Trace, TraceId, TraceParent,
    Tracer,
};
