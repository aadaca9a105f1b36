//! Metrics by device.

use crate::DeviceReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_inference::{ExecutorFigures, HandedOver, PinnedCacheFigures};

/// Metrics of the node's devices.
pub struct DeviceMetrics {
    resident_bytes: Family<DeviceLabels, Gauge>,
    capacity_bytes: Family<DeviceLabels, Gauge>,
    outside_bytes: Family<DeviceLabels, Gauge>,
    runs_waiting: Family<DeviceLabels, Gauge>,
    up: Family<DeviceLabels, Gauge>,
    losses: Family<DeviceLabels, Counter>,
    fallbacks: Family<DeviceLabels, Counter>,
    capture_failures: Family<DeviceLabels, Counter>,
    intermediates: Family<DeviceLabels, Gauge>,
    intermediates_bytes: Family<DeviceLabels, Gauge>,
    handed_over_bytes: Family<WayLabels, Counter>,
    spilled_bytes: Family<TierLabels, Counter>,
    pinned_cache_bytes: Family<DeviceLabels, Gauge>,
    pinned_cache_capacity_bytes: Family<DeviceLabels, Gauge>,
    pinned_cache_hit_bytes: Family<DeviceLabels, Counter>,
    pinned_cache_miss_bytes: Family<DeviceLabels, Counter>,
    transfers: Transfers,
}

