//! Ended spans, and the destinations to which they go.

use super::context::{SpanId, TraceId};
use http::HeaderValue;
use std::fmt;
use std::sync::Arc;
use tracing::info;
use weir_types::{Name, TenantId};

/// Destination of ended spans.
pub trait SpanSink: Send + Sync + fmt::Debug {
    /// Takes a span, without waiting: the thread serves requests.
    fn record(&self, span: &EndedSpan<'_>);
}

/// A span that has ended.
#[derive(Debug)]
pub struct EndedSpan<'a> {
    /// Id of the trace.
    pub trace_id: TraceId,
    /// Id of the span.
    pub id: SpanId,
    /// Id of the parent span.
    pub parent: Option<SpanId>,
    /// Whether the parent span belongs to another process.
    pub is_parent_remote: bool,
    /// The `tracestate` of the caller.
    pub state: Option<&'a HeaderValue>,
    /// Name of the span.
    pub name: &'a str,
    /// Role of the span.
    pub kind: SpanKind,
    /// Start, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// End, in nanoseconds since 1970.
    pub end_unix_ns: u64,
    /// Attributes.
    pub attributes: &'a [Attribute],
    /// Type of the error with which the work failed; none if the work succeeded or its client is at
    /// fault.
    pub failure: Option<&'a str>,
    /// The call that the span belongs to.
    pub call: &'a CallDescription,
}

/// Role of a span, as OpenTelemetry defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within the node.
    Internal,
    /// Serves a request.
    Server,
    /// Sends a request.
    Client,
    /// Accepts work that runs later.
    Producer,
}

/// A call, as its spans describe it.
#[derive(Debug)]
pub struct CallDescription {
    /// Name of the call's span.
    pub name: String,
    /// Role of the call's span.
    pub kind: SpanKind,
    /// Tenant of the target.
    pub tenant: TenantId,
    /// Name of the function, model or workflow.
    pub target: Name,
    /// Request id.
    pub request_id: Arc<str>,
    /// Attributes of the call's span.
    pub attributes: Vec<Attribute>,
}

/// A named property of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Name, from OpenTelemetry's semantic conventions where they have one.
    pub key: &'static str,
    /// Value.
    pub value: AttributeValue,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A constant text.
    Static(&'static str),
    /// The name of a function, model, workflow or tenant.
    Name(Name),
    /// A text that the call shares.
    Shared(Arc<str>),
    /// Another text.
    Text(String),
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

/// Target of the log lines of spans. A filter such as `info,weir::invocation=off` disables them.
const LOG_TARGET: &str = "weir::invocation";

/// Writes a line for each ended span to the log of the process.
///
/// A line has the ids of its trace, of its span and of the parent span, the request id, the tenant
/// and function, the name of the phase, and its duration. The phase of a call's own span is
/// `invocation`.
#[derive(Debug, Default)]
pub struct SpanLog(());

impl SpanSink for SpanLog {
    fn record(&self, span: &EndedSpan<'_>) {
        let EndedSpan { trace_id, id: span_id, call, .. } = span;
        let CallDescription { request_id, tenant, target: function, .. } = call;
        let parent_id = span.parent.map(tracing::field::display);
        let phase = if std::ptr::eq(span.name, call.name.as_str()) { "invocation" } else { span.name };
        let duration_ns = span.end_unix_ns.saturating_sub(span.start_unix_ns);
        info!(target: LOG_TARGET, %trace_id, %span_id, parent_id, request_id = &**request_id, %tenant, %function, phase, duration_ns, "span");
    }
}
