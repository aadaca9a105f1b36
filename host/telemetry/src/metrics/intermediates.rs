//! Metrics of tensors that move between nodes.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Series of intermediates on this node.
pub struct IntermediateMetrics {
    /// Bytes sent with inferences that other nodes run.
    pub sent_bytes: Counter,
    /// Bytes received with the responses of other nodes.
    pub received_bytes: Counter,
    kept_bytes: Counter,
    pub taken_bytes: Counter,
    pub found_bytes: Counter,
    pub refused: Counter,
    pub expired: Counter,
    len: Gauge,
    bytes: Gauge,
}

impl IntermediateMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let sent_bytes =
            counter("forwarded_sent_bytes", "Bytes of tensors sent with inferences that another node ran");
        let received_bytes = counter(
            "forwarded_received_bytes",
            "Bytes of tensors received in responses to inferences that another node ran",
        );
        let kept_bytes = counter(
            "intermediates_kept_bytes",
            "Bytes of intermediates that workflow steps left on this node",
        );
        let taken_bytes =
            counter("intermediates_taken_bytes", "Bytes of intermediates fetched from other nodes");
        let found_bytes = counter(
            "intermediates_found_bytes",
            "Bytes of intermediates on this node that steps on this node read",
        );
        let refused = counter(
            "intermediates_refused",
            "Tensors returned with the response, because there was no room for an intermediate",
        );
        let expired =
            counter("intermediates_expired", "Intermediates that expired before they were released");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let len = gauge("intermediates", "Intermediates on this node");
        let bytes = gauge("intermediates_bytes", "Bytes of the intermediates on this node");
        Self {
            sent_bytes,
            received_bytes,
            kept_bytes,
            taken_bytes,
            found_bytes,
            refused,
            expired,
            len,
            bytes,
        }
    }

    /// Counts `more_bytes` of new intermediates, and sets the current number and bytes.
    pub fn kept(&self, more_bytes: usize, (len, bytes): (usize, u64)) {
        self.kept_bytes.inc_by(more_bytes as u64);
        self.usage(len, bytes);
    }

    pub fn usage(&self, len: usize, bytes: u64) {
        self.len.set(i64::try_from(len).unwrap_or(i64::MAX));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