/// Transfers of models' weights between tiers.
struct Transfers {
    bytes: Family<TransferLabels, Counter>,
    seconds: Family<TransferLabels, Counter<f64, AtomicU64>>,
    prefetches: Family<PrefetchLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeviceLabels {
    device: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WayLabels {
    device: String,
    through: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabels {
    device: String,
    to: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransferLabels {
    from: String,
    to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PrefetchLabels {
    outcome: &'static str,
}

impl DeviceLabels {
    fn for_device(device: &str) -> Self {
        Self { device: device.to_owned() }
    }
}

impl DeviceMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut gauge = |name: &str, help: &str| {
            let family = Family::<DeviceLabels, Gauge>::default();
            registry.register(name, help, family.clone());
            family
        };
        let resident_bytes = gauge("model_resident_bytes", "Device memory used by models");
        let capacity_bytes = gauge("device_capacity_bytes", "Device memory available to models");
        let help = "Device memory used outside of the pool for models and runs: contexts, modules, graphs, libraries, other processes";
        let outside_bytes = gauge("device_outside_pool_bytes", help);
        let runs_waiting = gauge("device_runs_waiting", "Model runs that wait for a run slot of the device");
        let up = gauge("device_up", "1 while the device is up, 0 while it is lost");
        let intermediates =
            gauge("device_intermediates", "Intermediate tensors that runs left on the device for other runs");
        let intermediates_bytes =
            gauge("device_intermediates_bytes", "Bytes of the intermediate tensors on the device");
        let pinned_cache_bytes = gauge("device_pinned_cache_bytes", "Bytes of weights in the pinned cache");
        let help = "Pinned host memory that caches weights";
        let pinned_cache_capacity_bytes = gauge("device_pinned_cache_capacity_bytes", help);
        let mut counter = |name: &str, help: &str| {
            let family = Family::<DeviceLabels, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let losses = counter("device_losses", "Losses of the device, with the contents of its memory");
        let help = "Models that were placed on the device, but opened or run on another device because this device does not support them";
        let fallbacks = counter("device_fallbacks", help);
        let help = "Runs that the driver failed to capture or repeat as a CUDA graph, and that were launched kernel by kernel";
        let capture_failures = counter("device_capture_failures", help);
        let help = "Bytes of weights that loads copied to the device from the pinned cache";
        let pinned_cache_hit_bytes = counter("device_pinned_cache_hit_bytes", help);
        let help = "Bytes of weights that loads copied to the device from files";
        let pinned_cache_miss_bytes = counter("device_pinned_cache_miss_bytes", help);
        let handed_over_bytes = Family::<WayLabels, Counter>::default();
        registry.register(
            "device_handed_over_bytes",
            "Bytes of the device's intermediate tensors that were read: on the device, by a sibling device, or through the host",
            handed_over_bytes.clone(),
        );
        let spilled_bytes = Family::<TierLabels, Counter>::default();
        registry.register(
            "device_spilled_bytes",
            "Bytes of intermediate tensors spilled from the device, to a sibling device or to the host",
            spilled_bytes.clone(),
        );
        Self {
            resident_bytes,
            capacity_bytes,
            outside_bytes,
            runs_waiting,
            up,
            losses,
            fallbacks,
            capture_failures,
            intermediates,
            intermediates_bytes,
            handed_over_bytes,
            spilled_bytes,
            pinned_cache_bytes,
            pinned_cache_capacity_bytes,
            pinned_cache_hit_bytes,
            pinned_cache_miss_bytes,
            transfers: Transfers::register(registry),
        }
    }

    /// Counts a transfer of a model's files: from the object store to the node's disk, or from a tier
    /// to a device.
    pub fn transferred(&self, from: &str, to: &str, bytes: u64, time: Duration) {
        let labels = TransferLabels { from: from.to_owned(), to: to.to_owned() };
        self.transfers.bytes.get_or_create(&labels).inc_by(bytes);
        self.transfers.seconds.get_or_create(&labels).inc_by(time.as_secs_f64());
    }

    /// Counts the end of a fetch of a model ahead of its first use.
    pub fn prefetched(&self, outcome: &'static str) {
        self.transfers.prefetches.get_or_create(&PrefetchLabels { outcome }).inc();
    }

    /// Sets the current state of a device.
    pub fn set(&self, device: &DeviceReport) {
        let labels = DeviceLabels::for_device(&device.name);
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.resident_bytes.get_or_create(&labels).set(number(device.used_bytes));
        self.capacity_bytes.get_or_create(&labels).set(number(device.capacity_bytes));
        self.runs_waiting.get_or_create(&labels).set(number(device.runs_waiting));
        self.up.get_or_create(&labels).set(i64::from(device.lost.is_none()));
        // Creates the counters, so that they are shown as 0 from the start.
        let _ = (self.losses.get_or_create(&labels), self.fallbacks.get_or_create(&labels));
    }

    /// Sets the figures of the tensors that runs have left on a device.
    pub fn set_handed_over(&self, device: &str, handed_over: &HandedOver) {
        let HandedOver {
            kept,
            kept_bytes,
            on_device_bytes,
            by_sibling_bytes,
            spilled_to_sibling_bytes,
            spilled_to_host_bytes,
            through_host_bytes,
        } = *handed_over;
        let labels = DeviceLabels::for_device(device);
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.intermediates.get_or_create(&labels).set(number(kept));
        self.intermediates_bytes.get_or_create(&labels).set(number(kept_bytes));
        let ways = [("device", on_device_bytes), ("sibling", by_sibling_bytes), ("host", through_host_bytes)];
        for (through, bytes) in ways {
            let labels = WayLabels { device: device.to_owned(), through };
            // The backend counts these bytes; copy its total.
            self.handed_over_bytes.get_or_create(&labels).inner().store(bytes, Ordering::Relaxed);
        }
        for (to, bytes) in [("sibling", spilled_to_sibling_bytes), ("host", spilled_to_host_bytes)] {
            let labels = TierLabels { device: device.to_owned(), to };
            self.spilled_bytes.get_or_create(&labels).inner().store(bytes, Ordering::Relaxed);
        }
    }

    /// Sets the figures of a GPU's executor.
    pub fn set_executor(&self, device: &str, figures: &ExecutorFigures) {
        let ExecutorFigures { capture_failures, outside_bytes } = *figures;
        let labels = DeviceLabels::for_device(device);
        self.outside_bytes.get_or_create(&labels).set(i64::try_from(outside_bytes).unwrap_or(i64::MAX));
        // The executor counts these failures; copy its total.
        self.capture_failures.get_or_create(&labels).inner().store(capture_failures, Ordering::Relaxed);
    }

    /// Sets the figures of a GPU's pinned cache.
    pub fn set_pinned_cache(&self, device: &str, figures: &PinnedCacheFigures) {
        let PinnedCacheFigures { capacity_bytes, used_bytes, hit_bytes, miss_bytes } = *figures;
        let labels = DeviceLabels::for_device(device);
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.pinned_cache_bytes.get_or_create(&labels).set(number(used_bytes));
        self.pinned_cache_capacity_bytes.get_or_create(&labels).set(number(capacity_bytes));
        // The backend counts these bytes; copy its totals.
        self.pinned_cache_hit_bytes.get_or_create(&labels).inner().store(hit_bytes, Ordering::Relaxed);
        self.pinned_cache_miss_bytes.get_or_create(&labels).inner().store(miss_bytes, Ordering::Relaxed);
    }

    /// Counts the loss of a device.
    pub fn lost(&self, device: &str) {
        self.losses.get_or_create(&DeviceLabels::for_device(device)).inc();
    }

    /// Counts a model that was placed on this device but ran on another.
    pub(super) fn instead(&self, device: &str) {
        self.fallbacks.get_or_create(&DeviceLabels::for_device(device)).inc();
    }
}

impl Transfers {
    fn register(registry: &mut Registry) -> Self {
        let (bytes, seconds, prefetches) = Default::default();
        let transfers = Self { bytes, seconds, prefetches };
        let help = "Bytes of models' files transferred between storage tiers: fetched to the disk, or loaded onto a device";
        registry.register("model_transfer_bytes", help, transfers.bytes.clone());
        let help = "Duration of the transfers of models' files; loads include the creation of sessions";
        registry.register("model_transfer_seconds", help, transfers.seconds.clone());
        let help = "Models whose files the node fetched before their first use, by outcome";
        registry.register("model_prefetches", help, transfers.prefetches.clone());
        transfers
    }
}
