//! Rotation of master keys: encrypts the data keys of all secrets with the node's first key.

use super::follow::sealed_in;
use super::keyring::KeyringError;
use super::record::{record_key, records};
use super::{SecretError, Secrets};
use std::sync::Arc;
use weir_datastore::{Compare, Transaction};
use weir_types::TenantId;
use weir_types::api::SecretRotation;

impl Secrets {
    /// Encrypts the secrets of all tenants with the first master key, and counts the secrets of
    /// `tenant`. Secrets whose key the node lacks stay as they are. Values and versions do not
    /// change.
    pub async fn rotate(self: &Arc<Self>, tenant: &TenantId) -> Result<SecretRotation, SecretError> {
        let secrets = self.clone();
        let tenant = tenant.clone();
        let rotating = async move {
            let Ok(_turn) = secrets.turn.clone().acquire_owned().await else { return Err(SecretError::Busy) };
            secrets.rotate_all(&tenant).await
        };
        self.changes.carry_through(rotating).await?
    }

    async fn rotate_all(&self, tenant: &TenantId) -> Result<SecretRotation, SecretError> {
        let (entries, _) = self.datastore.read_all(&records()?).await?;
        if let Some(lost) = entries.iter().find_map(sealed_in).filter(|_| self.keys().first().is_none()) {
            return Err(SecretError::OtherKey { have: "none".to_owned(), lacks: lost.record.key_id });
        }
        let keys = self.keys_to_encrypt().await?;
        let new = keys.first().ok_or(KeyringError::Unset)?;
        let mut counts = SecretRotation { key_id: new.id().to_owned(), rotated: 0, unusable: 0 };
        let mut all_rotated = 0;
        let mut all_unusable = 0;
        for entry in &entries {
            let Some(secret) = sealed_in(entry).filter(|secret| secret.record.key_id != new.id()) else {
                continue;
            };
            let own = u64::from(secret.tenant == *tenant);
            let old = keys.get(&secret.record.key_id);
            let rotated = old.map(|old| secret.record.rotate(&secret.tenant, &secret.name, old, new));
            let Some(Ok(record)) = rotated else {
                all_unusable += 1;
                counts.unusable += own;
                continue;
            };
            let key = record_key(&secret.tenant, &secret.name)?;
            // A concurrent change has encrypted a new value, with the first key of its node.
            let storing = Transaction::new().when(Compare::ModifiedAt(key.clone(), secret.revision));
            if let Some(revision) = self.datastore.commit(storing.put(key, record.encode())).await?.done() {
                self.heard.wait(revision).await;
                all_rotated += 1;
                counts.rotated += own;
            }
        }
        let key_id = &counts.key_id;
        tracing::info!(key_id, rotated = all_rotated, unusable = all_unusable, "rotated the keys of secrets");
        Ok(counts)
    }
}
