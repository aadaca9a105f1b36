//! Metrics of the runs of models with canaries, and the limit of the versions with such series.

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use weir_types::{Name, TenantId, Version};

/// Limit of the versions of a name with series: the latest canaries, and the active versions beside
/// them.
pub(super) const VERSIONS_MAX: usize = 4;

/// Outcomes of a call while its target has a canary.
pub(super) const OUTCOMES: [&str; 2] = ["ok", "failed"];

/// The versions of a name that took part in trials of canaries, the one called last at the end.
#[derive(Debug, Default)]
pub(super) struct LatestVersions(Vec<u32>);

impl LatestVersions {
    /// Adds a version. Returns the version whose series the caller removes, if there are too many.
    pub(super) fn add(&mut self, version: u32) -> Option<u32> {
        self.0.retain(|known| *known != version);
        let removed = (self.0.len() == VERSIONS_MAX).then(|| self.0.remove(0));
        self.0.push(version);
        removed
    }

    pub(super) fn into_all(self) -> Vec<u32> {
        self.0
    }
}

/// Series of all models. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AllModelCanaries {
    inferences: Family<ModelVersionLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelVersionLabels {
    tenant: String,
    model: String,
    version: u32,
    outcome: &'static str,
}

impl AllModelCanaries {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        let help = "Runs of a model with a canary, by version: of the canary and the active one";
        registry.register("canary_inferences", help, all.inferences.clone());
        all
    }

    pub(super) fn series(&self, tenant: &TenantId, name: &Name) -> ModelCanaryMetrics {
        let tenant = tenant.to_string();
        let model = name.to_string();
        ModelCanaryMetrics { all: self.clone(), tenant, model, versions: Mutex::default() }
    }
}

/// Series of one model, removed on drop.
#[derive(Debug)]
pub struct ModelCanaryMetrics {
    all: AllModelCanaries,
    tenant: String,
    model: String,
    versions: Mutex<LatestVersions>,
}

impl ModelCanaryMetrics {
    /// Counts a run of a model with a canary. Only the versions that ran last keep their series.
    pub fn count(&self, version: Version, is_failed: bool) {
        let mut versions = self.versions.lock();
        if let Some(removed) = versions.add(version.0) {
            self.remove(removed);
        }
        let [ok, failed] = OUTCOMES;
        let labels = self.labels(version.0, if is_failed { failed } else { ok });
        self.all.inferences.get_or_create(&labels).inc();
    }

    fn remove(&self, version: u32) {
        for outcome in OUTCOMES {
            self.all.inferences.remove(&self.labels(version, outcome));
        }
    }

    fn labels(&self, version: u32, outcome: &'static str) -> ModelVersionLabels {
        let tenant = self.tenant.clone();
        let model = self.model.clone();
        ModelVersionLabels { tenant, model, version, outcome }
    }
}

impl Drop for ModelCanaryMetrics {
    fn drop(&mut self) {
        let versions = std::mem::take(self.versions.get_mut());
        for version in versions.into_all() {
            self.remove(version);
        }
    }
}
