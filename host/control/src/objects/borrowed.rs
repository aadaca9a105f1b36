//! Bytes of objects that calls hold, counted once for each tenant.
//!
//! The cache may evict bytes that calls still hold, and counts them for no tenant. These bytes count
//! against the share of the tenant whose calls hold them, so that calls that hold many objects leave
//! the rest of the memory to other tenants.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use weir_device::{Arena, ArenaExhausted, Buffer, ShareReservation};
use weir_types::{ContentHash, TenantId};

/// Entries without holders that are kept, apart from as many as there are entries with holders.
const UNUSED_MAX: usize = 64;

/// Bytes that calls hold, by tenant and hash.
#[derive(Default)]
pub(super) struct BorrowedBytes(Mutex<BorrowedState>);

#[derive(Default)]
struct BorrowedState {
    entries: HashMap<(TenantId, ContentHash), Weak<Borrowed>>,
    /// The number of entries from which on those without holders are removed.
    len_max: usize,
}

/// Bytes that calls of one tenant hold.
struct Borrowed {
    data: Buffer,
    _reservation: ShareReservation,
}

/// The owner of a buffer that a call holds.
struct Holder(Arc<Borrowed>);

impl BorrowedBytes {
    /// The bytes, if a call of the tenant holds them.
    pub(super) fn find(&self, tenant: &TenantId, digest: ContentHash) -> Option<Buffer> {
        self.0.lock().find(&(tenant.clone(), digest))
    }

    /// Counts `data` against the tenant's share in `arena` until the last call drops it.
    pub(super) fn lend(
        &self,
        tenant: &TenantId,
        digest: ContentHash,
        data: Buffer,
        arena: &Arena,
    ) -> Result<Buffer, ArenaExhausted> {
        let mut state = self.0.lock();
        let key = (tenant.clone(), digest);
        if let Some(held) = state.find(&key) {
            return Ok(held);
        }
        let _reservation = arena.tenant(tenant).reserve_share(data.len() as u64)?;
        let borrowed = Arc::new(Borrowed { data, _reservation });
        state.insert(key, Arc::downgrade(&borrowed));
        Ok(buffer(borrowed))
    }
}

impl BorrowedState {
    fn find(&self, key: &(TenantId, ContentHash)) -> Option<Buffer> {
        self.entries.get(key)?.upgrade().map(buffer)
    }

    fn insert(&mut self, key: (TenantId, ContentHash), borrowed: Weak<Borrowed>) {
        if self.entries.len() >= self.len_max {
            self.entries.retain(|_, held| held.strong_count() > 0);
            self.len_max = 2 * self.entries.len() + UNUSED_MAX;
        }
        self.entries.insert(key, borrowed);
    }
}

/// A buffer that shares the memory, and keeps it counted.
fn buffer(borrowed: Arc<Borrowed>) -> Buffer {
    Bytes::from_owner(Holder(borrowed)).into()
}

impl AsRef<[u8]> for Holder {
    fn as_ref(&self) -> &[u8] {
        &self.0.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_once_for_each_tenant_until_the_last_holder_drops_them() {
        let arena = Arena::with_shares(1 << 20, |_| 100);
        let [ours, theirs] = ["ours", "theirs"].map(|name| TenantId::new(name).unwrap());
        let all = BorrowedBytes::default();
        let data = arena.copy_of(&[7; 60]).unwrap();
        let lend = |tenant, of: u8| all.lend(tenant, ContentHash::from_content(&[of]), data.clone(), &arena);
        let first = lend(&ours, 1).unwrap();
        let again = lend(&ours, 1).unwrap();
        assert_eq!((first.as_ptr(), again.as_ptr()), (data.as_ptr(), data.as_ptr()));
        assert!(lend(&ours, 2).is_err(), "it exceeds the tenant's share");
        let _other = lend(&theirs, 1).unwrap();
        drop(first);
        assert!(lend(&ours, 2).is_err() && all.find(&ours, ContentHash::from_content(&[1])).is_some());
        drop(again);
        assert!(all.find(&ours, ContentHash::from_content(&[1])).is_none());
        assert!(lend(&ours, 2).is_ok());
    }

    #[test]
    fn entries_without_holders_are_removed() {
        let arena = Arena::new(1 << 20);
        let all = BorrowedBytes::default();
        let tenant = TenantId::default();
        for number in 0..10_000_u32 {
            let digest = ContentHash::from_content(&number.to_le_bytes());
            drop(all.lend(&tenant, digest, arena.copy_of(&[1]).unwrap(), &arena).unwrap());
        }
        assert!(all.0.lock().entries.len() <= UNUSED_MAX, "{}", all.0.lock().entries.len());
    }
}
