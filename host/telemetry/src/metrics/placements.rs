//! Metrics of the scheduler: its estimates, and its backlog.

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

/// Buckets of a ratio, finer around 1.
const BUCKETS: [f64; 15] = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 10.0];

/// Devices with a separate backlog metric. A scraper of a large cluster gets at most one series more
/// than this, for the sum of all other devices.
pub const BACKLOG_DEVICES_MAX: usize = 256;
/// Labels of the sum.
const OTHER: &str = "other";

/// Metrics of placements.
pub struct PlacementMetrics {
    estimate_ratio: Family<PlacementLabels, Histogram>,
    backlog: Family<BacklogLabels, Gauge<f64, AtomicU64>>,
    device_backlog: Family<BacklogDeviceLabels, Gauge<f64, AtomicU64>>,
    /// The labels of `device_backlog`.
    backlog_devices: Mutex<BTreeSet<BacklogDeviceLabels>>,
    run_slots: Gauge,
    waiting_calls: Gauge,
    copies_missing: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct BacklogDeviceLabels {
    node: String,
    device: String,
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
    /// Number of invocations that wait for a device.
    pub waiting_calls: u64,
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
        let device_backlog = Family::default();
        registry.register_with_unit(
            "scheduler_device_backlog",
            "Predicted device time of the invocations that this node's scheduler has placed on a device and that have not ended, by node and ordinal of the device",
            Unit::Seconds,
            device_backlog.clone(),
        );
        let run_slots = Gauge::default();
        registry.register(
            "scheduler_run_slots",
            "Run slots of the devices on which this node's scheduler places invocations",
            run_slots.clone(),
        );
        let waiting_calls = Gauge::default();
        registry.register(
            "scheduler_waiting_calls",
            "Invocations that wait in this node's scheduler for a device, or for their tenant's turn",
            waiting_calls.clone(),
        );
        let copies_missing = Gauge::default();
        registry.register(
            "scheduler_copies_missing",
            "Copies of models that `copies_min` requires and that no device keeps for lack of room or after a failed load",
            copies_missing.clone(),
        );
        let backlog_devices = Mutex::default();
        Self {
            estimate_ratio,
            backlog,
            device_backlog,
            backlog_devices,
            run_slots,
            waiting_calls,
            copies_missing,
        }
    }

    /// Sets the gauges of the scheduler's work, all zero for a node that asks a dispatcher.
    pub fn set_backlog(&self, backlog: SchedulerBacklog) {
        let SchedulerBacklog { waiting_s, committed_s, run_slots, waiting_calls, copies_missing } = backlog;
        for (state, seconds) in [("waiting", waiting_s), ("committed", committed_s)] {
            self.backlog.get_or_create(&BacklogLabels { state }).set(seconds);
        }
        self.run_slots.set(i64::from(run_slots));
        self.waiting_calls.set(i64::try_from(waiting_calls).unwrap_or(i64::MAX));
        self.copies_missing.set(i64::try_from(copies_missing).unwrap_or(i64::MAX));
    }

    /// Sets the gauges of the work of devices, by node and ordinal, and of the sum of all `others`, and
    /// removes those of all other devices. `devices` has at most [`BACKLOG_DEVICES_MAX`] elements.
    pub fn set_device_backlogs(
        &self,
        devices: impl IntoIterator<Item = ((u32, u32), f64)>,
        others_s: Option<f64>,
    ) {
        let devices = devices.into_iter().map(|((node, device), seconds)| {
            (BacklogDeviceLabels { node: node.to_string(), device: device.to_string() }, seconds)
        });
        let others = || BacklogDeviceLabels { node: OTHER.to_owned(), device: OTHER.to_owned() };
        let others = others_s.map(|seconds| (others(), seconds));
        // One scrape at a time: a device that has left since must not return.
        let mut shown = self.backlog_devices.lock();
        let mut gone = std::mem::take(&mut *shown);
        for (labels, seconds) in devices.take(BACKLOG_DEVICES_MAX).chain(others) {
            self.device_backlog.get_or_create(&labels).set(seconds);
            gone.remove(&labels);
            shown.insert(labels);
        }
        for labels in gone {
            self.device_backlog.remove(&labels);
        }
    }

    /// Counts the end of an invocation on a device of this kind: `ratio` is its estimated time over
    /// the time that it took.
    pub fn ended(&self, kind: &str, ratio: f64) {
        self.estimate_ratio.get_or_create(&PlacementLabels { kind: kind.to_owned() }).observe(ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_left_have_no_backlog_and_the_number_of_series_is_limited() {
        let mut registry = Registry::default();
        let metrics = PlacementMetrics::register(&mut registry);
        let series = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("scheduler_device_backlog_seconds{"));
            lines.map(|line| line.split_once('{').unwrap().1.to_owned()).collect::<BTreeSet<_>>()
        };
        metrics.set_device_backlogs([((1, 0), 0.5), ((1, 1), 0.0), ((2, 0), 7.0)], None);
        let expected = ["node=\"1\",device=\"0\"} 0.5", "node=\"1\",device=\"1\"} 0.0"];
        let all = series();
        assert!(all.len() == 3 && expected.iter().all(|line| all.contains(*line)), "{all:?}");
        metrics.set_device_backlogs([((1, 1), 0.25)], Some(3.0));
        let expected = ["node=\"1\",device=\"1\"} 0.25", "node=\"other\",device=\"other\"} 3.0"];
        assert_eq!(series(), expected.map(str::to_owned).into());
        metrics.set_device_backlogs((0..1_000).map(|node| ((node, 0), 1.0)), Some(1.0));
        assert_eq!(series().len(), BACKLOG_DEVICES_MAX + 1);
        metrics.set_device_backlogs([], None);
        assert!(series().is_empty());
    }
}
