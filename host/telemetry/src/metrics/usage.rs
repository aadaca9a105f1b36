//! Device usage of tenants, for `/metrics`.

use crate::usage::{MeteredUsage, Meters};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use weir_device::Device;
use weir_inference::Used;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UsageLabels {
    tenant: String,
    function: String,
    model: String,
    version: String,
    device: String,
}

impl UsageLabels {
    /// Creates labels. An empty label stands for none, by Prometheus convention.
    fn for_row(MeteredUsage { tenant, function, model }: &MeteredUsage, device: Device) -> Self {
        let (name, version) = model
            .as_ref()
            .map_or_else(Default::default, |(name, version)| (name.to_string(), version.to_string()));
        let function = function.as_ref().map(ToString::to_string).unwrap_or_default();
        Self { tenant: tenant.to_string(), function, model: name, version, device: device.to_string() }
    }
}

/// Name, help, value, and whether only rows that load models have the value.
type UsageCounter = (&'static str, &'static str, fn(&Used) -> f64, bool);

#[expect(clippy::cast_precision_loss, reason = "Prometheus counters are floats")]
const NUMBERS: [UsageCounter; 5] = [
    ("weir_device_runs", "Requests run on devices", |used| used.runs as f64, false),
    (
        "weir_device_run_seconds",
        "Device time of requests; the time of a batch is divided by items",
        |used| used.run_time_ns as f64 / 1e9,
        false,
    ),
    ("weir_device_loads", "Loads of models into device memory", |used| used.loads as f64, true),
    (
        "weir_device_load_seconds",
        "Time of loads into device memory",
        |used| used.load_time_ns as f64 / 1e9,
        true,
    ),
    (
        "weir_device_resident_byte_seconds",
        "Device memory of models multiplied by time, in byte seconds; shared memory is divided among the models",
        |used| used.resident_byte_ns as f64 / 1e9,
        true,
    ),
];

impl Collector for Meters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let rows = self.rows();
        if rows.is_empty() {
            return Ok(());
        }
        for (name, help, value, is_of_loads) in NUMBERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (row, used) in &rows {
                // A function loads the models that it brings along; the loads of all other models
                // are in the models' own rows.
                if is_of_loads && row.function.is_some() && row.model.is_some() {
                    continue;
                }
                for (device, used) in used {
                    let labels = UsageLabels::for_row(row, *device);
                    let mut sample = metric.encode_family(&labels)?;
                    sample.encode_counter::<[(&str, &str); 0], _, u64>(&value(used), None)?;
                }
            }
        }
        Ok(())
    }
}
