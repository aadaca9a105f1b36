//! Spans of sampled invocations: one span for the whole invocation, and a child span for each of
//! its phases.
//!
//! An invocation that is not sampled has the empty span, and its phases cost nothing. The client's
//! W3C `traceparent` is respected: a sampled parent makes a sampled invocation.
//! [`SpanLog`](super::SpanLog) writes ended spans to the log.

use super::spans::SPAN_TARGET;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{Span, info_span};

/// Phase of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Waiting for a turn and a placement.
    Queue,
    /// Reading the compiled component from disk.
    Fetch,
    /// Compiling the component, if its artifact does not fit this build.
    Compile,
    /// Creating the sandbox.
    Instantiate,
    /// Running the guest, including its host calls.
    Guest,
    /// Loading a model into device memory.
    ModelLoad,
    /// Running a model, including the wait for a run slot.
    ModelRun,
    /// Decoding an image, including the wait for a turn.
    ImageDecode,
    /// Sending the rest of the response.
    Reply,
}

impl Phase {
    pub(crate) const ALL: [Self; 9] = [
        Self::Queue,
        Self::Fetch,
        Self::Compile,
        Self::Instantiate,
        Self::Guest,
        Self::ModelLoad,
        Self::ModelRun,
        Self::ImageDecode,
        Self::Reply,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Fetch => "fetch",
            Self::Compile => "compile",
            Self::Instantiate => "instantiate",
            Self::Guest => "guest",
            Self::ModelLoad => "model_load",
            Self::ModelRun => "model_run",
            Self::ImageDecode => "image_decode",
            Self::Reply => "reply",
        }
    }
}

/// Span of an invocation, or none.
#[derive(Debug, Clone)]
pub struct Trace(Span);

impl Trace {
    /// Starts the span of an invocation; empty unless the invocation is sampled.
    pub fn start(
        sampler: &Sampler,
        parent: Option<&TraceParent>,
        tenant: &str,
        function: &str,
        request_id: &str,
    ) -> Self {
        if !parent.is_some_and(|parent| parent.sampled) && !sampler.sample() {
            return Self(Span::none());
        }
        let trace_id = parent
            .map_or_else(|| format!("{}{}", random_id(), random_id()), |parent| parent.trace_id.clone());
        let parent_id = parent.map(|parent| parent.parent_id.as_str());
        Self(
            info_span!(target: SPAN_TARGET, "invocation", tenant, function, request_id, trace_id, span_id = random_id(), parent_id),
        )
    }

    /// Returns the empty span.
    pub fn none() -> Self {
        Self(Span::none())
    }

    /// Starts the span of a phase, which ends when the returned span is dropped.
    pub fn phase(&self, phase: Phase) -> Span {
        if self.0.is_disabled() {
            return Span::none();
        }
        // The name of a span is static, so each phase has a call site.
        macro_rules! span {
            ($name:literal) => {
                info_span!(target: SPAN_TARGET, parent: &self.0, $name, span_id = random_id())
            };
        }
        match phase {
            Phase::Queue => span!("queue"),
            Phase::Fetch => span!("fetch"),
            Phase::Compile => span!("compile"),
            Phase::Instantiate => span!("instantiate"),
            Phase::Guest => span!("guest"),
            Phase::ModelLoad => span!("model_load"),
            Phase::ModelRun => span!("model_run"),
            Phase::ImageDecode => span!("image_decode"),
            Phase::Reply => span!("reply"),
        }
    }
}

/// Returns the id of a span, or half of a trace id: 16 hexadecimal digits, not all of them zero.
fn random_id() -> String {
    // The keys of the standard library's hash tables are random enough for an id.
    format!("{:016x}", RandomState::new().build_hasher().finish().max(1))
}

/// Traces of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// Fraction of requests that are traced, from 0 to 1. Requests with a sampled `traceparent` are
    /// always traced. Each phase of a traced request becomes a log line with the ids of its trace
    /// and span.
    pub sample_ratio: f64,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self { sample_ratio: 0.01 }
    }
}

impl TracesConfig {
    /// Creates the sampler of requests without a sampled `traceparent`.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        Sampler::new(self.sample_ratio)
    }
}

/// Samples the last of every n invocations. The ratio holds without random numbers, and a few calls
/// made by hand leave no spans in the log.
#[derive(Debug)]
pub struct Sampler {
    /// None: samples nothing.
    every: Option<u64>,
    seen: AtomicU64,
}

impl Sampler {
    /// Creates a sampler; `ratio` is from 0 (never) to 1 (always).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a ratio in (0, 1] has a reciprocal of at least 1"
    )]
    pub fn new(ratio: f64) -> Self {
        let every = (ratio > 0.0).then(|| (1.0 / ratio.min(1.0)).round() as u64);
        Self { every, seen: AtomicU64::new(0) }
    }

    fn sample(&self) -> bool {
        self.every.is_some_and(|every| (self.seen.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every))
    }
}

/// The `traceparent` header (W3C Trace Context, level 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: String,
    parent_id: String,
    sampled: bool,
}

impl TraceParent {
    /// Parses a header value; none if it is invalid, as the specification requires.
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('-');
        let (version, trace_id, parent_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let zero = |text: &str| text.bytes().all(|b| b == b'0');
        let known = hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !known
            || !hex(trace_id, 32)
            || !hex(parent_id, 16)
            || !hex(flags, 2)
            || zero(trace_id)
            || zero(parent_id)
        {
            return None;
        }
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned(), sampled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_traceparent_is_ignored() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(TraceParent::parse(good).unwrap().sampled);
        assert!(!TraceParent::parse(&good.replace("-01", "-00")).unwrap().sampled);
        for bad in [
            "",
            "00",
            &good[1..],
            &good.replace('4', "G"),
            &format!("{good}-extra"),
            &good.replace("00-4b", "ff-4b"),
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sampler_keeps_its_ratio() {
        let count = |ratio| {
            let sampler = Sampler::new(ratio);
            (0..1_000).filter(|_| sampler.sample()).count()
        };
        assert_eq!((count(0.0), count(0.01), count(1.0)), (0, 10, 1_000));
    }
}
