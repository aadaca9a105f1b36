//! Secrets for instances of functions.

use super::follow::sealed_in;
use super::index::SealedSecret;
use super::keyring::Keyring;
use super::record::record_key;
use super::{SecretError, Secrets};
use std::sync::Arc;
use weir_datastore::Revision;
use weir_sandbox::SecretEnv;
use weir_types::{SecretGrants, SecretName, TenantId};
use zeroize::Zeroizing;

/// The encrypted secrets of a function at one moment, by environment variable. Equal if they are the
/// same values.
#[derive(Debug, Clone, Default)]
pub struct GrantedSecrets(Vec<(String, Arc<SealedSecret>)>);

impl PartialEq for GrantedSecrets {
    fn eq(&self, other: &Self) -> bool {
        self.values().eq(other.values())
    }
}

impl GrantedSecrets {
    /// Identifies the values.
    fn values(&self) -> impl Iterator<Item = (&str, &SecretName, Revision)> {
        self.0.iter().map(|(variable, secret)| (variable.as_str(), &secret.name, secret.revision))
    }
}

impl Secrets {
    /// Checks that the secrets that a manifest grants exist.
    pub async fn check(&self, tenant: &TenantId, grants: &SecretGrants) -> Result<(), SecretError> {
        self.granted(tenant, grants).await.map(drop)
    }

    /// The current values of granted secrets, encrypted.
    ///
    /// # Errors
    /// If a secret does not exist.
    pub async fn granted(
        &self,
        tenant: &TenantId,
        grants: &SecretGrants,
    ) -> Result<GrantedSecrets, SecretError> {
        if grants.is_empty() {
            return Ok(GrantedSecrets::default());
        }
        let mut granted = Vec::with_capacity(grants.len());
        for (variable, name) in grants.iter() {
            granted.push((variable.to_owned(), self.sealed(tenant, name).await?));
        }
        Ok(GrantedSecrets(granted))
    }

    /// The current value of a secret, for the node itself.
    ///
    /// # Errors
    /// If the secret does not exist, or the node lacks its key.
    pub async fn value(
        &self,
        tenant: &TenantId,
        name: &SecretName,
    ) -> Result<Zeroizing<String>, SecretError> {
        let sealed = self.sealed(tenant, name).await?;
        decrypt(&sealed, &self.keys())
    }

    async fn sealed(&self, tenant: &TenantId, name: &SecretName) -> Result<Arc<SealedSecret>, SecretError> {
        // A node of a cluster reads the datastore while its watch is late.
        let is_late = self.lookups.is_some() && self.heard.is_behind();
        let known = self.known.read().get(tenant, name).filter(|_| !is_late).cloned();
        match known {
            Some(secret) => Ok(secret),
            None => self.look_up(tenant, name).await,
        }
    }

    /// Reads a secret that another node may have stored a moment ago.
    async fn look_up(&self, tenant: &TenantId, name: &SecretName) -> Result<Arc<SealedSecret>, SecretError> {
        let missing = || SecretError::NotFound(name.clone());
        let lookups = self.lookups.as_ref().ok_or_else(missing)?;
        let _permit = lookups.try_acquire().map_err(|_| SecretError::Busy)?;
        let entry = self.datastore.get(&record_key(tenant, name)?).await?.ok_or_else(missing)?;
        sealed_in(&entry).map(Arc::new).ok_or_else(missing)
    }

    /// Whether these are still the current values.
    #[must_use]
    pub fn is_current(&self, granted: &GrantedSecrets) -> bool {
        let known = self.known.read();
        granted.0.iter().all(|(_, secret)| {
            known.get(&secret.tenant, &secret.name).is_some_and(|now| now.revision == secret.revision)
        })
    }

    /// Decrypts secrets for a new instance.
    ///
    /// # Errors
    /// If the node lacks the key of a secret, or a record was altered.
    pub fn open_granted(&self, granted: &GrantedSecrets) -> Result<SecretEnv, SecretError> {
        if granted.0.is_empty() {
            return Ok(SecretEnv::default());
        }
        let keys = self.keys();
        let mut env = SecretEnv::default();
        for (variable, secret) in &granted.0 {
            env.add(variable.clone(), decrypt(secret, &keys)?);
        }
        Ok(env)
    }
}

fn decrypt(secret: &SealedSecret, keys: &Keyring) -> Result<Zeroizing<String>, SecretError> {
    let SealedSecret { tenant, name, record, .. } = secret;
    let master = keys
        .get(&record.key_id)
        .ok_or_else(|| SecretError::KeyMissing { name: name.clone(), key_id: record.key_id.clone() })?;
    let cipher = |error| SecretError::Cipher { name: name.clone(), error };
    let value = record.open(tenant, name, master).map_err(cipher)?;
    // Values are checked before they are encrypted.
    let text = std::str::from_utf8(&value).map_err(|_| cipher(super::CipherError::Altered))?;
    Ok(Zeroizing::new(text.to_owned()))
}
