//! What is counted for the answers that are kept for equal calls, of all tenants together.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Handles of the response cache.
pub(crate) struct ResponseCacheMetrics {
    /// Calls that were given an answer made for another.
    pub(crate) hits: Counter,
    /// Calls that looked for one and ran.
    pub(crate) misses: Counter,
    /// Answers that made room for others.
    pub(crate) evicted: Counter,
    /// Answers whose time was up.
    pub(crate) expired: Counter,
    /// Answers that are kept.
    pub(crate) answers: Gauge,
    /// The memory that they take.
    pub(crate) bytes: Gauge,
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
        let (answers, bytes) = (Gauge::default(), Gauge::default());
        registry.register("response_cache_answers", "Answers kept for equal calls", answers.clone());
        let help = "Memory that answers kept for equal calls take";
        registry.register_with_unit("response_cache", help, Unit::Bytes, bytes.clone());
        Self { hits, misses, evicted, expired, answers, bytes }
    }
}
