//! Limits of copies, for the node and for each tenant.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use weir_cluster::ShadowConfig;
use weir_types::TenantId;

/// Limits of the copies of calls. Has an entry for each tenant with copies.
pub struct CopyLimits {
    config: ShadowConfig,
    used: Mutex<CopiesUsed>,
}

#[derive(Default)]
struct CopiesUsed {
    node: CopyUse,
    tenants: HashMap<TenantId, CopyUse>,
}

/// Use of the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CopyUse {
    calls: u32,
    bytes: u64,
}

/// Permit to run a copy, or to keep bytes for it, until dropped.
pub(super) struct CopyPermit {
    limits: Arc<CopyLimits>,
    tenant: TenantId,
    taken: CopyUse,
}

impl CopyLimits {
    /// Creates unused limits.
    pub fn new(config: ShadowConfig) -> Self {
        Self { config, used: Mutex::default() }
    }

    /// Whether a request or outputs of `bytes` are too large to be copied.
    pub(super) fn is_too_large(&self, bytes: u64) -> bool {
        bytes > self.config.body_bytes_max
    }

    /// Permit to keep `bytes` for a copy.
    pub(super) fn keep(self: &Arc<Self>, tenant: &TenantId, bytes: u64) -> Option<CopyPermit> {
        self.take(tenant, CopyUse { calls: 0, bytes })
    }

    /// Permit to run a copy.
    pub(super) fn run(self: &Arc<Self>, tenant: &TenantId) -> Option<CopyPermit> {
        self.take(tenant, CopyUse { calls: 1, bytes: 0 })
    }

    fn take(self: &Arc<Self>, tenant: &TenantId, wanted: CopyUse) -> Option<CopyPermit> {
        let ShadowConfig { calls_max, tenant_calls_max, bytes_max, tenant_bytes_max, .. } = self.config;
        let mut used = self.used.lock();
        let node = used.node.plus(wanted);
        let owner = used.tenants.get(tenant).copied().unwrap_or_default().plus(wanted);
        if !node.is_within(calls_max, bytes_max) || !owner.is_within(tenant_calls_max, tenant_bytes_max) {
            return None;
        }
        used.node = node;
        used.tenants.insert(tenant.clone(), owner);
        Some(CopyPermit { limits: self.clone(), tenant: tenant.clone(), taken: wanted })
    }
}

impl CopyUse {
    fn plus(self, other: Self) -> Self {
        Self { calls: self.calls.saturating_add(other.calls), bytes: self.bytes.saturating_add(other.bytes) }
    }

    fn minus(self, other: Self) -> Self {
        Self { calls: self.calls.saturating_sub(other.calls), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    fn is_within(self, calls_max: u32, bytes_max: u64) -> bool {
        self.calls <= calls_max && self.bytes <= bytes_max
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        let mut used = self.limits.used.lock();
        used.node = used.node.minus(self.taken);
        let left = used.tenants.get(&self.tenant).copied().unwrap_or_default().minus(self.taken);
        match left == CopyUse::default() {
            true => used.tenants.remove(&self.tenant),
            false => used.tenants.insert(self.tenant.clone(), left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn tenant_and_node_limits_hold_until_permits_are_dropped() {
        let config = ShadowConfig {
            calls_max: 3,
            tenant_calls_max: 2,
            bytes_max: 30,
            tenant_bytes_max: 20,
            body_bytes_max: 10,
        };
        let limits = Arc::new(CopyLimits::new(config));
        let a = tenant("a");
        let b = tenant("b");
        let running = [limits.run(&a).unwrap(), limits.run(&a).unwrap()];
        assert!(limits.run(&a).is_none(), "the tenant's limit");
        let other = limits.run(&b).unwrap();
        assert!(limits.run(&b).is_none(), "the node's limit");
        drop(running);
        assert!(limits.run(&b).is_some());
        let kept = limits.keep(&a, 20).unwrap();
        assert!(limits.keep(&a, 1).is_none(), "the tenant's limit");
        assert!(limits.keep(&b, 11).is_none(), "the node's limit");
        assert!(limits.keep(&b, 10).is_some());
        drop((kept, other));
        let used = limits.used.lock();
        assert_eq!((used.node, used.tenants.len()), (CopyUse::default(), 0));
    }

    #[test]
    fn node_without_copies_runs_none() {
        let limits = Arc::new(CopyLimits::new(ShadowConfig { calls_max: 0, ..ShadowConfig::default() }));
        assert!(limits.run(&tenant("a")).is_none());
    }
}
