//! Metrics of the export to an OpenTelemetry collector.

use super::counter;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Why spans were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpanDrop {
    /// The queue was full.
    Queue,
    /// The collector could not be reached, or did not answer, until the last attempt.
    Unsent,
    /// The collector rejected them.
    Rejected,
}

/// Kind of exported telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalLabel {
    signal: &'static str,
}

/// Series of the export to a collector.
pub struct OtlpMetrics {
    /// Spans that the collector has accepted.
    pub spans_exported: Counter,
    spans_dropped: Family<ReasonLabel, Counter>,
    failures: Family<SignalLabel, Counter>,
}

impl SpanDrop {
    const ALL: [Self; 3] = [Self::Queue, Self::Unsent, Self::Rejected];

    fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Unsent => "unsent",
            Self::Rejected => "rejected",
        }
    }
}

impl Signal {
    const ALL: [Self; 2] = [Self::Traces, Self::Metrics];

    /// The name of the signal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
        }
    }
}

impl OtlpMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Spans that the OpenTelemetry collector has accepted";
        let spans_exported = counter(registry, "otlp_spans_exported", help);
        let spans_dropped = Family::<ReasonLabel, Counter>::default();
        let help = "Spans that did not reach the OpenTelemetry collector, by reason";
        registry.register("otlp_spans_dropped", help, spans_dropped.clone());
        let failures = Family::<SignalLabel, Counter>::default();
        let help = "Failed requests to the OpenTelemetry collector, by signal";
        registry.register("otlp_export_failures", help, failures.clone());
        let metrics = Self { spans_exported, spans_dropped, failures };
        // Series from the start, so that alerts see the first increase.
        SpanDrop::ALL.into_iter().for_each(|reason| metrics.dropped(reason, 0));
        for signal in Signal::ALL {
            drop(metrics.failures.get_or_create(&SignalLabel { signal: signal.as_str() }));
        }
        metrics
    }

    /// Counts spans that were dropped.
    pub fn dropped(&self, reason: SpanDrop, spans: u64) {
        self.spans_dropped.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc_by(spans);
    }

    /// Counts a request that failed.
    pub fn failed(&self, signal: Signal) {
        self.failures.get_or_create(&SignalLabel { signal: signal.as_str() }).inc();
    }
}
