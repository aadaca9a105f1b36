//! Recent calls with their spans, which the API shows.
//!
//! A record ends when newer calls of its tenant displace it, or, once the node has its limit of
//! records, when the tenant with the most records loses its oldest one.

use super::context::SpanId;
use super::sink::{Attribute, AttributeValue, CallDescription, EndedSpan};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use weir_types::api::{CallKind, CallSpan, CallTimeline, RecentCall};
use weir_types::{TenantId, Version};

/// Recorded spans of a call.
const SPANS_MAX: usize = 128;
/// Bytes of each recorded text. Guests choose some of them, such as the method of a request.
const TEXT_BYTES_MAX: usize = 256;
/// Rate limits, among which tenants are distributed: so many that few tenants share one.
const RATE_LIMITS: usize = 4096;

/// Limits of recorded calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentCallLimits {
    /// Records of the node.
    pub calls_max: usize,
    /// Records of a tenant.
    pub tenant_calls_max: usize,
    /// Calls of a tenant that are recorded per second, besides calls with the header
    /// `weir-explain`; 0: none.
    pub calls_per_s: u32,
}

/// The latest calls of all tenants.
#[derive(Debug)]
pub struct RecentCalls {
    limits: RecentCallLimits,
    started: Instant,
    /// For each rate limit, the time at which its calls so far would end if they came at an even
    /// rate, in nanoseconds since the start. Tenants with equal hashes share a limit.
    spread_until_ns: Box<[AtomicU64]>,
    hasher: RandomState,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    /// The oldest record of a tenant is the first. No list is empty.
    tenants: HashMap<TenantId, VecDeque<Arc<CallTimeline>>>,
    len: usize,
}

/// Spans of a call that is recorded.
#[derive(Debug, Default)]
pub(super) struct RecordedSpans {
    spans: Vec<RecordedSpan>,
    dropped: u64,
}

#[derive(Debug)]
struct RecordedSpan {
    id: SpanId,
    parent: Option<SpanId>,
    start_unix_ns: u64,
    span: CallSpan,
}

