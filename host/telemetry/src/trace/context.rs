//! Ids of traces and spans, and the headers that carry them (W3C Trace Context).

use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use weir_call::headers::TRACEPARENT;

/// Data of tracing systems that belongs to a `traceparent`.
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length up to which a `tracestate` is propagated, as the specification requires.
const TRACESTATE_LEN_MAX: usize = 512;

/// Id of a trace; not all bytes are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// Id of a span; not all bytes are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

impl TraceId {
    pub(super) fn random() -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random().to_be_bytes());
        bytes[8..].copy_from_slice(&random().to_be_bytes());
        Self(bytes)
    }

    /// The bytes of the id.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SpanId {
    pub(super) fn random() -> Self {
        Self(random().to_be_bytes())
    }

    /// The bytes of the id.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// A random number from 1.
fn random() -> u64 {
    // The keys of the standard library's hash tables are random enough for an id.
    RandomState::new().build_hasher().finish().max(1)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The span of a caller: the headers `traceparent` (level 1) and `tracestate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent {
    pub(super) trace_id: TraceId,
    pub(super) parent_id: SpanId,
    pub(super) sampled: bool,
    pub(super) state: Option<HeaderValue>,
}

impl TraceParent {
    /// Reads the span of the caller; none if the request has none or the headers are invalid.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let parent = Self::parse(headers.get(TRACEPARENT)?.to_str().ok()?)?;
        let state = headers.get(TRACESTATE).filter(|state| state.len() <= TRACESTATE_LEN_MAX);
        Some(Self { state: state.cloned(), ..parent })
    }

    /// Parses a `traceparent`; none if it is invalid, as the specification requires.
    fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('-');
        let mut part = |digits: usize| {
            let part = parts.next()?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (is_hex && part.len() == digits).then_some(part)
        };
        let version = u8::from_str_radix(part(2)?, 16).ok()?;
        let trace_id = u128::from_str_radix(part(32)?, 16).ok()?;
        let parent_id = u64::from_str_radix(part(16)?, 16).ok()?;
        let flags = u8::from_str_radix(part(2)?, 16).ok()?;
        let is_known = version != u8::MAX && (version != 0 || parts.next().is_none());
        (is_known && trace_id != 0 && parent_id != 0).then(|| Self {
            trace_id: TraceId(trace_id.to_be_bytes()),
            parent_id: SpanId(parent_id.to_be_bytes()),
            sampled: flags & 1 == 1,
            state: None,
        })
    }
}

/// Sets the headers that make a sampled span the caller of a request.
pub(super) fn inject(
    headers: &mut HeaderMap,
    trace_id: TraceId,
    span_id: SpanId,
    state: Option<&HeaderValue>,
) {
    if let Ok(value) = HeaderValue::try_from(format!("00-{trace_id}-{span_id}-01")) {
        headers.insert(TRACEPARENT, value);
    }
    match state {
        Some(state) => headers.insert(TRACESTATE, state.clone()),
        // The state of another trace.
        None => headers.remove(TRACESTATE),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn invalid_traceparent_is_ignored() {
        assert!(TraceParent::parse(GOOD).unwrap().sampled);
        assert!(!TraceParent::parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        for bad in [
            "",
            "00",
            &GOOD[1..],
            &GOOD.replace('4', "G"),
            &GOOD.replace("00-4b", "00-+b"),
            &format!("{GOOD}-extra"),
            &GOOD.replace("00-4b", "ff-4b"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
        let later = format!("{}-extra", GOOD.replace("00-4b", "01-4b"));
        assert!(TraceParent::parse(&later).unwrap().sampled);
    }

    #[test]
    fn headers_round_trip_with_their_state() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(GOOD));
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        let parent = TraceParent::from_headers(&headers).unwrap();
        let mut sent = HeaderMap::new();
        inject(&mut sent, parent.trace_id, parent.parent_id, parent.state.as_ref());
        assert_eq!(sent, headers);
        inject(&mut sent, parent.trace_id, parent.parent_id, None);
        assert!(!sent.contains_key(TRACESTATE));
        headers.insert(TRACESTATE, HeaderValue::try_from("x".repeat(513)).unwrap());
        assert_eq!(TraceParent::from_headers(&headers).unwrap().state, None);
    }
}
