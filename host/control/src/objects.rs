//! Named objects: tensors that functions, inferences and clients share under a name (the data layer
//! of Kernel-as-a-Service).
//!
//! An object has a record in the datastore, and its bytes are a blob: until it expires, it outlives
//! the call that created it, and the node. `known` holds all records on every node, by following
//! the datastore. `memory` caches recently used bytes in a share of the unused tensor memory. An
//! object is replaced as a whole: a reader gets either the old bytes or the new ones.

mod borrowed;
mod config;
mod follow;
mod index;
mod memory;
pub(crate) mod record;
mod sweep;

use bytes::Bytes;
pub use config::ObjectsConfig;
use futures::stream;
use index::{KnownObjects, ObjectLimitReached};
use memory::ByteCache;
use parking_lot::{RwLock, RwLockReadGuard};
use record::{ObjectRecord, object_key};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_datastore::{Compare, Datastore, Key, KeyError, Revision, Transaction};
use weir_device::{Arena, ArenaExhausted, ArenaScope};
use weir_inference::{Tensor, TensorError};
use weir_storage::Heard;
use weir_storage::blobs::{BlobError, Blobs, PutError};
use weir_storage::{Changes, CutOff};
use weir_telemetry::Metrics;
use weir_telemetry::logs::now_ms;
use weir_types::api::Object;
use weir_types::{ErrorCode, Name, TenantId};

/// The objects of all tenants.
pub struct Objects {
    config: ObjectsConfig,
    datastore: Arc<dyn Datastore>,
    blobs: Blobs,
    changes: Changes,
    metrics: Arc<Metrics>,
    /// Changed only by events of the datastore.
    known: RwLock<KnownObjects>,
    /// The revision of the datastore that `known` reflects.
    heard: Heard,
    memory: ByteCache,
    /// Whether blobs have lost their records since the last sweep.
    has_leftovers: AtomicBool,
}

/// The dependencies of a node's objects.
pub struct ObjectDeps {
    /// Sizes, quotas and lifetimes.
    pub config: ObjectsConfig,
    /// Stores the records.
    pub datastore: Arc<dyn Datastore>,
    /// Stores the bytes.
    pub blobs: Blobs,
    /// Runs changes to completion, even if the client disconnects.
    pub changes: Changes,
    /// The node's metrics.
    pub metrics: Arc<Metrics>,
    /// The tensor memory, part of which caches recently used bytes.
    pub arena: Arena,
}

