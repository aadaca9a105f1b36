//! Linear memory of all guests of a node, limited for the node and for each tenant.
//!
//! Memory counts from the moment a guest gets it until its instance is dropped, idle instances
//! included. A growth above a limit is refused like one above the function's own limit: the guest
//! may handle that, and a guest that traps afterwards most likely failed because of it.

use parking_lot::RwLock;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use weir_call::Fault;
use weir_telemetry::{InstanceScope, Metrics};
use weir_types::{ErrorCode, TenantId};

/// Memory of the guests of a node.
pub struct GuestMemory {
    bytes_max: u64,
    /// The limit of a tenant.
    tenant_bytes_max: Box<dyn Fn(&TenantId) -> u64 + Send + Sync>,
    metrics: Arc<Metrics>,
    /// The node's configuration bounds the number of tenants.
    tenants: RwLock<HashMap<TenantId, TenantMemory>>,
}

/// Memory of the guests of one tenant, as part of that of the node. Cheap to clone.
#[derive(Clone)]
pub struct TenantMemory(Arc<TenantMemoryShared>);

struct TenantMemoryShared {
    bytes: Gauge,
    bytes_max: u64,
    node_bytes_max: u64,
    metrics: Arc<Metrics>,
}

impl GuestMemory {
    /// Creates counters with the limits `bytes_max` for the node and `tenant_bytes_max` for each
    /// tenant.
    pub fn new(
        bytes_max: u64,
        tenant_bytes_max: impl Fn(&TenantId) -> u64 + Send + Sync + 'static,
        metrics: Arc<Metrics>,
    ) -> Self {
        let tenant_bytes_max = Box::new(tenant_bytes_max);
        Self { bytes_max, tenant_bytes_max, metrics, tenants: RwLock::default() }
    }

    /// The memory of a tenant.
    pub fn tenant(&self, tenant: &TenantId) -> TenantMemory {
        if let Some(known) = self.tenants.read().get(tenant) {
            return known.clone();
        }
        let new = TenantMemory(Arc::new(TenantMemoryShared {
            bytes: self.metrics.process.guest_memory.tenant_bytes(tenant),
            bytes_max: (self.tenant_bytes_max)(tenant),
            node_bytes_max: self.bytes_max,
            metrics: self.metrics.clone(),
        }));
        self.tenants.write().entry(tenant.clone()).or_insert(new).clone()
    }
}

impl TenantMemory {
    /// Used and allowed bytes.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        (u64::try_from(self.0.bytes.get()).unwrap_or(0), self.0.bytes_max)
    }

    /// The limit that `bytes` more would exceed, if any.
    pub fn lacks(&self, bytes: u64) -> Option<InstanceScope> {
        let bytes = signed(bytes);
        let exceeds = |gauge: &Gauge, bytes_max: u64| gauge.get().saturating_add(bytes) > signed(bytes_max);
        if exceeds(&self.0.bytes, self.0.bytes_max) {
            Some(InstanceScope::Tenant)
        } else {
            let is_over = exceeds(self.node_bytes(), self.0.node_bytes_max);
            is_over.then_some(InstanceScope::Node)
        }
    }

    /// Whether `bytes` more fit, and at least half of the memory is free now.
    pub fn has_spare(&self, bytes: u64) -> bool {
        let is_half_free = |gauge: &Gauge, bytes_max: u64| gauge.get() <= signed(bytes_max / 2);
        is_half_free(&self.0.bytes, self.0.bytes_max)
            && is_half_free(self.node_bytes(), self.0.node_bytes_max)
            && self.lacks(bytes).is_none()
    }

    /// Counts `bytes` that a guest gets. Two growths at the same time may both be refused although
    /// one of them would fit.
    ///
    /// # Errors
    /// The limit that they exceed; then they do not count.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), InstanceScope> {
        self.add(signed(bytes as u64));
        self.lacks(0).map_or(Ok(()), |scope| {
            self.release(bytes);
            Err(scope)
        })
    }

    /// Ends the count of `bytes`.
    pub(crate) fn release(&self, bytes: usize) {
        self.add(-signed(bytes as u64));
    }

    /// The error for a call that has failed for want of memory. Counts it.
    pub fn refusal(&self, scope: InstanceScope) -> Fault {
        self.0.metrics.process.guest_memory.refused(scope);
        let TenantMemoryShared { bytes_max, node_bytes_max, .. } = *self.0;
        match scope {
            InstanceScope::Tenant => Fault::new(
                ErrorCode::QueueFull,
                format!(
                    "functions of this tenant may use {bytes_max} bytes of memory together (guest_memory_bytes_max of [node.tenants]), which they do; try again once other calls have ended"
                ),
            ),
            InstanceScope::Node => Fault::new(
                ErrorCode::Unavailable,
                format!(
                    "functions on this node may use {node_bytes_max} bytes of memory together (sandbox.guest_memory_bytes_max), which they do; try again"
                ),
            ),
        }
    }

    fn add(&self, bytes: i64) {
        self.0.bytes.inc_by(bytes);
        self.node_bytes().inc_by(bytes);
    }

    fn node_bytes(&self) -> &Gauge {
        &self.0.metrics.process.guest_memory.bytes
    }
}

impl fmt::Debug for TenantMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantMemory").field("bytes", &self.0.bytes.get()).finish_non_exhaustive()
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes_max: u64, tenant_bytes_max: u64) -> GuestMemory {
        GuestMemory::new(bytes_max, move |_| tenant_bytes_max, Metrics::new())
    }

    #[test]
    fn limits_hold_for_tenant_and_node_and_refused_bytes_do_not_count() {
        let memory = memory(300, 200);
        let [ours, theirs] = ["ours", "theirs"].map(|name| memory.tenant(&TenantId::new(name).unwrap()));
        ours.reserve(200).unwrap();
        assert_eq!(ours.reserve(1), Err(InstanceScope::Tenant));
        assert_eq!(theirs.reserve(101), Err(InstanceScope::Node));
        theirs.reserve(100).unwrap();
        assert_eq!(ours.lacks(1), Some(InstanceScope::Tenant));
        ours.release(200);
        assert_eq!((ours.lacks(200), ours.lacks(201)), (None, Some(InstanceScope::Tenant)));
        assert_eq!(theirs.lacks(100), None);
        theirs.release(100);
        assert_eq!(memory.metrics.process.guest_memory.bytes.get(), 0);
    }

    #[test]
    fn refusals_name_the_setting() {
        let memory = memory(300, 200).tenant(&TenantId::default());
        for (scope, code, setting) in [
            (InstanceScope::Tenant, ErrorCode::QueueFull, "guest_memory_bytes_max of [node.tenants]"),
            (InstanceScope::Node, ErrorCode::Unavailable, "sandbox.guest_memory_bytes_max"),
        ] {
            let fault = memory.refusal(scope);
            assert_eq!(fault.code, code);
            assert!(fault.text.contains(setting), "{}", fault.text);
        }
    }
}
