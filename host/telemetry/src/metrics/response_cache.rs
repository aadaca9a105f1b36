//! Metrics of the response cache, for all tenants together.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Handles of the response cache.
pub struct ResponseCacheMetrics {
    /// Calls that got a response made for another call.
    pub hits: Counter,
    /// Calls that looked for a cached response and ran.
    pub misses: Counter,
    /// Responses evicted to make room for others.
    pub evicted: Counter,
    /// Responses whose time to live ended.
    pub expired: Counter,
    /// Cached responses.
    pub answers: Gauge,
    /// Memory of the cached responses.
    pub bytes: Gauge,
}

impl ResponseCacheMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(format!("response_cache_{name}"), help, counter.clone());
            counter
        };
        let hits = counter("hits", "Calls that were given an answer made for an equal one");
        let misses = counter("misses", "Calls that looked for such an answer and ran");
        let evicted = counter("evictions", "Answers that made room for others");
        let expired = counter("expirations", "Answers whose time to live was over");
        let answers = Gauge::default();
        let bytes = Gauge::default();
        registry.register("response_cache_answers", "Answers kept for equal calls", answers.clone());
        let help = "Memory that answers kept for equal calls take";
        registry.register_with_unit("response_cache", help, Unit::Bytes, bytes.clone());
        Self { hits, misses, evicted, expired, answers, bytes }
    }
}
