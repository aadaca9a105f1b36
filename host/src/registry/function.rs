//! A deployed function in memory.

use super::RegistryError;
use super::record::{FunctionRecord, Head};
use crate::instance::Fault;
use crate::response_cache::Scope;
use crate::telemetry::logs::FunctionLog;
use crate::telemetry::{FunctionMetrics, Served};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_datastore::Revision;
use weir_types::api::FunctionVersion;
use weir_types::{ErrorCode, FunctionId, FunctionManifest, Name, TenantId, Version};

/// One function as of one revision of the registry. Changes make a new entry; calls under way keep theirs.
pub(crate) struct FunctionEntry {
    pub(crate) name: Name,
    pub(crate) head: Head,
    pub(crate) revision: Revision,
    pub(crate) versions: BTreeMap<Version, Arc<Deployment>>,
    pub(crate) log: Arc<FunctionLog>,
}

/// One version of a function, ready to be called.
pub(crate) struct Deployment {
    pub(crate) id: FunctionId,
    pub(crate) record: FunctionRecord,
    pub(crate) manifest: Arc<FunctionManifest>,
    pub(crate) gate: Gate,
    pub(crate) metrics: FunctionMetrics,
    /// Its inferences, from the first on.
    pub(crate) served: OnceLock<Served>,
    /// Its answers that are kept for equal calls, from the first on.
    pub(crate) answers: OnceLock<Arc<Scope>>,
    pub(crate) log: Arc<FunctionLog>,
    /// Whether its last call ended within its first time slice, so that the next may begin on the thread that received it.
    pub(crate) is_brief: AtomicBool,
}

impl FunctionEntry {
    pub(super) fn new(
        tenant: &TenantId,
        name: &Name,
        head: Head,
        revision: Revision,
        records: BTreeMap<Version, FunctionRecord>,
        before: Option<&Self>,
        first: impl FnOnce() -> (FunctionMetrics, Arc<FunctionLog>),
    ) -> Self {
        let known = before.and_then(|before| before.versions.values().next());
        let (metrics, log) = match known {
            Some(known) => (known.metrics.clone(), known.log.clone()),
            None => first(),
        };
        let deployment = |version: Version, record: FunctionRecord| {
            if let Some(same) = before.and_then(|before| before.versions.get(&version)) {
                return same.clone();
            }
            Arc::new(Deployment {
                id: FunctionId { tenant: tenant.clone(), name: name.clone(), version },
                manifest: Arc::new(record.manifest.clone()),
                gate: Gate::new(record.manifest.limits.concurrency_max, record.manifest.limits.queue_len_max),
                metrics: metrics.clone(),
                served: OnceLock::new(),
                answers: OnceLock::new(),
                log: log.clone(),
                is_brief: AtomicBool::new(false),
                record,
            })
        };
        let versions =
            records.into_iter().map(|(version, record)| (version, deployment(version, record))).collect();
        Self { name: name.clone(), head, revision, versions, log }
    }

    /// The version that the name points at.
    pub(crate) fn active(&self) -> Option<&Arc<Deployment>> {
        self.versions.get(&self.head.active)
    }

    /// `version`, or an error that lists those there are.
    pub(crate) fn require(&self, version: Version) -> Result<&Arc<Deployment>, RegistryError> {
        self.versions.get(&version).ok_or_else(|| {
            let have: Vec<_> = self.versions.keys().map(ToString::to_string).collect();
            RegistryError::NoVersion { name: self.name.clone(), version, have: have.join(", ") }
        })
    }

    /// `deployment` as the API shows it.
    pub(crate) fn describe(&self, deployment: &Deployment) -> FunctionVersion {
        let record = &deployment.record;
        FunctionVersion {
            tenant: deployment.id.tenant.clone(),
            name: deployment.id.name.clone(),
            version: record.version,
            active: self.head.active == record.version,
            kind: record.kind,
            digest: record.digest,
            component_bytes: record.component_bytes,
            deployed_at_ms: record.deployed_at_ms,
            manifest: record.manifest.clone(),
        }
    }
}

/// Lets so many invocations of a function run at once, and so many more wait.
pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    concurrency_max: u32,
    waiting: AtomicU32,
    queue_len_max: u32,
}

impl Gate {
    fn new(concurrency_max: u32, queue_len_max: u32) -> Self {
        let permits = Arc::new(Semaphore::new(concurrency_max as usize));
        Self { permits, concurrency_max, waiting: AtomicU32::new(0), queue_len_max }
    }

    /// Wait for a turn. The caller bounds the wait by the invocation's deadline.
    pub(crate) async fn enter(&self) -> Result<OwnedSemaphorePermit, Fault> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let _place = Place::take(&self.waiting, self.queue_len_max).ok_or_else(|| {
            let text = format!(
                "{} invocations of the function run and {} wait already (limits.concurrency_max, limits.queue_len_max)",
                self.concurrency_max, self.queue_len_max
            );
            Fault::new(ErrorCode::QueueFull, text)
        })?;
        self.permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Fault::new(ErrorCode::Unavailable, "the node is shutting down"))
    }
}

/// A place in a queue of bounded length, given back on drop.
struct Place<'a>(&'a AtomicU32);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicU32, len_max: u32) -> Option<Self> {
        let taken = waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |len| (len < len_max).then_some(len + 1));
        // Lazily: a place that was not taken must not be given back.
        taken.is_ok().then(|| Self(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
