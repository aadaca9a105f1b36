//! Queue limits of new invocations, and retention of ended ones.

use super::{InvocationIndex, Tenant};
use weir_types::{AsyncId, TenantId};

/// Maximum number of invocations deleted per round.
pub(in super::super) const FORGOTTEN_AT_ONCE: usize = 1_000;

/// Exceeded queue limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum QueueLimit {
    Node,
    Tenant,
}

/// A tenant's use of the limits of asynchronous invocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InvocationUsage {
    /// Invocations and callbacks that this node runs.
    pub running: u64,
    /// Invocations that have not ended.
    pub unfinished: u64,
    /// Ended invocations.
    pub kept: u64,
    /// Bytes of all requests and results.
    pub bytes: u64,
}

/// Retention limits.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct RetentionLimits {
    pub(in super::super) retention_ms: u64,
    pub(in super::super) tenant_kept_max: usize,
    pub(in super::super) tenant_bytes_max: u64,
}

impl InvocationIndex {
    /// Reserves a place for a new invocation of `tenant`.
    pub(in super::super) fn accept(
        &mut self,
        tenant: &TenantId,
        len_max: usize,
        tenant_len_max: usize,
    ) -> Result<(), QueueLimit> {
        if self.own + self.accepting >= len_max {
            return Err(QueueLimit::Node);
        }
        let known = self.tenants.get(tenant);
        if known.map_or(0, |known| known.live + known.accepting) >= tenant_len_max {
            return Err(QueueLimit::Tenant);
        }
        self.tenants.entry(tenant.clone()).or_default().accepting += 1;
        self.accepting += 1;
        Ok(())
    }

    /// Releases a reservation: the invocation is in the index, or was not accepted.
    pub(in super::super) fn accepted(&mut self, tenant: &TenantId) {
        self.accepting -= 1;
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.accepting -= 1;
        }
        self.tidy(tenant);
    }

    /// Returns the use of the limits by `tenant`.
    pub(in super::super) fn usage(&self, tenant: &TenantId) -> InvocationUsage {
        self.tenants.get(tenant).map_or_else(InvocationUsage::default, |tenant| InvocationUsage {
            running: tenant.working as u64,
            unfinished: (tenant.live + tenant.accepting) as u64,
            kept: tenant.ended.len() as u64,
            bytes: tenant.live_bytes + tenant.ended_bytes,
        })
    }

    /// Returns the bytes of the unfinished invocations of `tenant`.
    pub(in super::super) fn live_bytes(&self, tenant: &TenantId) -> u64 {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.live_bytes)
    }

    /// Selects invocations to delete at `now_ms`: those past the retention, and the oldest of each
    /// tenant above its limits.
    pub(in super::super) fn to_forget(
        &self,
        now_ms: u64,
        kept: &RetentionLimits,
    ) -> Vec<(TenantId, AsyncId)> {
        let mut all = Vec::new();
        for (tenant, Tenant { ended, live_bytes, ended_bytes, .. }) in &self.tenants {
            let mut count = ended.len();
            let mut bytes = live_bytes.saturating_add(*ended_bytes);
            for (at_ms, id) in ended {
                let is_old = at_ms.saturating_add(kept.retention_ms) <= now_ms;
                let is_over = count > kept.tenant_kept_max || bytes > kept.tenant_bytes_max;
                if all.len() == FORGOTTEN_AT_ONCE || !(is_old || is_over) {
                    break;
                }
                count -= 1;
                let entry = self.items.get(id).and_then(|item| item.entry.as_ref());
                bytes = bytes.saturating_sub(entry.map_or(0, |entry| entry.bytes));
                all.push((tenant.clone(), *id));
            }
        }
        all
    }
}
