//! The in-memory index of all secrets, encrypted: plain data, without clock or I/O.

use super::record::SecretRecord;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::{SecretName, TenantId};

/// An encrypted secret.
#[derive(Debug)]
pub(super) struct SealedSecret {
    pub(super) tenant: TenantId,
    pub(super) name: SecretName,
    pub(super) record: SecretRecord,
    /// Revision of the record.
    pub(super) revision: Revision,
}

/// All secrets, by owner.
#[derive(Debug, Default)]
pub(super) struct KnownSecrets(BTreeMap<TenantId, BTreeMap<SecretName, Arc<SealedSecret>>>);

impl KnownSecrets {
    /// Adds or replaces a secret.
    pub(super) fn put(&mut self, secret: SealedSecret) {
        let secrets = self.0.entry(secret.tenant.clone()).or_default();
        secrets.insert(secret.name.clone(), Arc::new(secret));
    }

    pub(super) fn remove(&mut self, tenant: &TenantId, name: &SecretName) {
        let Some(secrets) = self.0.get_mut(tenant) else { return };
        secrets.remove(name);
        if secrets.is_empty() {
            self.0.remove(tenant);
        }
    }

    /// Replaces all secrets by `all`.
    pub(super) fn load(&mut self, all: impl IntoIterator<Item = SealedSecret>) {
        self.0.clear();
        all.into_iter().for_each(|secret| self.put(secret));
    }

    pub(super) fn get(&self, tenant: &TenantId, name: &SecretName) -> Option<&Arc<SealedSecret>> {
        self.0.get(tenant)?.get(name)
    }

    /// The secrets of a tenant, by name.
    pub(super) fn list(&self, tenant: &TenantId) -> impl Iterator<Item = &Arc<SealedSecret>> {
        self.0.get(tenant).into_iter().flat_map(BTreeMap::values)
    }

    /// The secrets of all tenants.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<SealedSecret>> {
        self.0.values().flat_map(BTreeMap::values)
    }

    /// The number of secrets of a tenant.
    pub(super) fn len(&self, tenant: &TenantId) -> usize {
        self.0.get(tenant).map_or(0, BTreeMap::len)
    }
}
