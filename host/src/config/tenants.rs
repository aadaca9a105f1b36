//! Limits and quotas of tenants.

use serde::{Deserialize, Serialize};
use weir_gateway::{QuotaConfig, TenantQuotas};
use weir_scheduler::TenantLimits;

use super::NodeConfig;

/// Limits and quotas of a tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantConfig {
    /// Limits that the scheduler enforces: over all nodes of a cluster, with the dispatcher's
    /// setting.
    #[serde(flatten)]
    pub limits: TenantLimits,
    /// Quotas that each node enforces.
    #[serde(flatten)]
    pub quotas: TenantQuotas,
}

impl NodeConfig {
    /// The quotas of all tenants.
    pub(crate) fn quotas(&self) -> QuotaConfig {
        QuotaConfig {
            tenants: self
                .tenants
                .iter()
                .map(|(name, tenant)| (name.clone(), tenant.quotas.clone()))
                .collect(),
            tenant_default: self.tenant_default.quotas.clone(),
            is_shared: self.token_file.is_some(),
        }
    }
}
