//! Spans of sampled calls: one span for the whole call, with spans of its phases and of the
//! requests that it sends below.
//!
//! A call that is not sampled has the empty trace, whose spans cost nothing. The choice is made when
//! the call arrives, and holds on all nodes that take part in the call. The client's W3C
//! `traceparent` is respected: a sampled parent makes a sampled call.
//!
//! The node also records the spans of some calls for its API (`recent.rs`), sampled or not. A call
//! that is recorded but not sampled does not change the headers of requests.

mod context;
mod phase;
mod recent;
mod sampler;
mod sink;
mod span;

pub use context::{SpanId, TraceId, TraceParent};
pub use phase::Phase;
pub use recent::{RecentCallLimits, RecentCalls};
pub use sampler::Sampler;
pub use sink::{Attribute, AttributeValue, CallDescription, EndedSpan, SpanKind, SpanLog, SpanSink};
pub use span::{ReservedSpan, Span, Spanned};

use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use recent::RecordedSpans;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use weir_call::status as status_of;
use weir_types::ErrorCode;

/// Starts the traces of a node's calls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    sampler: Sampler,
    sink: Arc<dyn SpanSink>,
    recent: RecentCalls,
}

impl Tracer {
    /// Creates the tracer of a node, whose ended spans go to `sink`.
    #[must_use]
    pub fn new(sampler: Sampler, sink: Arc<dyn SpanSink>, recent: RecentCallLimits) -> Self {
        Self(Arc::new(TracerState { sampler, sink, recent: RecentCalls::new(recent) }))
    }

    /// The recorded calls.
    #[must_use]
    pub fn recent(&self) -> &RecentCalls {
        &self.0.recent
    }

    /// Starts the trace of a call that a client sent. `is_recorded`: whether to record its spans
    /// ([`RecentCalls::admits`]).
    pub fn start(
        &self,
        parent: Option<TraceParent>,
        is_recorded: bool,
        describe: impl FnOnce() -> CallDescription,
    ) -> Trace {
        let is_sampled = parent.as_ref().is_some_and(|parent| parent.sampled) || self.0.sampler.sample();
        if !is_sampled && !is_recorded {
            return Trace::none();
        }
        CallSpan::start(self.clone(), parent, Purpose { is_sampled, is_recorded }, describe())
    }

    /// Starts the part of a trace of a call that another node forwarded. That node has chosen
    /// whether the call is sampled.
    pub fn join(&self, parent: Option<TraceParent>, describe: impl FnOnce() -> CallDescription) -> Trace {
        match parent {
            Some(parent) if parent.sampled => {
                let purpose = Purpose { is_sampled: true, is_recorded: false };
                CallSpan::start(self.clone(), Some(parent), purpose, describe())
            }
            _ => Trace::none(),
        }
    }
}

/// Where the spans of a call go.
#[derive(Debug, Clone, Copy)]
struct Purpose {
    /// Whether the spans go to the sink, and requests carry the trace.
    is_sampled: bool,
    /// Whether the spans are recorded for the API.
    is_recorded: bool,
}

/// Position in the trace of a call: new spans are children of this position's span. Empty if the
/// call is neither sampled nor recorded.
#[derive(Debug, Clone, Default)]
pub struct Trace(Option<Context>);

#[derive(Debug, Clone)]
struct Context {
    call: Arc<CallSpan>,
    span: SpanId,
}

/// The span of a call, which ends with the last reference to it.
#[derive(Debug)]
struct CallSpan {
    tracer: Tracer,
    trace_id: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
    state: Option<HeaderValue>,
    started: Instant,
    started_unix_ns: u64,
    description: CallDescription,
    is_sampled: bool,
    /// The ended spans of a recorded call.
    recorded: Option<Mutex<RecordedSpans>>,
    is_cold: AtomicBool,
    outcome: Mutex<CallOutcome>,
}

#[derive(Debug, Default)]
struct CallOutcome {
    status: Option<StatusCode>,
    failed: Option<ErrorCode>,
}

