//! Metrics of WebSockets.

use super::gauge;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClosedLabels {
    by: &'static str,
}

/// Who ended a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client closed it.
    Client,
    /// The function closed it, or failed.
    Function,
    /// The node closed it: the client broke a rule or exceeded a limit.
    Limit,
    /// The node closed it: the node stops, or the longest time has passed.
    Expiry,
    /// The connection was lost, or its client did not answer.
    Loss,
}

/// Series of WebSockets.
pub struct WebSocketMetrics {
    open: Gauge,
    closed: Family<ClosedLabels, Counter>,
}

/// An open WebSocket, until dropped.
pub struct OpenWebSocket(Gauge);

impl WebSocketMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let closed = Family::default();
        let help = "Closed WebSockets, by who closed them";
        registry.register("websockets_closed", help, closed.clone());
        Self { open: gauge(registry, "websockets", "Open WebSockets of clients of this node"), closed }
    }

    /// Counts an open WebSocket until the result is dropped.
    pub fn open(&self) -> OpenWebSocket {
        self.open.inc();
        OpenWebSocket(self.open.clone())
    }

    /// Counts a closed WebSocket.
    pub fn closed(&self, by: ClosedBy) {
        let by = match by {
            ClosedBy::Client => "client",
            ClosedBy::Function => "function",
            ClosedBy::Limit => "limit",
            ClosedBy::Expiry => "expiry",
            ClosedBy::Loss => "loss",
        };
        self.closed.get_or_create(&ClosedLabels { by }).inc();
    }
}

impl Drop for OpenWebSocket {
    fn drop(&mut self) {
        self.0.dec();
    }
}
