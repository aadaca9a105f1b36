//! Shares of the tenants in the instances of a node: their instance permits and their memory.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_call::Turn;
use weir_sandbox::{GuestMemory, TenantMemory};
use weir_types::TenantId;

/// Limits of the instances of a node.
pub struct InstanceLimits {
    /// Live instances of all tenants.
    pub instances_max: u32,
    /// Idle instances of all tenants.
    pub idle_max: u32,
    /// Live instances of a tenant.
    pub tenant_instances_max: Box<dyn Fn(&TenantId) -> u32 + Send + Sync>,
    /// Memory of all instances.
    pub memory: GuestMemory,
}

/// The permit for a live instance, until dropped.
pub struct InstancePermit {
    /// `None` if the tenant may have all instances of the node.
    pub(super) _tenant: Option<OwnedSemaphorePermit>,
    pub(super) _node: Turn,
}

/// The instances that each tenant may have.
pub(super) struct InstanceShares {
    pub(super) instances_max: u32,
    tenant_instances_max: Box<dyn Fn(&TenantId) -> u32 + Send + Sync>,
    memory: GuestMemory,
    /// The node's configuration bounds the number of tenants.
    tenants: RwLock<HashMap<TenantId, Arc<InstanceShare>>>,
}

/// The instances that one tenant may have.
pub(super) struct InstanceShare {
    pub(super) tenant: TenantId,
    pub(super) instances_max: u32,
    /// `None` if the tenant may have all instances of the node, so that a call takes no second permit.
    pub(super) permits: Option<Arc<Semaphore>>,
    pub(super) memory: TenantMemory,
}

impl InstanceShares {
    pub(super) fn new(limits: InstanceLimits) -> Self {
        let InstanceLimits { instances_max, tenant_instances_max, memory, .. } = limits;
        Self { instances_max, tenant_instances_max, memory, tenants: RwLock::default() }
    }

    /// The share of a tenant.
    pub(super) fn tenant(&self, tenant: &TenantId) -> Arc<InstanceShare> {
        if let Some(known) = self.tenants.read().get(tenant) {
            return known.clone();
        }
        let instances_max = (self.tenant_instances_max)(tenant);
        let is_part = instances_max < self.instances_max;
        let new = InstanceShare {
            tenant: tenant.clone(),
            instances_max,
            permits: is_part.then(|| Arc::new(Semaphore::new(instances_max as usize))),
            memory: self.memory.tenant(tenant),
        };
        self.tenants.write().entry(tenant.clone()).or_insert_with(|| Arc::new(new)).clone()
    }
}

impl InstanceShare {
    /// Whether the tenant has all instances of its share.
    pub(super) fn is_used_up(&self) -> bool {
        self.permits.as_ref().is_some_and(|permits| permits.available_permits() == 0)
    }

    /// The reason why a call of a tenant that has all instances of its share does not start.
    pub(super) fn used_up(&self) -> String {
        let max = self.instances_max;
        format!(
            "functions of this tenant may have {max} instances on this node (instances_max of [node.tenants]), which they do"
        )
    }
}
