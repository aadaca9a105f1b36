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
        let sent_bytes = counter(
            "forwarded_sent_bytes",
            "Bytes of tensors sent along with inferences that another node ran",
        );
        let received_bytes = counter(
            "forwarded_received_bytes",
            "Bytes of tensors in the answers of nodes that ran inferences",
        );
        let kept_bytes =
            counter("intermediates_kept_bytes", "Bytes that steps have left here for steps on any node");
        let taken_bytes = counter(
            "intermediates_taken_bytes",
            "Bytes that steps left on another node and were taken from there",
        );
        let found_bytes =
            counter("intermediates_found_bytes", "Bytes that steps left here and other steps here have read");
        let refused = counter(
            "intermediates_refused",
            "Tensors that went back with the answer since there was no room",
        );
        let expired =
            counter("intermediates_expired", "Intermediates that nobody let go of before their deadline");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let len = gauge("intermediates", "Intermediates here now");
        let bytes = gauge("intermediates_bytes", "Bytes of intermediates here now");
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
