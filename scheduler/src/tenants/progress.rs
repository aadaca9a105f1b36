//! The virtual time of fair sharing: the device time, by weight, of the active tenant that has had
//! least.
//!
//! Only invocations that have ended count. Their expected times would do harm: a tenant that becomes
//! active while another is charged for a load that is estimated too high would wait for as long as
//! the estimate was wrong.

use crate::TenantKey;
use std::collections::BTreeSet;

/// The device time of the tenants that wait or run, and the virtual time.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The active tenants, by their device time divided by weight.
    active: BTreeSet<(u64, TenantKey)>,
    /// The virtual time when the last tenant left.
    least_ns: u64,
}

impl Progress {
    /// The device time of the active tenant with the least; never less than before.
    pub(super) fn least_ns(&self) -> u64 {
        self.active.first().map_or(self.least_ns, |(used_ns, _)| self.least_ns.max(*used_ns))
    }

    /// Adds a tenant that begins to wait or run.
    pub(super) fn enter(&mut self, tenant: TenantKey, used_ns: u64) {
        self.active.insert((used_ns, tenant));
    }

    /// Records that invocations of an active tenant have ended.
    pub(super) fn advance(&mut self, tenant: TenantKey, before_ns: u64, used_ns: u64) {
        if self.active.remove(&(before_ns, tenant)) {
            self.active.insert((used_ns, tenant));
        }
    }

    /// Removes a tenant that neither waits nor runs.
    pub(super) fn leave(&mut self, tenant: TenantKey, used_ns: u64) {
        self.least_ns = self.least_ns();
        self.active.remove(&(used_ns, tenant));
    }
}