impl Trace {
    /// Returns the empty trace.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    fn within(call: Arc<CallSpan>, span: SpanId) -> Self {
        Self(Some(Context { call, span }))
    }

    /// Whether the call is sampled.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(|context| context.call.is_sampled)
    }

    /// Starts the span of a phase.
    pub fn phase(&self, phase: Phase) -> Span {
        if let Some(Context { call, .. }) = &self.0
            && matches!(phase, Phase::Fetch | Phase::Compile)
        {
            call.is_cold.store(true, Ordering::Relaxed);
        }
        self.child(SpanKind::Internal, || phase.as_str().into())
    }

    /// Runs `future` within the span of a phase.
    pub fn during<F: Future>(&self, phase: Phase, future: F) -> Spanned<F> {
        self.phase(phase).around(future)
    }

    /// Starts a span.
    pub fn child(&self, kind: SpanKind, name: impl FnOnce() -> Cow<'static, str>) -> Span {
        match &self.0 {
            Some(Context { call, span }) => Span::start(call.clone(), SpanId::random(), *span, kind, name()),
            None => Span::default(),
        }
    }

    /// Reserves a span that starts later.
    #[must_use]
    pub fn reserve(&self) -> ReservedSpan {
        ReservedSpan::new(self.clone())
    }

    /// Makes the position's span the caller of a request with these headers. Leaves them as they are
    /// if the call is not sampled.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(Context { call, span }) = &self.0 {
            call.inject(*span, headers);
        }
    }

    /// Records the status of the call's response.
    pub fn answered(&self, status: StatusCode) {
        if let Some(context) = &self.0 {
            context.call.outcome.lock().status = Some(status);
        }
    }

    /// Records that the call failed with `code`.
    pub fn failed(&self, code: ErrorCode) {
        if let Some(context) = &self.0 {
            context.call.outcome.lock().failed = Some(code);
        }
    }
}

impl CallSpan {
    fn start(
        tracer: Tracer,
        parent: Option<TraceParent>,
        purpose: Purpose,
        description: CallDescription,
    ) -> Trace {
        let id = SpanId::random();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let call = Self {
            tracer,
            trace_id: parent.as_ref().map_or_else(TraceId::random, |parent| parent.trace_id),
            id,
            parent: parent.as_ref().map(|parent| parent.parent_id),
            state: parent.and_then(|parent| parent.state),
            started: Instant::now(),
            started_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
            description,
            is_sampled: purpose.is_sampled,
            recorded: purpose.is_recorded.then(Mutex::default),
            is_cold: AtomicBool::new(false),
            outcome: Mutex::default(),
        };
        Trace::within(Arc::new(call), id)
    }

    /// The time in nanoseconds since 1970. Times of one call never go backwards.
    fn unix_ns(&self, at: Instant) -> u64 {
        let since_start = at.saturating_duration_since(self.started).as_nanos();
        self.started_unix_ns.saturating_add(u64::try_from(since_start).unwrap_or(u64::MAX))
    }

    /// Takes a span of the call that has ended.
    fn ended(&self, span: &EndedSpan<'_>) {
        if self.is_sampled {
            self.tracer.0.sink.record(span);
        }
        if let Some(recorded) = &self.recorded {
            recorded.lock().add(span);
        }
    }

    /// Makes a span of a sampled call the caller of a request with these headers.
    fn inject(&self, span: SpanId, headers: &mut HeaderMap) {
        if self.is_sampled {
            context::inject(headers, self.trace_id, span, self.state.as_ref());
        }
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let CallOutcome { status, failed } = std::mem::take(self.outcome.get_mut());
        let status = status.or_else(|| failed.map(status_of));
        let attributes = &mut self.description.attributes;
        let mut set = |key, value| attributes.push(Attribute { key, value });
        if let Some(status) = status {
            set("http.response.status_code", AttributeValue::Int(status.as_u16().into()));
        }
        if self.is_cold.load(Ordering::Relaxed) {
            set("faas.coldstart", AttributeValue::Bool(true));
        }
        // A failure by the client's fault is no error of the server.
        let is_error = [status, failed.map(status_of)].into_iter().flatten().any(|it| it.is_server_error());
        let kind = failed.map_or("server-error", ErrorCode::as_str);
        if failed.is_some() || is_error {
            set("error.type", AttributeValue::Static(kind));
        }
        let recorded = self.recorded.take().map(Mutex::into_inner);
        let span = EndedSpan {
            trace_id: self.trace_id,
            id: self.id,
            parent: self.parent,
            is_parent_remote: self.parent.is_some(),
            state: self.state.as_ref(),
            name: &self.description.name,
            kind: self.description.kind,
            start_unix_ns: self.started_unix_ns,
            end_unix_ns: self.unix_ns(Instant::now()),
            attributes: &self.description.attributes,
            failure: is_error.then_some(kind),
            call: &self.description,
        };
        if self.is_sampled {
            self.tracer.0.sink.record(&span);
        }
        let status = status.map(|status| status.as_u16());
        let error = failed.map(ErrorCode::as_str);
        if let Some(call) = recorded.and_then(|spans| spans.into_timeline(&span, status, error)) {
            self.tracer.0.recent.add(&self.description.tenant, call);
        }
    }
}

#[cfg(test)]
mod tests;