impl RecentCalls {
    /// Creates an empty list.
    #[must_use]
    pub fn new(limits: RecentCallLimits) -> Self {
        Self {
            limits,
            started: Instant::now(),
            spread_until_ns: (0..RATE_LIMITS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            records: Mutex::default(),
        }
    }

    /// Whether to record the next call of `tenant`. `is_explained`: whether its client asked for an
    /// explanation.
    #[must_use]
    pub fn admits(&self, tenant: &TenantId, is_explained: bool) -> bool {
        let RecentCallLimits { calls_max, tenant_calls_max, calls_per_s } = self.limits;
        if calls_max == 0 || tenant_calls_max == 0 {
            return false;
        }
        is_explained || (calls_per_s > 0 && self.take(tenant, calls_per_s, self.now_ns()))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a call in the rate limit of `tenant`, unless the limit is reached.
    fn take(&self, tenant: &TenantId, per_s: u32, now_ns: u64) -> bool {
        const SECOND_NS: u64 = 1_000_000_000;
        let interval_ns = SECOND_NS / u64::from(per_s);
        let index = usize::try_from(self.hasher.hash_one(tenant)).unwrap_or(0) % RATE_LIMITS;
        let Some(limit) = self.spread_until_ns.get(index) else { return false };
        // One second's calls may come at once.
        let next = |until_ns: u64| {
            Some(until_ns.max(now_ns) + interval_ns).filter(|next_ns| next_ns - now_ns <= SECOND_NS)
        };
        // Most calls of a busy tenant only read.
        next(limit.load(Ordering::Relaxed)).is_some()
            && limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    pub(super) fn add(&self, tenant: &TenantId, call: CallTimeline) {
        let RecentCallLimits { calls_max, tenant_calls_max, .. } = self.limits;
        let mut records = self.records.lock();
        let own = records.tenants.entry(tenant.clone()).or_default();
        own.push_back(Arc::new(call));
        if own.len() > tenant_calls_max {
            own.pop_front();
            return;
        }
        records.len += 1;
        if records.len > calls_max {
            records.remove_one();
        }
    }

    /// The newest calls of `tenant` that `selects` accepts, newest first.
    #[must_use]
    pub fn list(
        &self,
        tenant: &TenantId,
        limit: usize,
        selects: impl Fn(&RecentCall) -> bool,
    ) -> Vec<RecentCall> {
        let records = self.records.lock();
        let own = records.tenants.get(tenant).into_iter().flatten().rev();
        own.map(|record| &record.call).filter(|call| selects(call)).take(limit).cloned().collect()
    }

    /// The newest call of `tenant` with a request id.
    #[must_use]
    pub fn find(&self, tenant: &TenantId, request_id: &str) -> Option<Arc<CallTimeline>> {
        let records = self.records.lock();
        let own = records.tenants.get(tenant)?;
        own.iter().rev().find(|record| record.call.request_id == request_id).cloned()
    }
}

impl Records {
    /// Removes the oldest record of the tenant with the most.
    fn remove_one(&mut self) {
        let most = self.tenants.iter().max_by_key(|(_, own)| own.len()).map(|(tenant, _)| tenant.clone());
        let Some(own) = most.as_ref().and_then(|tenant| self.tenants.get_mut(tenant)) else { return };
        own.pop_front();
        let is_empty = own.is_empty();
        self.len -= 1;
        if let Some(tenant) = most.filter(|_| is_empty) {
            self.tenants.remove(&tenant);
        }
    }
}

impl RecordedSpans {
    pub(super) fn add(&mut self, span: &EndedSpan<'_>) {
        if self.spans.len() == SPANS_MAX {
            self.dropped += 1;
            return;
        }
        let EndedSpan { id, parent, start_unix_ns, end_unix_ns, attributes, failure, .. } = *span;
        self.spans.push(RecordedSpan {
            id,
            parent,
            start_unix_ns,
            span: CallSpan {
                name: cut(span.name),
                parent: None,
                start_ns: 0,
                duration_ns: end_unix_ns.saturating_sub(start_unix_ns),
                target: target(attributes).map(|(_, name, version)| format!("{name}:{version}")),
                error: failure.map(cut),
            },
        });
    }

    /// The record of the call whose span is `call`.
    pub(super) fn into_timeline(
        mut self,
        call: &EndedSpan<'_>,
        status: Option<u16>,
        error: Option<&str>,
    ) -> Option<CallTimeline> {
        self.spans.sort_by_key(|span| span.start_unix_ns);
        let indices: HashMap<[u8; 8], u32> =
            (self.spans.iter().zip(0..)).map(|(span, at)| (*span.id.bytes(), at)).collect();
        let spans = self.spans.into_iter().map(|recorded| CallSpan {
            parent: recorded.parent.and_then(|parent| indices.get(parent.bytes()).copied()),
            start_ns: recorded.start_unix_ns.saturating_sub(call.start_unix_ns),
            ..recorded.span
        });
        let CallDescription { target: name, request_id, attributes, .. } = call.call;
        let (kind, _, version) = target(attributes)?;
        Some(CallTimeline {
            call: RecentCall {
                request_id: request_id.as_ref().to_owned(),
                kind,
                name: name.clone(),
                version,
                started_at_ms: call.start_unix_ns / 1_000_000,
                duration_ns: call.end_unix_ns.saturating_sub(call.start_unix_ns),
                status,
                error: error.map(cut),
            },
            spans: spans.collect(),
            spans_dropped: self.dropped,
        })
    }
}

/// The start of a text, up to [`TEXT_BYTES_MAX`].
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// The target of a span, from its attributes.
fn target(attributes: &[Attribute]) -> Option<(CallKind, String, Version)> {
    let kind = |key: &str| match key {
        "weir.function" => Some(CallKind::Function),
        "weir.model" => Some(CallKind::Model),
        "weir.workflow" => Some(CallKind::Workflow),
        _ => None,
    };
    let named = attributes.iter().find_map(|Attribute { key, value }| match value {
        AttributeValue::Name(name) => Some((kind(key)?, name.to_string())),
        _ => None,
    });
    let version = attributes.iter().find_map(|Attribute { key, value }| match value {
        AttributeValue::Int(version) if *key == "weir.version" => u32::try_from(*version).ok(),
        _ => None,
    });
    named.zip(version).map(|((kind, name), version)| (kind, name, Version(version)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Name;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn calls(calls_max: usize, tenant_calls_max: usize, calls_per_s: u32) -> RecentCalls {
        RecentCalls::new(RecentCallLimits { calls_max, tenant_calls_max, calls_per_s })
    }

    fn add(calls: &RecentCalls, owner: &str, request_id: &str) {
        let call = RecentCall {
            request_id: request_id.to_owned(),
            kind: CallKind::Function,
            name: Name::new("hello").unwrap(),
            version: Version(1),
            started_at_ms: 0,
            duration_ns: 0,
            status: Some(200),
            error: None,
        };
        calls.add(&tenant(owner), CallTimeline { call, spans: Vec::new(), spans_dropped: 0 });
    }

    fn ids(calls: &RecentCalls, owner: &str) -> Vec<String> {
        calls.list(&tenant(owner), 100, |_| true).into_iter().map(|call| call.request_id).collect()
    }

    #[test]
    fn busy_tenant_displaces_only_its_own_calls() {
        let calls = calls(6, 4, 1);
        add(&calls, "quiet", "q1");
        add(&calls, "quiet", "q2");
        for at in 0..50 {
            add(&calls, "busy", &format!("b{at}"));
        }
        assert_eq!(ids(&calls, "busy"), ["b49", "b48", "b47", "b46"]);
        assert_eq!(ids(&calls, "quiet"), ["q2", "q1"]);
        add(&calls, "third", "t1");
        assert_eq!(ids(&calls, "busy"), ["b49", "b48", "b47"], "the tenant with the most records loses one");
        assert_eq!(ids(&calls, "quiet"), ["q2", "q1"]);
        assert!(calls.find(&tenant("third"), "t1").is_some() && calls.find(&tenant("quiet"), "t1").is_none());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("GET"), "GET");
        assert_eq!(cut(&"é".repeat(TEXT_BYTES_MAX)), "é".repeat(TEXT_BYTES_MAX / 2));
        assert_eq!(cut(&format!("x{}", "é".repeat(TEXT_BYTES_MAX))).len(), TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn calls_are_recorded_up_to_the_rate_and_always_if_explained() {
        let calls = calls(10, 10, 3);
        let acme = &tenant("acme");
        let taken = |now_ns: u64| (0..10).filter(|_| calls.take(acme, 3, now_ns)).count();
        assert_eq!([taken(0), taken(0), taken(10_000_000_000)], [3, 0, 3]);
        assert!(calls.admits(acme, true));
        let disabled =
            RecentCalls::new(RecentCallLimits { calls_max: 0, tenant_calls_max: 9, calls_per_s: 9 });
        assert!(!disabled.admits(acme, true));
    }
}
