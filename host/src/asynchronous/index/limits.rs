//! What is accepted, and what is forgotten to make room.

use super::{Index, Tenant};
use weir_types::{AsyncId, TenantId};

/// Those that are forgotten in one go.
pub(in super::super) const FORGOTTEN_AT_ONCE: usize = 1_000;

/// Why one more is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Full {
    Node,
    Tenant,
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Kept {
    pub(in super::super) retention_ms: u64,
    pub(in super::super) tenant_kept_max: usize,
    pub(in super::super) tenant_bytes_max: u64,
}

impl Index {
    /// One more of `tenant` is to be accepted.
    pub(in super::super) fn accept(
        &mut self,
        tenant: &TenantId,
        len_max: usize,
        tenant_len_max: usize,
    ) -> Result<(), Full> {
        if self.own + self.accepting >= len_max {
            return Err(Full::Node);
        }
        let known = self.tenants.get(tenant);
        if known.map_or(0, |known| known.live + known.accepting) >= tenant_len_max {
            return Err(Full::Tenant);
        }
        self.tenants.entry(tenant.clone()).or_default().accepting += 1;
        self.accepting += 1;
        Ok(())
    }

    /// That one has been accepted, and is known; or it was not.
    pub(in super::super) fn accepted(&mut self, tenant: &TenantId) {
        self.accepting -= 1;
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.accepting -= 1;
        }
        self.tidy(tenant);
    }

    /// What those of `tenant` take that have not ended, in bytes.
    pub(in super::super) fn live_bytes(&self, tenant: &TenantId) -> u64 {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.live_bytes)
    }

    /// What is to be forgotten at `now_ms`: what ended too long ago, and where a tenant has too much, its oldest.
    pub(in super::super) fn to_forget(&self, now_ms: u64, kept: &Kept) -> Vec<(TenantId, AsyncId)> {
        let mut all = Vec::new();
        for (tenant, Tenant { ended, live_bytes, ended_bytes, .. }) in &self.tenants {
            let (mut count, mut bytes) = (ended.len(), live_bytes + ended_bytes);
            for (at_ms, id) in ended {
                let is_old = at_ms.saturating_add(kept.retention_ms) <= now_ms;
                let is_over = count > kept.tenant_kept_max || bytes > kept.tenant_bytes_max;
                if all.len() == FORGOTTEN_AT_ONCE || !(is_old || is_over) {
                    break;
                }
                count -= 1;
                let entry = self.items.get(id).and_then(|item| item.entry.as_ref());
                bytes -= entry.map_or(0, |entry| entry.bytes);
                all.push((tenant.clone(), *id));
            }
        }
        all
    }
}
