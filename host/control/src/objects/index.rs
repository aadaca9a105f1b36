//! The in-memory index of all objects: plain data, without clock or I/O.

use super::record::ObjectRecord;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use weir_datastore::Revision;
use weir_types::{ContentHash, Name, TenantId};

/// All objects, and the room reserved for objects that are being stored.
#[derive(Debug, Default)]
pub(super) struct KnownObjects {
    tenants: BTreeMap<TenantId, TenantObjects>,
    /// All objects, sorted by expiry.
    expiries: BTreeSet<(u64, TenantId, Name)>,
}

#[derive(Debug, Default)]
struct TenantObjects {
    objects: BTreeMap<Name, (ObjectRecord, Revision)>,
    bytes: u64,
    /// The number of objects that are being stored.
    coming_len: usize,
    coming_bytes: u64,
}

/// A tenant has reached its limit of objects or bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectLimitReached {
    #[error(
        "the tenant has {len_max} objects already (objects.tenant_len_max); delete some, or have them expire sooner"
    )]
    Len { len_max: usize },
    #[error(
        "the tenant's objects would take more than {bytes_max} bytes together (objects.tenant_bytes_max); delete some, or have them expire sooner"
    )]
    Bytes { bytes_max: u64 },
}

impl KnownObjects {
    /// Adds or replaces an object. Returns whether one existed before.
    pub(super) fn put(
        &mut self,
        tenant: TenantId,
        name: Name,
        record: ObjectRecord,
        revision: Revision,
    ) -> bool {
        let was_there = self.remove(&tenant, &name);
        self.expiries.insert((record.expires_at_ms, tenant.clone(), name.clone()));
        let of = self.tenants.entry(tenant).or_default();
        of.bytes += record.bytes;
        of.objects.insert(name, (record, revision));
        was_there
    }

    /// Removes an object. Returns whether it existed.
    pub(super) fn remove(&mut self, tenant: &TenantId, name: &Name) -> bool {
        let Some(of) = self.tenants.get_mut(tenant) else { return false };
        let Some((record, _)) = of.objects.remove(name) else { return false };
        of.bytes -= record.bytes;
        self.expiries.remove(&(record.expires_at_ms, tenant.clone(), name.clone()));
        self.tidy(tenant);
        true
    }

    /// Replaces all objects by `all`. Reservations are kept.
    pub(super) fn load(&mut self, all: impl IntoIterator<Item = (TenantId, Name, ObjectRecord, Revision)>) {
        self.expiries.clear();
        for of in self.tenants.values_mut() {
            of.objects = BTreeMap::new();
            of.bytes = 0;
        }
        self.tenants.retain(|_, of| of.coming_len > 0);
        for (tenant, name, record, revision) in all {
            self.put(tenant, name, record, revision);
        }
    }

    pub(super) fn get(&self, tenant: &TenantId, name: &Name) -> Option<&ObjectRecord> {
        self.tenants.get(tenant)?.objects.get(name).map(|(record, _)| record)
    }

    /// The unexpired objects of `tenant`, sorted by name.
    pub(super) fn list(
        &self,
        tenant: &TenantId,
        now_ms: u64,
    ) -> impl Iterator<Item = (&Name, &ObjectRecord)> {
        let objects = self.tenants.get(tenant).into_iter().flat_map(|of| &of.objects);
        objects.map(|(name, (record, _))| (name, record)).filter(move |(_, record)| !record.is_over(now_ms))
    }

    /// Up to `len_max` expired objects, the first to expire first, with the revisions of their
    /// records.
    pub(super) fn expired(&self, now_ms: u64, len_max: usize) -> Vec<(TenantId, Name, Revision)> {
        let expired = self.expiries.iter().take_while(|(at_ms, ..)| *at_ms <= now_ms).take(len_max);
        let seen = |(_, tenant, name): &(u64, TenantId, Name)| {
            let (_, revision) = self.tenants.get(tenant)?.objects.get(name)?;
            Some((tenant.clone(), name.clone(), *revision))
        };
        expired.filter_map(seen).collect()
    }

    /// Reserves room for an object that is about to be stored, in addition to the object that it
    /// replaces. To be [released](Self::release) once the object is stored.
    pub(super) fn reserve(
        &mut self,
        tenant: &TenantId,
        name: &Name,
        bytes: u64,
        len_max: usize,
        bytes_max: u64,
    ) -> Result<(), ObjectLimitReached> {
        let of = self.tenants.entry(tenant.clone()).or_default();
        let replaced = of.objects.get(name).map(|(record, _)| record.bytes);
        let len = of.objects.len() + of.coming_len - usize::from(replaced.is_some());
        let held_bytes = of.bytes + of.coming_bytes - replaced.unwrap_or(0);
        let full = if len >= len_max {
            Some(ObjectLimitReached::Len { len_max })
        } else if held_bytes.saturating_add(bytes) > bytes_max {
            Some(ObjectLimitReached::Bytes { bytes_max })
        } else {
            of.coming_len += 1;
            of.coming_bytes += bytes;
            None
        };
        self.tidy(tenant);
        full.map_or(Ok(()), Err)
    }

