//! Permits for uploads and for WebSockets, with a share for each tenant.

use crate::GatewayConfig;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use weir_call::Fault;
use weir_sandbox::WebSocketConfig;
use weir_types::{ErrorCode, TenantId};

/// Permits with a share for each tenant.
pub(crate) struct TenantPermits(Arc<PermitsShared>);

struct PermitsShared {
    all_max: u32,
    tenant_max: u32,
    texts: PermitTexts,
    in_use: Mutex<PermitsInUse>,
}

/// Texts of the refusal: `10 uploads of this tenant are received already (gateway.tenant_uploads_max)`.
struct PermitTexts {
    what: &'static str,
    how: &'static str,
    all_setting: &'static str,
    tenant_setting: &'static str,
}

/// Permits in use, in total and by tenant.
#[derive(Default)]
struct PermitsInUse {
    all: u32,
    tenants: HashMap<TenantId, TenantUse>,
}

/// Permits of one tenant.
#[derive(Default, Clone, Copy)]
struct TenantUse {
    all: u32,
    /// Those of clients without a token, which get half of the tenant's share.
    anonymous: u32,
}

/// One permit, until dropped.
pub(crate) struct TenantPermit {
    shared: Arc<PermitsShared>,
    tenant: TenantId,
    is_anonymous: bool,
}

impl TenantPermits {
    /// Creates the permits for uploads.
    pub(crate) fn for_uploads(config: &GatewayConfig) -> Self {
        let texts = PermitTexts {
            what: "uploads",
            how: "are received, compiled or checked",
            all_setting: "gateway.uploads_max",
            tenant_setting: "gateway.tenant_uploads_max",
        };
        Self::new(config.uploads_max.max(1), config.tenant_uploads_max.max(1), texts)
    }

    /// Creates the permits for open WebSockets.
    pub(crate) fn for_websockets(config: &WebSocketConfig) -> Self {
        let texts = PermitTexts {
            what: "WebSockets",
            how: "are open",
            all_setting: "sandbox.websockets.open_max",
            tenant_setting: "sandbox.websockets.tenant_open_max",
        };
        Self::new(config.open_max, config.tenant_open_max, texts)
    }

    fn new(all_max: u32, tenant_max: u32, texts: PermitTexts) -> Self {
        Self(Arc::new(PermitsShared { all_max, tenant_max, texts, in_use: Mutex::default() }))
    }

    /// Permits of a tenant, and their limit.
    pub(crate) fn usage(&self, tenant: &TenantId) -> (u64, u64) {
        let in_use = self.0.in_use.lock().tenants.get(tenant).copied().unwrap_or_default();
        (in_use.all.into(), self.0.tenant_max.into())
    }

    /// Takes a permit for `tenant`. `is_anonymous`: for a client without a token.
    pub(crate) fn take(&self, tenant: &TenantId, is_anonymous: bool) -> Result<TenantPermit, Fault> {
        let PermitsShared { all_max, tenant_max, ref texts, .. } = *self.0;
        let mut in_use = self.0.in_use.lock();
        let of_tenant = in_use.tenants.get(tenant).copied().unwrap_or_default();
        let anonymous_max = tenant_max.div_ceil(2);
        let (whose, count, setting) = if is_anonymous && of_tenant.anonymous >= anonymous_max {
            ("anonymous clients of this tenant", anonymous_max, texts.tenant_setting)
        } else if of_tenant.all >= tenant_max {
            ("this tenant", tenant_max, texts.tenant_setting)
        } else if in_use.all >= all_max {
            ("all tenants", all_max, texts.all_setting)
        } else {
            in_use.all += 1;
            let of_tenant = TenantUse {
                all: of_tenant.all + 1,
                anonymous: of_tenant.anonymous + u32::from(is_anonymous),
            };
            in_use.tenants.insert(tenant.clone(), of_tenant);
            return Ok(TenantPermit { shared: self.0.clone(), tenant: tenant.clone(), is_anonymous });
        };
        let PermitTexts { what, how, .. } = texts;
        let text = format!("{count} {what} of {whose} {how} on this node already ({setting}); try again");
        Err(Fault::new(ErrorCode::QueueFull, text))
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        let mut in_use = self.shared.in_use.lock();
        in_use.all -= 1;
        if let Some(count) = in_use.tenants.get_mut(&self.tenant) {
            count.all -= 1;
            count.anonymous -= u32::from(self.is_anonymous);
            if count.all == 0 {
                in_use.tenants.remove(&self.tenant);
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
        let permits = TenantPermits::for_uploads(&config);
        let take = |tenant: &str| permits.take(&TenantId::new(tenant).unwrap(), false);
        let held = [take("a").unwrap(), take("a").unwrap()];
        assert!(take("a").is_err(), "its share is in use");
        let last = take("b").unwrap();
        let error = take("c").err().expect("all permits are in use");
        assert!(error.text.contains("3 uploads of all tenants are received"), "{}", error.text);
        drop(held);
        drop((take("a").unwrap(), take("c").unwrap(), last));
        assert!(permits.0.in_use.lock().tenants.is_empty());
    }

    #[test]
    fn anonymous_clients_get_half_of_the_share() {
        let config = WebSocketConfig { open_max: 10, tenant_open_max: 3, ..WebSocketConfig::default() };
        let permits = TenantPermits::for_websockets(&config);
        let acme = TenantId::new("acme").unwrap();
        let anonymous = [permits.take(&acme, true).unwrap(), permits.take(&acme, true).unwrap()];
        let error = permits.take(&acme, true).err().expect("half of the share, rounded up, is in use");
        assert!(error.text.contains("2 WebSockets of anonymous clients"), "{}", error.text);
        let last = permits.take(&acme, false).unwrap();
        assert!(permits.take(&acme, false).is_err());
        drop(anonymous);
        assert!(permits.take(&acme, true).is_ok());
        drop(last);
        assert!(permits.0.in_use.lock().tenants.is_empty());
    }
}
