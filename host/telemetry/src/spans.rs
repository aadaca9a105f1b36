//! Spans of invocations as lines of the node's log: one line per ended span, in any log format.
//!
//! A line has the ids of its trace, of its span and of the parent span, the request id, the tenant
//! and function, the name of the span, and its duration. Invocations that are not sampled have no
//! spans and cost nothing.

use std::fmt::Debug;
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Subscriber, info};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Target of the spans of invocations and of their log lines. A filter such as
/// `info,weir::invocation=off` disables both.
pub(crate) const SPAN_TARGET: &str = "weir::invocation";

/// Layer for the process's subscriber. The layer logs through the same subscriber.
#[derive(Debug, Default)]
pub struct SpanLog(());

/// State of a span until it ends.
struct SpanState {
    /// Time at which the span was first entered; until then, the time at which it was created.
    started: Instant,
    is_entered: bool,
    fields: Fields,
}

/// Fields of a log line. Phases have only a `span_id`; the other fields come from the span of the
/// invocation.
#[derive(Default)]
struct Fields {
    trace_id: String,
    span_id: String,
    parent_id: Option<String>,
    request_id: String,
    tenant: String,
    function: String,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLog {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target() != SPAN_TARGET {
            return;
        }
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(SpanState { started: Instant::now(), is_entered: false, fields });
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(kept) = span.extensions_mut().get_mut::<SpanState>()
            && !kept.is_entered
        {
            kept.started = Instant::now();
            kept.is_entered = true;
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(SpanState { started, fields: own, .. }) = span.extensions_mut().remove() else { return };
        let duration_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let phase = span.name();
        let line = |whole: &Fields, parent_id: Option<&str>| {
            let Fields { trace_id, request_id, tenant, function, .. } = whole;
            let span_id = &own.span_id;
            // No parent, so that the line does not belong to the current span of its thread.
            info!(target: SPAN_TARGET, parent: None, trace_id, span_id, parent_id, request_id, tenant, function, phase, duration_ns, "span");
        };
        match span.parent() {
            None => line(&own, own.parent_id.as_deref()),
            Some(above) => {
                let above = above.extensions();
                let Some(SpanState { fields: whole, .. }) = above.get() else { return };
                line(whole, Some(&whole.span_id));
            }
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "trace_id" => &mut self.trace_id,
            "span_id" => &mut self.span_id,
            "parent_id" => self.parent_id.get_or_insert_default(),
            "request_id" => &mut self.request_id,
            "tenant" => &mut self.tenant,
            "function" => &mut self.function,
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {
        // All fields are strings.
    }
}
