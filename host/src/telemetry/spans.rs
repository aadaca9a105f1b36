//! Spans of invocations as lines of the node's log: one for each span that ends, whichever way the log is written.
//!
//! A line has the ids of its trace, of its span and of the span above, the request's id, whose function it was, what the span is called, and
//! how long it lasted. Nothing is done for invocations that are not sampled: they have no spans.

use std::fmt::Debug;
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Subscriber, info};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The target of invocations' spans and of their lines in the log; a filter such as `info,weir::invocation=off` turns both off.
pub(crate) const SPAN_TARGET: &str = "weir::invocation";

/// A layer for the process's subscriber. It logs through that same subscriber.
#[derive(Debug, Default)]
pub struct SpanLog(());

/// What is kept of a span until it ends.
struct Kept {
    /// When it was first entered; before that, and for those that nobody enters, when it was made.
    started: Instant,
    is_entered: bool,
    fields: Fields,
}

/// What the lines say. Phases have a `span_id` only; the rest is the invocation's.
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
        span.extensions_mut().insert(Kept { started: Instant::now(), is_entered: false, fields });
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(kept) = span.extensions_mut().get_mut::<Kept>()
            && !kept.is_entered
        {
            (kept.started, kept.is_entered) = (Instant::now(), true);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(Kept { started, fields: own, .. }) = span.extensions_mut().remove() else { return };
        let duration_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let phase = span.name();
        let line = |whole: &Fields, parent_id: Option<&str>| {
            let Fields { trace_id, request_id, tenant, function, .. } = whole;
            let span_id = &own.span_id;
            // On its own, not in whichever span its thread is in.
            info!(target: SPAN_TARGET, parent: None, trace_id, span_id, parent_id, request_id, tenant, function, phase, duration_ns, "span");
        };
        match span.parent() {
            None => line(&own, own.parent_id.as_deref()),
            Some(above) => {
                let above = above.extensions();
                let Some(Kept { fields: whole, .. }) = above.get() else { return };
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
        // All of them are strings.
    }
}
