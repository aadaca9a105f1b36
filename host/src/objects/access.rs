//! A function's access to objects.

use super::{ObjectError, Objects};
use std::sync::Arc;
use weir_inference::Tensor;
use weir_types::{Name, NamePattern, ObjectGrants, TenantId};

/// The objects of a function's tenant, limited to the grants in its manifest.
pub(crate) struct ObjectAccess<'a> {
    pub(crate) objects: &'a Arc<Objects>,
    pub(crate) tenant: &'a TenantId,
    pub(crate) grants: &'a ObjectGrants,
}

/// The reason why a function's access failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// The same error whether or not the object exists: its existence must not leak without a
    /// grant.
    #[error("object {0} is not granted to this function (to {1}); add it to objects.{1} in the manifest")]
    NotGranted(Name, &'static str),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl ObjectAccess<'_> {
    pub(crate) async fn get(&self, name: &Name) -> Result<Tensor, AccessError> {
        check(&self.grants.read, name, "read")?;
        let (_, tensor) = self.objects.get(self.tenant, name).await?;
        Ok(tensor)
    }

    pub(crate) async fn put(
        &self,
        name: &Name,
        tensor: &Tensor,
        ttl_ms: Option<u64>,
    ) -> Result<(), AccessError> {
        check(&self.grants.write, name, "write")?;
        self.objects.put(self.tenant, name, tensor, ttl_ms).await?;
        Ok(())
    }

    pub(crate) async fn remove(&self, name: &Name) -> Result<(), AccessError> {
        check(&self.grants.write, name, "write")?;
        Ok(self.objects.remove(self.tenant, name).await?)
    }
}

fn check(granted: &[NamePattern], name: &Name, how: &'static str) -> Result<(), AccessError> {
    let is_granted = granted.iter().any(|pattern| pattern.covers(name));
    if is_granted { Ok(()) } else { Err(AccessError::NotGranted(name.clone(), how)) }
}
