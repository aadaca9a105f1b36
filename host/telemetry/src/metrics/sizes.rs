//! Metrics of models that are sized by their request rate.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use weir_inference::RunSetting;
use weir_types::ModelId;

/// Series of all models. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct AllSizes {
    threads: Family<SizeLabels, Gauge>,
    sessions_max: Family<SizeLabels, Gauge>,
    sessions: Family<SizeLabels, Gauge>,
    rate: Family<SizeLabels, Gauge<f64, AtomicU64>>,
    is_short: Family<SizeLabels, Gauge>,
    changes: Family<SizeLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SizeLabels {
    tenant: String,
    model: String,
    version: String,
    device: String,
}

/// Series of one model on one device, removed on drop.
pub struct SizeMetrics {
    all: AllSizes,
    labels: SizeLabels,
}

impl AllSizes {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        let mut gauge = |name: &str, help: &str, family: &Family<SizeLabels, Gauge>| {
            registry.register(name, help, family.clone());
        };
        gauge("model_threads", "Threads of each run of an autosized model", &all.threads);
        gauge(
            "model_sessions_max",
            "Maximum number of concurrent runs of an autosized model",
            &all.sessions_max,
        );
        gauge("model_sessions", "Sessions of an autosized model, including idle sessions", &all.sessions);
        gauge(
            "model_size_short",
            "Whether the available capacity is too small for the request rate of an autosized model",
            &all.is_short,
        );
        registry.register(
            "model_rate",
            "Requested items per second in the last interval, by device",
            all.rate.clone(),
        );
        registry.register(
            "model_sizings",
            "Changes of the threads or sessions of an autosized model",
            all.changes.clone(),
        );
        all
    }

    pub(super) fn series(&self, ModelId { tenant, name, version }: &ModelId, device: &str) -> SizeMetrics {
        let labels = SizeLabels {
            tenant: tenant.to_string(),
            model: name.to_string(),
            version: version.to_string(),
            device: device.to_owned(),
        };
        // Creates the counter, so that it is shown as 0 from the start.
        drop(self.changes.get_or_create(&labels));
        SizeMetrics { all: self.clone(), labels }
    }
}

impl SizeMetrics {
    /// Sets the request rate in items per second over the last interval.
    pub fn rate(&self, rate_per_s: f64) {
        self.all.rate.get_or_create(&self.labels).set(rate_per_s);
    }

    /// Sets the run settings of the model, and its number of sessions.
    pub fn set(&self, setting: &RunSetting, sessions: usize, is_short: bool) {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.all.threads.get_or_create(&self.labels).set(i64::from(setting.threads));
        self.all.sessions_max.get_or_create(&self.labels).set(number(setting.sessions));
        self.all.sessions.get_or_create(&self.labels).set(number(sessions));
        self.all.is_short.get_or_create(&self.labels).set(i64::from(is_short));
    }

    /// Counts a change of the model's threads or sessions.
    pub fn changed(&self) {
        self.all.changes.get_or_create(&self.labels).inc();
    }
}

impl Drop for SizeMetrics {
    fn drop(&mut self) {
        let Self { all: AllSizes { threads, sessions_max, sessions, rate, is_short, changes }, labels } =
            self;
        [threads, sessions_max, sessions, is_short].into_iter().for_each(|family| _ = family.remove(labels));
        rate.remove(labels);
        changes.remove(labels);
    }
}