    /// Objects of a tenant and their bytes, including those that are being stored.
    pub(super) fn tenant_usage(&self, tenant: &TenantId) -> (u64, u64) {
        self.tenants
            .get(tenant)
            .map_or((0, 0), |of| ((of.objects.len() + of.coming_len) as u64, of.bytes + of.coming_bytes))
    }

    /// Releases the room of an object that was stored, or that will not be stored.
    pub(super) fn release(&mut self, tenant: &TenantId, bytes: u64) {
        let Some(of) = self.tenants.get_mut(tenant) else { return };
        of.coming_len = of.coming_len.saturating_sub(1);
        of.coming_bytes = of.coming_bytes.saturating_sub(bytes);
        self.tidy(tenant);
    }

    /// The blobs of all objects.
    pub(super) fn digests(&self) -> HashSet<ContentHash> {
        self.tenants.values().flat_map(|of| of.objects.values()).map(|(record, _)| record.digest).collect()
    }

    /// The number of objects, and their bytes.
    pub(super) fn usage(&self) -> (usize, u64) {
        let each = self.tenants.values().map(|of| (of.objects.len(), of.bytes));
        each.fold((0, 0), |(len, bytes), of| (len + of.0, bytes + of.1))
    }

    /// Removes the entry of a tenant without objects and reservations.
    fn tidy(&mut self, tenant: &TenantId) {
        let is_empty = |of: &TenantObjects| of.objects.is_empty() && of.coming_len == 0;
        if self.tenants.get(tenant).is_some_and(is_empty) {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_types::{ElementType, Shape};

    fn record(bytes: u64, expires_at_ms: u64) -> ObjectRecord {
        ObjectRecord {
            datatype: ElementType::Uint8,
            shape: Shape::new(&[u32::try_from(bytes).unwrap()]).unwrap(),
            bytes,
            digest: ContentHash::from_content(&bytes.to_le_bytes()),
            put_at_ms: 0,
            expires_at_ms,
        }
    }

    fn id(tenant: u8, name: u8) -> (TenantId, Name) {
        (TenantId::new(&format!("t{tenant}")).unwrap(), Name::new(&format!("n{name}")).unwrap())
    }

    proptest! {
        /// After any sequence of operations, the totals match the objects, and no tenant exceeds
        /// its limits.
        #[test]
        fn totals_match_the_objects(
            steps in prop::collection::vec((0_u8..5, 0_u8..2, 0_u8..4, 1_u64..6, 1_u64..20), 1..120),
        ) {
            let len_max = 3;
            let bytes_max = 9;
            let mut known = KnownObjects::default();
            let mut coming = Vec::new();
            for (revision, (step, tenant, name, bytes, time_ms)) in (1..).zip(steps) {
                let (tenant, name) = id(tenant, name);
                match step {
                    0 | 1 => if known.reserve(&tenant, &name, bytes, len_max, bytes_max).is_ok() {
                        coming.push((tenant, name, bytes, time_ms));
                    },
                    2 => if let Some((tenant, name, bytes, expires_at_ms)) = coming.pop() {
                        known.put(tenant.clone(), name, record(bytes, expires_at_ms), Revision(revision));
                        known.release(&tenant, bytes);
                    },
                    3 => drop(known.remove(&tenant, &name)),
                    _ => for (tenant, name, _) in known.expired(time_ms, usize::MAX) {
                        prop_assert!(known.get(&tenant, &name).unwrap().is_over(time_ms));
                        known.remove(&tenant, &name);
                    },
                }
                let listed = |tenant| known.list(tenant, 0).map(|(_, record)| record.bytes).collect::<Vec<_>>();
                let all: Vec<_> = [id(0, 0).0, id(1, 0).0].iter().map(listed).collect();
                prop_assert_eq!(known.usage(), (all.iter().map(Vec::len).sum(), all.iter().flatten().sum()));
                prop_assert_eq!(known.expiries.len(), known.usage().0);
                let is_within = |bytes: &Vec<u64>| bytes.iter().sum::<u64>() <= bytes_max && bytes.len() <= len_max;
                prop_assert!(all.iter().all(is_within));
                if coming.is_empty() {
                    prop_assert!(known.tenants.values().all(|of| of.coming_len == 0 && of.coming_bytes == 0));
                }
            }
        }
    }

    #[test]
    fn full_tenant_may_replace_an_object() {
        let mut known = KnownObjects::default();
        let (tenant, name) = id(0, 0);
        known.put(tenant.clone(), name.clone(), record(8, 10), Revision(1));
        let mut reserve = |name: &Name, bytes, len_max, bytes_max| {
            known
                .reserve(&tenant, name, bytes, len_max, bytes_max)
                .inspect(|()| known.release(&tenant, bytes))
        };
        let other = id(0, 1).1;
        assert_eq!(reserve(&other, 1, 1, 100), Err(ObjectLimitReached::Len { len_max: 1 }));
        assert_eq!(reserve(&other, 2, 9, 9), Err(ObjectLimitReached::Bytes { bytes_max: 9 }));
        assert_eq!(reserve(&name, 9, 1, 9), Ok(()));
        assert_eq!(reserve(&name, 10, 1, 9), Err(ObjectLimitReached::Bytes { bytes_max: 9 }));
    }
}
