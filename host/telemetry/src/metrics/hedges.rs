//! Metrics of hedging: second copies of workflow steps.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use weir_types::WorkflowId;

/// Series of all steps. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AllHedges {
    started: Family<HedgeLabels, Counter>,
    won: Family<HedgeLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HedgeLabels {
    tenant: String,
    workflow: String,
    version: String,
    step: String,
}

/// Series of one step, removed on drop.
#[derive(Debug)]
pub struct HedgeMetrics {
    /// Second copies started.
    pub started: Counter,
    /// Second copies that responded before the first.
    pub won: Counter,
    all: AllHedges,
    labels: HedgeLabels,
}

impl AllHedges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        let help = "Second copies of workflow steps, started because the first copy took unusually long";
        registry.register("workflow_hedges_started", help, all.started.clone());
        let help = "Second copies of workflow steps that finished before the first copy";
        registry.register("workflow_hedges_won", help, all.won.clone());
        all
    }

    pub(super) fn series(
        &self,
        WorkflowId { tenant, name, version }: &WorkflowId,
        step: &str,
    ) -> HedgeMetrics {
        let labels = HedgeLabels {
            tenant: tenant.to_string(),
            workflow: name.to_string(),
            version: version.to_string(),
            step: step.to_owned(),
        };
        let of = |family: &Family<HedgeLabels, Counter>| family.get_or_create(&labels).clone();
        HedgeMetrics { started: of(&self.started), won: of(&self.won), all: self.clone(), labels }
    }
}

impl Drop for HedgeMetrics {
    fn drop(&mut self) {
        self.all.started.remove(&self.labels);
        self.all.won.remove(&self.labels);
    }
}