/// The reason why an object was not stored or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The tenant has no object with this name, or the object has expired.
    #[error("there is no object {0}")]
    NotFound(Name),
    /// The object exceeds the size limit of one object.
    #[error("the object has {bytes} bytes, and at most {bytes_max} are kept (objects.object_bytes_max)")]
    TooLarge {
        /// The object's size.
        bytes: u64,
        /// The size limit.
        bytes_max: u64,
    },
    /// The tenant has reached its limit of objects or bytes.
    #[error(transparent)]
    Full(#[from] ObjectLimitReached),
    /// The requested time to live is 0 or above the limit.
    #[error("an object is kept for 1 to {ttl_ms_max} ms (objects.ttl_ms_max), not for {ttl_ms}")]
    Ttl {
        /// The requested time to live.
        ttl_ms: u64,
        /// The longest time to live.
        ttl_ms_max: u64,
    },
    /// The tensor memory has no room for the object.
    #[error("{0}; try again")]
    OutOfMemory(#[from] ArenaExhausted),
    /// A record in the datastore cannot be parsed.
    #[error("the record {key} cannot be read: {why}")]
    Damaged {
        /// The record's key.
        key: Key,
        /// The reason why the record cannot be parsed.
        why: String,
    },
    /// The stored bytes do not match the data type and shape in the record.
    #[error("object {name} is not what its record says: {why}")]
    NotATensor {
        /// The object's name.
        name: Name,
        /// The mismatch.
        why: TensorError,
    },
    /// The record has no valid key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The bytes cannot be read, or storing them failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The bytes were not received in full or not written.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

impl ObjectError {
    /// The error code for clients.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::ObjectNotFound,
            Self::TooLarge { .. } => ErrorCode::BodyTooLarge,
            Self::Full(_) => ErrorCode::ObjectsFull,
            Self::Blob(BlobError::DiskFull(_)) | Self::Put(PutError::DiskFull(_)) => ErrorCode::DiskFull,
            Self::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            Self::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            Self::Ttl { .. } => ErrorCode::InvalidRequest,
            Self::OutOfMemory(error) if error.scope == ArenaScope::Tenant => ErrorCode::QueueFull,
            Self::OutOfMemory(_) | Self::Blob(BlobError::OutOfReach(_)) => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

impl Objects {
    /// Reads all objects. Also returns the revision that was read.
    pub async fn open(parts: ObjectDeps) -> Result<(Arc<Self>, Revision), ObjectError> {
        let ObjectDeps { config, datastore, blobs, changes, metrics, arena } = parts;
        let objects = Self {
            memory: ByteCache::new(arena, config.free_percent_max),
            config,
            datastore,
            blobs,
            changes,
            metrics,
            known: RwLock::default(),
            heard: Heard::default(),
            has_leftovers: AtomicBool::new(true),
        };
        let revision = objects.load().await?;
        Ok((Arc::new(objects), revision))
    }

    /// The size limit of one object.
    pub fn object_bytes_max(&self) -> u64 {
        self.config.object_bytes_max
    }

    /// Stores `tensor` under `name` for `ttl_ms` and replaces an earlier object; without `ttl_ms`,
    /// the node's settings apply. On return, the object is durable and found by every node's next
    /// [`get`](Self::get).
    pub async fn put(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        tensor: &Tensor,
        ttl_ms: Option<u64>,
    ) -> Result<Object, ObjectError> {
        let ttl_ms_max = self.config.ttl_ms_max;
        let ttl_ms = ttl_ms.unwrap_or(self.config.ttl_ms_default.min(ttl_ms_max));
        if !(1..=ttl_ms_max).contains(&ttl_ms) {
            return Err(ObjectError::Ttl { ttl_ms, ttl_ms_max });
        }
        let bytes = tensor.data().len() as u64;
        let bytes_max = self.config.object_bytes_max;
        if bytes > bytes_max {
            return Err(ObjectError::TooLarge { bytes, bytes_max });
        }
        let room = self.reserve(tenant, name, bytes)?;
        let data = tensor.data().clone();
        let source = stream::iter([Ok::<_, Infallible>(Bytes::from(data.clone()))]);
        let staged = self.blobs.stage(source, bytes).await?;
        let put_at_ms = now_ms();
        let record = ObjectRecord {
            datatype: tensor.element_type(),
            shape: tensor.shape().clone(),
            bytes,
            digest: staged.digest,
            put_at_ms,
            expires_at_ms: put_at_ms.saturating_add(ttl_ms),
        };
        let objects = self.clone();
        let key = object_key(tenant, name)?;
        let described = record.describe(name);
        let keeping = async move {
            let digest = staged.digest;
            let hold = objects.blobs.keep(staged).await?;
            let put = Transaction::new().put(key, record.encode());
            if let Some(revision) = objects.datastore.commit(put).await?.done() {
                objects.heard.wait(revision).await;
            }
            objects.memory.keep_copy(digest, &data);
            // From here on the record protects the blob and counts against the limits.
            drop((hold, room));
            Ok::<_, ObjectError>(())
        };
        self.changes.carry_through(keeping).await??;
        self.metrics.objects.put(tenant);
        Ok(described)
    }

    /// Returns the description and the tensor of the object `name`.
    pub async fn get(&self, tenant: &TenantId, name: &Name) -> Result<(Object, Tensor), ObjectError> {
        let record = self.record(tenant, name).await?;
        let ObjectRecord { digest, bytes, .. } = record;
        // Protects the blob from sweeps: on a node that has not received the record yet, no record
        // refers to it.
        let _hold = self.blobs.in_use().hold([digest]);
        let (data, was_in_memory) = self.memory.borrow(tenant, digest, bytes, &self.blobs).await?;
        self.metrics.objects.got(tenant, was_in_memory);
        let tensor = Tensor::new(record.datatype, record.shape.clone(), data)
            .map_err(|why| ObjectError::NotATensor { name: name.clone(), why })?;
        Ok((record.describe(name), tensor))
    }

    /// Describes the object `name`.
    pub async fn describe(&self, tenant: &TenantId, name: &Name) -> Result<Object, ObjectError> {
        Ok(self.record(tenant, name).await?.describe(name))
    }

    /// All objects of `tenant`, sorted by name.
    pub fn list(&self, tenant: &TenantId) -> Vec<Object> {
        self.read_known().list(tenant, now_ms()).map(|(name, record)| record.describe(name)).collect()
    }

    /// Use and limit of the setting `objects.tenant_len_max`, and of `objects.tenant_bytes_max`.
    pub fn usage(&self, tenant: &TenantId) -> [(u64, u64); 2] {
        let (len, bytes) = self.read_known().tenant_usage(tenant);
        let ObjectsConfig { tenant_len_max, tenant_bytes_max, .. } = self.config;
        [(len, tenant_len_max as u64), (bytes, tenant_bytes_max)]
    }

    /// Removes the object `name`. Reads in progress continue.
    pub async fn remove(self: &Arc<Self>, tenant: &TenantId, name: &Name) -> Result<(), ObjectError> {
        let key = object_key(tenant, name)?;
        let there = self.datastore.get(&key).await?.ok_or_else(|| ObjectError::NotFound(name.clone()))?;
        let is_over = ObjectRecord::decode(&there).is_ok_and(|record| record.is_over(now_ms()));
        let objects = self.clone();
        let removing = async move {
            if let Some(revision) = objects.datastore.commit(Transaction::new().delete(key)).await?.done() {
                objects.heard.wait(revision).await;
            }
            Ok::<_, ObjectError>(())
        };
        self.changes.carry_through(removing).await??;
        if is_over { Err(ObjectError::NotFound(name.clone())) } else { Ok(()) }
    }

    /// The record of an object; read from the datastore if another node has only just written it, or
    /// if this node's memory does not reflect its own writes.
    async fn record(&self, tenant: &TenantId, name: &Name) -> Result<ObjectRecord, ObjectError> {
        let is_behind = self.heard.is_behind();
        let known = self.read_known().get(tenant, name).filter(|_| !is_behind).cloned();
        let record = match known {
            Some(record) => Some(record),
            None => {
                let found = self.datastore.get(&object_key(tenant, name)?).await?;
                found.as_ref().map(ObjectRecord::decode).transpose()?
            }
        };
        record.filter(|record| !record.is_over(now_ms())).ok_or_else(|| ObjectError::NotFound(name.clone()))
    }

    /// Reserves room for an object that is about to be stored.
    fn reserve(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        bytes: u64,
    ) -> Result<ReservedRoom, ObjectError> {
        let ObjectsConfig { tenant_len_max, tenant_bytes_max, .. } = self.config;
        let mut known = self.known.write();
        known.reserve(tenant, name, bytes, tenant_len_max, tenant_bytes_max)?;
        Ok(ReservedRoom { objects: self.clone(), tenant: tenant.clone(), bytes })
    }

    /// Removes an expired object, unless it was stored again since.
    async fn forget(&self, key: Key, seen: Revision) -> Result<(), ObjectError> {
        let delete = Transaction::new().when(Compare::ModifiedAt(key.clone(), seen)).delete(key);
        if let Some(revision) = self.datastore.commit(delete).await?.done() {
            self.heard.wait(revision).await;
        }
        Ok(())
    }

    fn read_known(&self) -> RwLockReadGuard<'_, KnownObjects> {
        self.known.read()
    }

    fn leave_behind(&self) {
        self.has_leftovers.store(true, Ordering::Relaxed);
    }
}

/// Room reserved for an object that is being stored, until its record counts.
struct ReservedRoom {
    objects: Arc<Objects>,
    tenant: TenantId,
    bytes: u64,
}

impl Drop for ReservedRoom {
    fn drop(&mut self) {
        let mut known = self.objects.known.write();
        known.release(&self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests;
