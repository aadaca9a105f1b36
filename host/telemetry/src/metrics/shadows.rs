//! Metrics of the calls that were chosen to be copied to a shadow.

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use weir_types::{Name, TenantId};

/// Series of all functions and models. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct AllShadows {
    calls: Family<FunctionLabels, Counter>,
    inferences: Family<ModelLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FunctionLabels {
    tenant: String,
    function: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    tenant: String,
    model: String,
    outcome: &'static str,
}

/// Owner of a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShadowOwner {
    Function,
    Model,
}

impl AllShadows {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        let help = "Calls of a function that were chosen to be copied to its shadow, by outcome";
        registry.register("shadow_calls", help, all.calls.clone());
        let help = "Inferences of a model that were chosen to be copied to its shadow, by outcome";
        registry.register("shadow_inferences", help, all.inferences.clone());
        all
    }

    pub(super) fn series(&self, owner: ShadowOwner, tenant: &TenantId, name: &Name) -> ShadowMetrics {
        ShadowMetrics {
            all: self.clone(),
            owner,
            tenant: tenant.to_string(),
            name: name.to_string(),
            outcomes: Mutex::default(),
        }
    }
}

/// Series of one function or model, removed on drop.
#[derive(Debug)]
pub struct ShadowMetrics {
    all: AllShadows,
    owner: ShadowOwner,
    tenant: String,
    name: String,
    /// The outcomes so far.
    outcomes: Mutex<BTreeSet<&'static str>>,
}

impl ShadowMetrics {
    /// Counts a chosen call.
    pub fn count(&self, outcome: &'static str) {
        self.outcomes.lock().insert(outcome);
        match self.owner {
            ShadowOwner::Function => self.all.calls.get_or_create(&self.function(outcome)).inc(),
            ShadowOwner::Model => self.all.inferences.get_or_create(&self.model(outcome)).inc(),
        };
    }

    fn function(&self, outcome: &'static str) -> FunctionLabels {
        FunctionLabels { tenant: self.tenant.clone(), function: self.name.clone(), outcome }
    }

    fn model(&self, outcome: &'static str) -> ModelLabels {
        ModelLabels { tenant: self.tenant.clone(), model: self.name.clone(), outcome }
    }
}

impl Drop for ShadowMetrics {
    fn drop(&mut self) {
        for outcome in std::mem::take(self.outcomes.get_mut()) {
            match self.owner {
                ShadowOwner::Function => self.all.calls.remove(&self.function(outcome)),
                ShadowOwner::Model => self.all.inferences.remove(&self.model(outcome)),
            };
        }
    }
}
