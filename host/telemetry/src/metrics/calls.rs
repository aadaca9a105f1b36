//! Metrics of invocations, for all functions together.

use super::{counter, gauge, time_buckets};
use crate::trace::Phase;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// Series of invocations.
pub struct CallMetrics {
    /// Time of each phase, in the order of [`Phase::ALL`].
    phase_seconds: [Histogram; Phase::ALL.len()],
    cold_starts: Family<Cause, Counter>,
    guest_memory_bytes: Histogram,
    /// Invocations that another node of the cluster ran.
    pub forwarded: Counter,
    /// Invocations that a node rejected, or that were lost with a node.
    pub rescheduled: Counter,
    /// Invocations running now.
    pub running: Gauge,
    /// Invocations waiting now.
    pub queued: Gauge,
}

/// Cause of a cold start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColdStart {
    /// The compiled component was not loaded.
    Component,
    /// The component also had to be compiled.
    Compile,
    /// A model was not in device memory.
    Model,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: ColdStart,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

impl EncodeLabelValue for ColdStart {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        match self {
            Self::Component => "component",
            Self::Compile => "compile",
            Self::Model => "model",
        }
        .encode(encoder)
    }
}

impl CallMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let phases: Family<PhaseLabel, Histogram> = Family::new_with_constructor(time_buckets);
        let phase_seconds =
            Phase::ALL.map(|phase| phases.get_or_create_owned(&PhaseLabel { phase: phase.as_str() }));
        registry.register_with_unit("phase", "Time of invocations, by phase", Unit::Seconds, phases);
        let cold_starts = Family::<Cause, Counter>::default();
        let help = "Things made ready for an invocation, by cause";
        registry.register("cold_starts", help, cold_starts.clone());
        let guest_memory_bytes = Histogram::new(exponential_buckets(65_536.0, 2.0, 16));
        let help = "Linear memory of guests at the end of their invocation";
        registry.register_with_unit("guest_memory", help, Unit::Bytes, guest_memory_bytes.clone());
        let help = "Invocations that another node of the cluster ran";
        let forwarded = counter(registry, "invocations_forwarded", help);
        let help = "Invocations that a node rejected, or that were lost with a node";
        let rescheduled = counter(registry, "invocations_rescheduled", help);
        let running = gauge(registry, "invocations_running", "Running invocations");
        let queued = gauge(registry, "invocations_queued", "Waiting invocations");
        Self { phase_seconds, cold_starts, guest_memory_bytes, forwarded, rescheduled, running, queued }
    }

    pub(super) fn phase(&self, phase: Phase, time: Duration) {
        self.phase_seconds[phase as usize].observe(time.as_secs_f64());
    }

    #[expect(clippy::cast_precision_loss, reason = "histogram buckets are coarser than the rounding")]
    pub(super) fn guest_memory(&self, bytes: usize) {
        self.guest_memory_bytes.observe(bytes as f64);
    }

    pub(super) fn cold_start(&self, cause: ColdStart) {
        self.cold_starts.get_or_create(&Cause { cause }).inc();
    }
}
