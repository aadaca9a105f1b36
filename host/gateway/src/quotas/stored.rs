//! Quotas of a tenant's stored data: names, and bytes of components and models.

use crate::NodeState;
use crate::error::ApiError;
use weir_types::{ErrorCode, Name, TenantId};

impl NodeState {
    /// Rejects an upload that would take the tenant beyond its quota of stored bytes. Versions with
    /// equal content are counted separately.
    pub(crate) fn check_stored_bytes(&self, tenant: &TenantId, bytes: u64) -> Result<(), ApiError> {
        let bytes_max = self.permits.quotas.values(tenant).stored_bytes_max;
        if bytes_max == u64::MAX {
            return Ok(());
        }
        let stored = self.stored_bytes(tenant);
        if stored.saturating_add(bytes) <= bytes_max {
            return Ok(());
        }
        let text = format!(
            "the tenant's components and models take {stored} bytes, and {bytes} more would exceed its {bytes_max} (stored_bytes_max of [node.tenants]); remove old versions"
        );
        Err(ApiError::new(ErrorCode::QuotaExceeded, text))
    }

    /// Bytes of all versions of the tenant's components and models.
    pub(super) fn stored_bytes(&self, tenant: &TenantId) -> u64 {
        let functions = self.registry.list(tenant);
        let components = functions.iter().flat_map(|function| function.versions.values());
        let components: u64 = components.map(|version| version.record.component_bytes).sum();
        components.saturating_add(self.models.stored_bytes(tenant))
    }

    /// Number of the tenant's functions, models, kernel graphs and workflows.
    pub(super) fn names(&self, tenant: &TenantId) -> usize {
        self.registry.list(tenant).len() + self.workflows.list(tenant).len() + self.models.list(tenant).len()
    }

    /// Rejects a new name of a function, model, kernel graph or workflow beyond the tenant's quota.
    pub(crate) fn check_names(&self, tenant: &TenantId, name: &Name) -> Result<(), ApiError> {
        let names_max = self.permits.quotas.values(tenant).names_max;
        let is_known = self.registry.get(tenant, name.as_str()).is_some()
            || self.workflows.get(tenant, name.as_str()).is_some()
            || !self.models.versions(tenant, name).is_empty();
        if names_max == u32::MAX || is_known {
            return Ok(());
        }
        let names = self.names(tenant);
        if names < names_max as usize {
            return Ok(());
        }
        let text = format!(
            "the tenant has {names} functions, models, kernel graphs and workflows, the most that it may have (names_max of [node.tenants]); remove some"
        );
        Err(ApiError::new(ErrorCode::QuotaExceeded, text))
    }
}
