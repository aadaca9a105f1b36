//! The in-memory index of all API keys: plain data, without clock or I/O.

use super::KeyGrant;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_types::{ContentHash, Name, TenantId};

/// All keys, by owner and by the hash of their tokens.
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    tenants: BTreeMap<TenantId, BTreeMap<Name, Arc<KeyGrant>>>,
    by_hash: HashMap<ContentHash, Arc<KeyGrant>>,
}

impl KnownKeys {
    /// Adds or replaces a key.
    pub(super) fn put(&mut self, key: KeyGrant) {
        self.remove(&key.tenant, &key.name);
        let key = Arc::new(key);
        self.by_hash.insert(key.record.hash, key.clone());
        self.tenants.entry(key.tenant.clone()).or_default().insert(key.name.clone(), key);
    }

    pub(super) fn remove(&mut self, tenant: &TenantId, name: &Name) {
        let Some(keys) = self.tenants.get_mut(tenant) else { return };
        if let Some(key) = keys.remove(name) {
            self.by_hash.remove(&key.record.hash);
        }
        if keys.is_empty() {
            self.tenants.remove(tenant);
        }
    }

    /// Replaces all keys by `all`.
    pub(super) fn load(&mut self, all: impl IntoIterator<Item = KeyGrant>) {
        *self = Self::default();
        all.into_iter().for_each(|key| self.put(key));
    }

    pub(super) fn find(&self, hash: &ContentHash) -> Option<&Arc<KeyGrant>> {
        self.by_hash.get(hash)
    }

    pub(super) fn get(&self, tenant: &TenantId, name: &Name) -> Option<&Arc<KeyGrant>> {
        self.tenants.get(tenant)?.get(name)
    }

    /// The keys of a tenant, by name.
    pub(super) fn list(&self, tenant: &TenantId) -> impl Iterator<Item = &Arc<KeyGrant>> {
        self.tenants.get(tenant).into_iter().flat_map(BTreeMap::values)
    }

    /// The number of keys of a tenant.
    pub(super) fn len(&self, tenant: &TenantId) -> usize {
        self.tenants.get(tenant).map_or(0, BTreeMap::len)
    }

    /// Up to `len_max` keys that had expired by `by_ms`.
    pub(super) fn expired(&self, by_ms: u64, len_max: usize) -> Vec<Arc<KeyGrant>> {
        let all = self.tenants.values().flat_map(BTreeMap::values);
        all.filter(|key| key.is_over(by_ms)).take(len_max).cloned().collect()
    }
}
