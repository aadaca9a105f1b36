//! Parts of a trace below the span of a call: spans of phases, steps and requests.

use super::context::SpanId;
use super::{CallSpan, Phase, SpanKind, Trace};
use crate::trace::sink::{Attribute, AttributeValue, EndedSpan};
use http::HeaderMap;
use pin_project_lite::pin_project;
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use weir_types::ErrorCode;

/// A span that ends when it is dropped; empty if the call is neither sampled nor recorded.
#[derive(Debug, Default)]
pub struct Span(Option<Box<ActiveSpan>>);

#[derive(Debug)]
struct ActiveSpan {
    call: Arc<CallSpan>,
    id: SpanId,
    parent: SpanId,
    name: Cow<'static, str>,
    kind: SpanKind,
    started: Instant,
    attributes: Vec<Attribute>,
    failure: Option<&'static str>,
}

impl Span {
    pub(super) fn start(
        call: Arc<CallSpan>,
        id: SpanId,
        parent: SpanId,
        kind: SpanKind,
        name: Cow<'static, str>,
    ) -> Self {
        let started = Instant::now();
        let attributes = Vec::new();
        Self(Some(Box::new(ActiveSpan { call, id, parent, name, kind, started, attributes, failure: None })))
    }

    /// The trace of work within the span: its spans are children of this span.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.0.as_ref().map_or_else(Trace::none, |span| Trace::within(span.call.clone(), span.id))
    }

    /// Runs `future` within the span, which ends with it.
    pub fn around<F: Future>(self, future: F) -> Spanned<F> {
        Spanned { future, span: self }
    }

    /// Sets an attribute, which is computed only if the call is sampled or recorded.
    pub fn set(&mut self, key: &'static str, value: impl FnOnce() -> AttributeValue) {
        if let Some(span) = &mut self.0 {
            span.attributes.push(Attribute { key, value: value() });
        }
    }

    /// Records that the work failed with `code`.
    pub fn failed(&mut self, code: ErrorCode) {
        self.failed_as(code.as_str());
    }

    /// Records that the work failed; `kind` is the type of the error.
    pub fn failed_as(&mut self, kind: &'static str) {
        if let Some(span) = &mut self.0 {
            span.failure = Some(kind);
        }
    }

    /// Makes the span the caller of a request with these headers.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(span) = &self.0 {
            span.call.inject(span.id, headers);
        }
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let call = &self.call;
        if let Some(kind) = self.failure {
            self.attributes.push(Attribute { key: "error.type", value: AttributeValue::Static(kind) });
        }
        call.ended(&EndedSpan {
            trace_id: call.trace_id,
            id: self.id,
            parent: Some(self.parent),
            is_parent_remote: false,
            state: call.state.as_ref(),
            name: &self.name,
            kind: self.kind,
            start_unix_ns: call.unix_ns(self.started),
            end_unix_ns: call.unix_ns(Instant::now()),
            attributes: &self.attributes,
            failure: self.failure,
            call: &call.description,
        });
    }
}

/// A span that starts later. Its id is known before, for the requests and spans that name it as
/// their parent.
#[derive(Debug, Default)]
pub struct ReservedSpan {
    /// The trace that the span belongs to.
    outer: Trace,
    /// The trace of work within the span.
    inner: Trace,
}

impl ReservedSpan {
    pub(super) fn new(outer: Trace) -> Self {
        let inner = match &outer.0 {
            Some(context) => Trace::within(context.call.clone(), SpanId::random()),
            None => Trace::none(),
        };
        Self { outer, inner }
    }

    /// The trace of work within the span: its spans are children of this span.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner
    }

    /// Makes the span the caller of a request with these headers. Leaves them as they are if the
    /// call is not sampled.
    pub fn inject(&self, headers: &mut HeaderMap) {
        self.inner.inject(headers);
    }

    /// Starts the span, for a phase.
    pub fn start(&self, phase: Phase) -> Span {
        match (&self.outer.0, &self.inner.0) {
            (Some(outer), Some(inner)) => {
                let call = outer.call.clone();
                Span::start(call, inner.span, outer.span, SpanKind::Internal, phase.as_str().into())
            }
            _ => Span::default(),
        }
    }
}

pin_project! {
    /// A future with a span, which ends with the future.
    #[derive(Debug)]
    pub struct Spanned<F> {
        #[pin]
        future: F,
        span: Span,
    }
}

impl<F: Future> Future for Spanned<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let output = std::task::ready!(this.future.poll(cx));
        // The future may be dropped much later than it completes.
        *this.span = Span::default();
        Poll::Ready(output)
    }
}
