//! Permits for uploads, with a share for each tenant.

use crate::GatewayConfig;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use weir_call::Fault;
use weir_types::{ErrorCode, TenantId};

/// Permits for uploads, with a share for each tenant.
pub(crate) struct UploadPermits(Arc<PermitsShared>);

struct PermitsShared {
    all_max: u32,
    tenant_max: u32,
    under_way: Mutex<UploadsInProgress>,
}

/// Uploads in progress, in total and by tenant.
#[derive(Default)]
struct UploadsInProgress {
    all: u32,
    tenants: HashMap<TenantId, u32>,
}

/// Permit for one upload, until dropped.
pub(super) struct UploadPermit {
    shared: Arc<PermitsShared>,
    tenant: TenantId,
}

impl UploadPermits {
    /// Creates the permits that the configuration allows.
    pub(crate) fn new(config: &GatewayConfig) -> Self {
        Self(Arc::new(PermitsShared {
            all_max: config.uploads_max.max(1),
            tenant_max: config.tenant_uploads_max.max(1),
            under_way: Mutex::default(),
        }))
    }

    /// Uploads of a tenant, and their limit.
    pub(crate) fn usage(&self, tenant: &TenantId) -> (u64, u64) {
        let under_way = self.0.under_way.lock().tenants.get(tenant).copied().unwrap_or(0);
        (under_way.into(), self.0.tenant_max.into())
    }

    /// Takes a permit for an upload of `tenant`.
    pub(super) fn take(&self, tenant: &TenantId) -> Result<UploadPermit, Fault> {
        let PermitsShared { all_max, tenant_max, .. } = *self.0;
        let mut under_way = self.0.under_way.lock();
        let of_tenant = under_way.tenants.get(tenant).copied().unwrap_or(0);
        let (whose, count, setting) = if of_tenant >= tenant_max {
            ("this tenant", tenant_max, "tenant_uploads_max")
        } else if under_way.all >= all_max {
            ("all tenants", all_max, "uploads_max")
        } else {
            under_way.all += 1;
            under_way.tenants.insert(tenant.clone(), of_tenant + 1);
            return Ok(UploadPermit { shared: self.0.clone(), tenant: tenant.clone() });
        };
        let text = format!(
            "{count} uploads of {whose} are received, compiled or checked on this node already (gateway.{setting}); try again"
        );
        Err(Fault::new(ErrorCode::QueueFull, text))
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut under_way = self.shared.under_way.lock();
        under_way.all -= 1;
        if let Some(count) = under_way.tenants.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                under_way.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_has_a_share_of_the_permits() {
        let config = GatewayConfig { uploads_max: 3, tenant_uploads_max: 2, ..GatewayConfig::default() };
        let permits = UploadPermits::new(&config);
        let take = |tenant: &str| permits.take(&TenantId::new(tenant).unwrap());
        let held = [take("a").unwrap(), take("a").unwrap()];
        assert!(take("a").is_err(), "its share is in use");
        let last = take("b").unwrap();
        assert!(take("c").is_err(), "all permits are in use");
        drop(held);
        drop((take("a").unwrap(), take("c").unwrap(), last));
        assert!(permits.0.under_way.lock().tenants.is_empty());
    }
}
