//! The table of a node's intermediates, without I/O.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;
use weir_device::Buffer;
use weir_types::TenantId;

/// The bytes of intermediates, by number.
#[derive(Default)]
pub(super) struct IntermediateBytes {
    entries: HashMap<u64, IntermediateEntry>,
    /// The expiry times, with the numbers.
    expiries: BTreeSet<(Instant, u64)>,
    bytes: u64,
    next_number: u64,
}

struct IntermediateEntry {
    tenant: TenantId,
    data: Buffer,
    until: Instant,
}

impl IntermediateBytes {
    /// Adds `data` of `tenant` until `until`, under a new number.
    pub(super) fn add(&mut self, tenant: &TenantId, data: &Buffer, until: Instant) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += data.len() as u64;
        self.expiries.insert((until, number));
        self.entries.insert(number, IntermediateEntry { tenant: tenant.clone(), data: data.clone(), until });
        number
    }

    /// The data of `tenant` under a number.
    pub(super) fn get(&self, tenant: &TenantId, number: u64) -> Option<Buffer> {
        let entry = self.entries.get(&number).filter(|entry| entry.tenant == *tenant)?;
        Some(entry.data.clone())
    }

    /// Removes the data of `tenant` under a number.
    pub(super) fn remove(&mut self, tenant: &TenantId, number: u64) -> Option<Buffer> {
        self.get(tenant, number)?;
        self.take(number)
    }

    /// Removes expired data.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Buffer> {
        let expired = self.expiries.iter().take_while(|(until, _)| *until <= now);
        let expired: Vec<_> = expired.map(|(_, number)| *number).collect();
        expired.into_iter().filter_map(|number| self.take(number)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn take(&mut self, number: u64) -> Option<Buffer> {
        let IntermediateEntry { data, until, .. } = self.entries.remove(&number)?;
        self.expiries.remove(&(until, number));
        self.bytes -= data.len() as u64;
        Some(data)
    }
}
