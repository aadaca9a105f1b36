//! Metrics of the scheduler: its estimates, and its backlog.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Buckets of a ratio, finer around 1.
const BUCKETS: [f64; 15] = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 10.0];

/// Metrics of placements.
pub struct PlacementMetrics {
    estimate_ratio: Family<PlacementLabels, Histogram>,
    backlog: Family<BacklogLabels, Gauge<f64, AtomicU64>>,
    run_slots: Gauge,
    copies_missing: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlacementLabels {
    kind: String,
}

/// Work of a scheduler: predicted device time of invocations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SchedulerBacklog {
    /// Device time of the invocations that wait for a device.
    pub waiting_s: f64,
    /// Device time of the invocations on devices, which have not ended.
    pub committed_s: f64,
    /// Run slots of the devices.
    pub run_slots: u32,
    /// Copies of models that `copies_min` requires and no device keeps.
    pub copies_missing: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BacklogLabels {
    state: &'static str,
}

impl PlacementMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let estimate_ratio =
            Family::<PlacementLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register(
            "placement_estimate_ratio",
            "Ratio of the estimated time to the actual time of placed invocations, by kind of device",
            estimate_ratio.clone(),
        );
        let backlog = Family::default();
        registry.register_with_unit(
            "scheduler_backlog",
            "Predicted device time of the invocations that this node's scheduler has not placed, or whose placement has not ended",
            Unit::Seconds,
            backlog.clone(),
        );
        let run_slots = Gauge::default();
        registry.register(
            "scheduler_run_slots",
            "Run slots of the devices on which this node's scheduler places invocations",
            run_slots.clone(),
        );
        let copies_missing = Gauge::default();
        registry.register(
            "scheduler_copies_missing",
            "Copies of models that `copies_min` requires and that no device keeps for lack of room or after a failed load",
            copies_missing.clone(),
        );
        Self { estimate_ratio, backlog, run_slots, copies_missing }
    }

    /// Sets the gauges of the scheduler's work, all zero for a node that asks a dispatcher.
    pub fn set_backlog(&self, backlog: SchedulerBacklog) {
        let SchedulerBacklog { waiting_s, committed_s, run_slots, copies_missing } = backlog;
        for (state, seconds) in [("waiting", waiting_s), ("committed", committed_s)] {
            self.backlog.get_or_create(&BacklogLabels { state }).set(seconds);
        }
        self.run_slots.set(i64::from(run_slots));
        self.copies_missing.set(i64::try_from(copies_missing).unwrap_or(i64::MAX));
    }

    /// Counts the end of an invocation on a device of this kind: `ratio` is its estimated time over
    /// the time that it took.
    pub fn ended(&self, kind: &str, ratio: f64) {
        self.estimate_ratio.get_or_create(&PlacementLabels { kind: kind.to_owned() }).observe(ratio);
    }
}
