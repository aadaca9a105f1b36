//! A function or model with a canary, for the decisions and the routes about both.

use super::super::error::ApiError;
use super::super::versions::VersionedResource;
use crate::NodeState;
use std::sync::Arc;
use weir_control::canary::{CanaryOf, Observed, TrialCounts, TrialSlot};
use weir_control::models::{ModelCanary, ModelTrial, ModelsError};
use weir_control::registry::{DeploymentKind, FunctionEntry, FunctionParts, RegistryError};
use weir_inference::Content;
use weir_types::api::{Canary, EventKind};
use weir_types::{Name, TenantId, Version};

/// A function or model with a canary.
pub(super) struct CanarySubject {
    pub(super) key: CanaryKey,
    /// The version that gets the other calls.
    pub(super) active: Version,
    trial: SubjectTrial,
}

/// The identity of a canary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CanaryKey {
    pub(super) of: CanaryOf,
    pub(super) tenant: TenantId,
    pub(super) name: Name,
    pub(super) canary: Canary,
}

/// The counts of this node.
enum SubjectTrial {
    Function(Arc<TrialSlot>),
    Model(Arc<ModelTrial>),
}

/// Why a change of a canary failed.
pub(super) enum CanaryFault {
    /// A request has ended the canary, or started another.
    Superseded,
    /// The change may be tried again.
    Failed(String),
}

impl CanarySubject {
    /// All functions and models with canaries.
    pub(super) fn all(node: &NodeState) -> Vec<Self> {
        let functions = node.registry.canaries();
        let functions = functions.iter().filter_map(|(tenant, entry)| Self::for_function(tenant, entry));
        functions.chain(node.models.canaries().into_iter().map(Self::for_model)).collect()
    }

    pub(super) fn for_function(tenant: &TenantId, entry: &FunctionEntry) -> Option<Self> {
        let canary = entry.head.canary?;
        let tenant = tenant.clone();
        let name = entry.name.clone();
        Some(Self {
            key: CanaryKey { of: CanaryOf::Function, tenant, name, canary },
            active: entry.head.active,
            trial: SubjectTrial::Function(entry.shared.trial.clone()),
        })
    }

    pub(super) fn for_model(ModelCanary { tenant, name, active, canary, trial }: ModelCanary) -> Self {
        let key = CanaryKey { of: CanaryOf::Model, tenant, name, canary };
        Self { key, active, trial: SubjectTrial::Model(trial) }
    }

    /// The counts of this node; none if the trial has ended or not begun here.
    pub(super) fn counts(&self) -> Option<TrialCounts> {
        let CanaryKey { of, tenant, name, canary } = &self.key;
        let slot = match &self.trial {
            SubjectTrial::Function(slot) => &**slot,
            SubjectTrial::Model(trial) => &trial.slot,
        };
        let (new, active) = slot.observed(*canary)?;
        Some(TrialCounts {
            of: *of,
            tenant: tenant.clone(),
            name: name.clone(),
            version: canary.version,
            started_at_ms: canary.started_at_ms,
            canary: new,
            active,
        })
    }

    /// The calls of the canary and of the active version, on this node and `elsewhere`.
    pub(super) fn observed(&self, elsewhere: &[TrialCounts]) -> (Observed, Observed) {
        let CanaryKey { of, tenant, name, canary } = &self.key;
        let is_same = |counts: &&TrialCounts| {
            let Canary { version, started_at_ms, .. } = *canary;
            (counts.version, counts.started_at_ms, counts.of) == (version, started_at_ms, *of)
                && (&counts.tenant, &counts.name) == (tenant, name)
        };
        let here = self.counts();
        let mut calls = (Observed::default(), Observed::default());
        for counts in here.iter().chain(elsewhere.iter().filter(is_same)) {
            calls.0.add(&counts.canary);
            calls.1.add(&counts.active);
        }
        calls
    }

    /// Makes the canary active.
    pub(super) async fn promote(&self, node: &NodeState) -> Result<(), CanaryFault> {
        let CanaryKey { of, tenant, name, canary } = &self.key;
        match of {
            CanaryOf::Function => {
                node.registry.promote(tenant, name, Some(*canary)).await?;
                FunctionParts::rolled_back(node);
            }
            CanaryOf::Model => _ = node.models.promote(tenant, name, Some(*canary)).await?,
        }
        Ok(())
    }

    /// Ends the canary.
    pub(super) async fn end(&self, node: &NodeState) -> Result<(), CanaryFault> {
        let CanaryKey { of, tenant, name, canary } = &self.key;
        match of {
            CanaryOf::Function => {
                node.registry.end_canary(tenant, name, *canary).await?;
                FunctionParts::rolled_back(node);
            }
            CanaryOf::Model => node.models.end_canary(tenant, name, *canary).await?,
        }
        Ok(())
    }

    /// Records the start or the end of the canary.
    pub(super) fn note(&self, node: &NodeState, kind: EventKind, text: String) {
        let CanaryKey { of, tenant, name, .. } = &self.key;
        node.note_canary(kind, (*of, tenant, name), text);
    }
}

impl From<RegistryError> for CanaryFault {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::NoCanary(..) | RegistryError::NotThere(..) => Self::Superseded,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<ModelsError> for CanaryFault {
    fn from(error: ModelsError) -> Self {
        match error {
            ModelsError::NoCanary(_) => Self::Superseded,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl NodeState {
    /// The canary of a function or model, or the API's error that it has none.
    pub(super) fn canary_subject(
        &self,
        of: CanaryOf,
        tenant: &TenantId,
        name: &Name,
    ) -> Result<CanarySubject, ApiError> {
        match of {
            CanaryOf::Function => {
                let missing = || RegistryError::NotThere(FunctionParts::NOUN, name.clone());
                let entry = self.registry.get(tenant, name.as_str()).ok_or_else(missing)?;
                CanarySubject::for_function(tenant, &entry)
                    .ok_or_else(|| RegistryError::NoCanary(FunctionParts::NOUN, name.clone()).into())
            }
            CanaryOf::Model => {
                self.models.get_of(Content::Network, tenant, name, None)?;
                let canary = self.models.canary(tenant, name);
                canary.map(CanarySubject::for_model).ok_or_else(|| ModelsError::NoCanary(name.clone()).into())
            }
        }
    }
}
