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
        let hits = counter("hits", "Calls answered with the cached or shared response of an equal call");
        let misses = counter("misses", "Calls that found no cached response and ran");
        let evicted = counter("evictions", "Responses evicted from the cache to make room");
        let expired = counter("expirations", "Cached responses that expired");
        let answers = Gauge::default();
        let bytes = Gauge::default();
        registry.register("response_cache_answers", "Cached responses", answers.clone());
        let help = "Memory of the cached responses";
        registry.register_with_unit("response_cache", help, Unit::Bytes, bytes.clone());
        Self { hits, misses, evicted, expired, answers, bytes }
    }
}
