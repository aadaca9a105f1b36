//! Shares of the tenants in an arena.

use super::ArenaExhausted;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_types::TenantId;

/// The limit that leaves no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaScope {
    /// The share of one tenant.
    Tenant,
    /// The arena.
    Node,
}

/// The shares of all tenants.
pub(super) struct TenantShares {
    bytes_max: Box<dyn Fn(&TenantId) -> u64 + Send + Sync>,
    /// The node's configuration bounds the number of tenants. `None`: the tenant may have the whole
    /// arena.
    tenants: RwLock<HashMap<TenantId, Option<Arc<TenantShare>>>>,
}

/// The bytes that buffers of one tenant hold.
pub(super) struct TenantShare {
    used_bytes: AtomicU64,
    bytes_max: u64,
}

impl TenantShare {
    /// Used and allowed bytes.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.used_bytes.load(Ordering::Relaxed), self.bytes_max)
    }
}

/// Bytes of a tenant's share, until dropped.
pub struct ShareReservation {
    share: Option<Arc<TenantShare>>,
    bytes: u64,
}

impl ArenaScope {
    /// The bytes that the limit counts, and the setting of the limit.
    pub(super) fn counted(self) -> &'static str {
        match self {
            Self::Tenant => "for bodies and tensors of this tenant (arena_bytes_max of [node.tenants])",
            Self::Node => "for bodies and tensors",
        }
    }
}

impl TenantShares {
    pub(super) fn new(bytes_max: Box<dyn Fn(&TenantId) -> u64 + Send + Sync>) -> Self {
        Self { bytes_max, tenants: RwLock::default() }
    }

    /// The share of a tenant in an arena of `arena_bytes_max`, if it is not the whole arena.
    pub(super) fn tenant(&self, tenant: &TenantId, arena_bytes_max: u64) -> Option<Arc<TenantShare>> {
        if let Some(known) = self.tenants.read().get(tenant) {
            return known.clone();
        }
        let bytes_max = (self.bytes_max)(tenant);
        let new = || {
            let share = TenantShare { used_bytes: AtomicU64::new(0), bytes_max };
            (bytes_max < arena_bytes_max).then(|| Arc::new(share))
        };
        self.tenants.write().entry(tenant.clone()).or_insert_with(new).clone()
    }

    /// The bytes that buffers of each tenant hold.
    pub(super) fn used_bytes(&self) -> Vec<(TenantId, u64)> {
        let tenants = self.tenants.read();
        let used = |(tenant, share): (&TenantId, &Option<Arc<TenantShare>>)| {
            Some((tenant.clone(), share.as_ref()?.used_bytes.load(Ordering::Relaxed)))
        };
        tenants.iter().filter_map(used).collect()
    }
}

impl ShareReservation {
    /// Counts `bytes`, if they fit. Without a share, every number of bytes fits.
    pub(super) fn new(share: Option<Arc<TenantShare>>, bytes: u64) -> Result<Self, ArenaExhausted> {
        share.as_ref().map_or(Ok(()), |share| share.reserve(bytes))?;
        Ok(Self { share, bytes })
    }
}

impl Drop for ShareReservation {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            share.release(self.bytes);
        }
    }
}

impl TenantShare {
    /// Counts `bytes`, if they fit.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), ArenaExhausted> {
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        let reserved = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map(drop).map_err(|used_bytes| ArenaExhausted {
            asked_bytes: bytes,
            used_bytes,
            bytes_max: self.bytes_max,
            scope: ArenaScope::Tenant,
        })
    }

    /// Ends the count of `bytes`.
    pub(super) fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
