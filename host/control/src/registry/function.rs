//! Functions: their records, and deployed versions in memory.

use super::entry::{DeploymentKind, Noun, RegistryEntry};
use super::record::{EntryContents, VersionRecord, parse, prefix};
use super::{ActiveVersion, Registry, RegistryError};
use crate::canary::{ShadowSlot, TrialSlot};
use crate::response_cache::Scope;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use weir_call::Fault;
use weir_telemetry::logs::{FunctionLog, Logs};
use weir_telemetry::usage::FunctionMeter;
use weir_telemetry::{FunctionMetrics, Metrics, Served};
use weir_types::api::FunctionVersion;
use weir_types::{
    ContentHash, ErrorCode, FunctionId, FunctionKind, FunctionManifest, Name, TenantId, Version,
};

/// The number of changes of other nodes that wait to be handled. Components above it are compiled at
/// their first call, and files above it are removed with the next ones.
const CHANGES_MAX: usize = 64;

/// A component that a call may need soon.
pub type Prepare = (ContentHash, FunctionKind);

/// A change of another node that concerns files of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentChange {
    /// A deployed component, to compile before its first call.
    Deployed(Prepare),
    /// Removed versions, whose files may be unused now.
    Removed,
}

/// All versions of a function.
pub type FunctionEntry = RegistryEntry<FunctionParts>;

/// The parts that functions have and workflows lack: logs, and components to compile ahead.
pub struct FunctionParts {
    metrics: Arc<Metrics>,
    logs: Arc<Logs>,
    changes: mpsc::Sender<ComponentChange>,
}

impl FunctionParts {
    /// Creates the kind, and the channel of other nodes' changes.
    pub fn new(metrics: Arc<Metrics>, logs: Arc<Logs>) -> (Self, mpsc::Receiver<ComponentChange>) {
        let (changes, heard) = mpsc::channel(CHANGES_MAX);
        (Self { metrics, logs, changes }, heard)
    }
}

/// The state that all versions of a function share.
#[derive(Clone)]
pub struct FunctionShared {
    pub metrics: FunctionMetrics,
    pub meter: FunctionMeter,
    pub log: Arc<FunctionLog>,
    /// Counts the calls while there is a canary.
    pub trial: Arc<TrialSlot>,
    /// Chooses the calls to copy while there is a shadow.
    pub shadow: Arc<ShadowSlot>,
}

/// One version of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRecord {
    /// The number of the version.
    pub version: Version,
    /// The interface that the component exports.
    pub kind: FunctionKind,
    /// The hash of the component.
    pub digest: ContentHash,
    /// The size of the component.
    pub component_bytes: u64,
    /// The time of the deployment, in milliseconds since the Unix epoch.
    pub deployed_at_ms: u64,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// The manifest as deployed.
    pub manifest: FunctionManifest,
}

impl VersionRecord for FunctionRecord {
    fn version(&self) -> Version {
        self.version
    }
}

impl FunctionRecord {
    /// Describes the version as the API returns it.
    pub fn describe(&self, tenant: &TenantId, name: &Name, active: bool) -> FunctionVersion {
        let mut manifest = self.manifest.clone();
        let env = std::mem::take(&mut manifest.env);
        FunctionVersion {
            tenant: tenant.clone(),
            name: name.clone(),
            version: self.version,
            active,
            kind: self.kind,
            digest: self.digest,
            component_bytes: self.component_bytes,
            deployed_at_ms: self.deployed_at_ms,
            manifest,
            env_names: env.into_keys().collect(),
        }
    }
}

/// One version of a function, ready to be called.
pub struct DeployedFunction {
    /// The tenant, name and version.
    pub id: FunctionId,
    /// The datastore's record of the version.
    pub record: FunctionRecord,
    /// The record's manifest, cheap to clone.
    pub manifest: Arc<FunctionManifest>,
    /// Limits the version's concurrent and queued invocations.
    pub gate: Gate,
    /// The function's metrics, over all its versions.
    pub metrics: FunctionMetrics,
    /// The meter that counts device usage of the function.
    pub meter: FunctionMeter,
    /// The statistics of its inferences; unset until the first use.
    pub served: OnceLock<Served>,
    /// The response cache of its calls; unset until the first use.
    pub answers: OnceLock<Arc<Scope>>,
    /// The function's log, over all its versions.
    pub log: Arc<FunctionLog>,
    /// Counts the function's calls while it has a canary.
    pub trial: Arc<TrialSlot>,
    /// Chooses the function's calls to copy while it has a shadow.
    pub shadow: Arc<ShadowSlot>,
    /// Whether its last call ended within the first time slice, so that the next call may start on
    /// the thread that received it.
    pub is_brief: AtomicBool,
}

impl DeploymentKind for FunctionParts {
    const NOUN: Noun = Noun::Function;
    const ROOT: &'static str = "functions";

    type Record = FunctionRecord;
    type Deployment = DeployedFunction;
    type Shared = FunctionShared;

    fn share(&self, tenant: &TenantId, name: &Name) -> FunctionShared {
        let metrics = self.metrics.function(tenant, name);
        let meter = self.metrics.usage.function(tenant, name);
        FunctionShared {
            metrics: metrics.clone(),
            meter,
            log: self.logs.open(metrics),
            trial: Arc::default(),
            shadow: Arc::new(ShadowSlot::new(self.metrics.function_shadow(tenant, name))),
        }
    }

    fn deployment(
        &self,
        tenant: &TenantId,
        name: &Name,
        record: FunctionRecord,
        shared: &FunctionShared,
    ) -> DeployedFunction {
        let limits = &record.manifest.limits;
        DeployedFunction {
            id: FunctionId { tenant: tenant.clone(), name: name.clone(), version: record.version },
            manifest: Arc::new(record.manifest.clone()),
            gate: Gate::new(limits.concurrency_max, limits.queue_len_max),
            metrics: shared.metrics.clone(),
            meter: shared.meter.clone(),
            served: OnceLock::new(),
            answers: OnceLock::new(),
            log: shared.log.clone(),
            trial: shared.trial.clone(),
            shadow: shared.shadow.clone(),
            is_brief: AtomicBool::new(false),
            record,
        }
    }

    fn record(deployment: &DeployedFunction) -> &FunctionRecord {
        &deployment.record
    }

    /// Clients must not notice which version answers them, except by its answer.
    fn check_canary(active: &FunctionRecord, canary: &FunctionRecord) -> Result<(), String> {
        Self::check_shadow(active, canary)?;
        if active.manifest.public != canary.manifest.public {
            return Err("one is public and the other is not".to_owned());
        }
        Ok(())
    }

    fn check_shadow(active: &FunctionRecord, shadow: &FunctionRecord) -> Result<(), String> {
        let is_tensor = |record: &FunctionRecord| record.kind == FunctionKind::Tensor;
        if is_tensor(active) != is_tensor(shadow) {
            return Err("one is a tensor function and the other an HTTP function".to_owned());
        }
        Ok(())
    }

    fn heads_changed(shared: &FunctionShared, head: &ActiveVersion) {
        shared.trial.set(head.canary, head.active);
        shared.shadow.set(head.shadow, head.active);
    }

    fn count(&self, names: usize) {
        self.metrics.deployed.functions.set(i64::try_from(names).unwrap_or(i64::MAX));
    }

    fn heard_of(&self, record: &FunctionRecord) {
        // If the channel is full or closed, the component is compiled at its first call.
        let _ = self.changes.try_send(ComponentChange::Deployed((record.digest, record.kind)));
    }

    fn removed_elsewhere(&self) {
        // If the channel is full or closed, the next removal has the files swept.
        let _ = self.changes.try_send(ComponentChange::Removed);
    }
}

impl Registry {
    /// Whether calls without a version, or copies of calls, may use `deployment`: as the active
    /// version of its function, as the canary or as the shadow.
    pub fn is_serving(&self, deployment: &Arc<DeployedFunction>) -> bool {
        let FunctionId { tenant, name, version } = &deployment.id;
        let Some(entry) = self.get(tenant, name.as_str()).filter(|entry| entry.serves(*version)) else {
            return false;
        };
        entry.versions.get(version).is_some_and(|serving| Arc::ptr_eq(serving, deployment))
    }

    /// A version with this component, of any function of any tenant.
    pub fn find(&self, digest: ContentHash) -> Option<FunctionRecord> {
        let tenants = self.tenants.read();
        let mut versions =
            tenants.values().flat_map(BTreeMap::values).flat_map(|entry| entry.versions.values());
        versions.find(|version| version.record.digest == digest).map(|version| version.record.clone())
    }

    /// Whether [`digests`](Self::digests) is complete: an unreadable record refers to an unknown
    /// component.
    pub fn is_whole(&self) -> bool {
        self.lock_damaged().is_empty()
    }

    /// The components of all versions of all functions.
    pub fn digests(&self) -> HashSet<ContentHash> {
        let tenants = self.tenants.read();
        let entries = tenants.values().flat_map(BTreeMap::values);
        entries.flat_map(|entry| entry.versions.values().map(|version| version.record.digest)).collect()
    }

    /// The `count` most recently deployed components of active versions, canaries and shadows, which
    /// calls are likeliest to need.
    pub fn newest(&self, count: usize) -> Vec<Prepare> {
        let tenants = self.tenants.read();
        let entries = tenants.values().flat_map(BTreeMap::values);
        let serving = entries.flat_map(|entry| {
            entry.versions.values().filter(|deployment| entry.serves(deployment.id.version))
        });
        let mut active: Vec<_> = serving.map(|deployment| &deployment.record).collect();
        active.sort_by_key(|record| std::cmp::Reverse(record.deployed_at_ms));
        active.into_iter().map(|record| (record.digest, record.kind)).take(count).collect()
    }

    /// The components that the datastore's current records refer to; `None` if some record cannot
    /// be read.
    pub async fn referred(&self) -> Result<Option<HashSet<ContentHash>>, RegistryError> {
        let (entries, _) = self.datastore.read_all(&prefix::<FunctionParts>()?).await?;
        let mut digests = HashSet::new();
        for entry in entries {
            match parse::<FunctionRecord>(&entry).map(|parsed| parsed.value) {
                Ok(EntryContents::Version(Ok(record))) => _ = digests.insert(record.digest),
                Ok(EntryContents::Head(_)) => {}
                Ok(EntryContents::Version(Err(_))) | Err(_) => return Ok(None),
            }
        }
        Ok(Some(digests))
    }
}

impl FunctionEntry {
    /// Describes `deployment` as the API returns it.
    pub fn describe(&self, deployment: &DeployedFunction) -> FunctionVersion {
        let FunctionId { tenant, name, .. } = &deployment.id;
        let record = &deployment.record;
        record.describe(tenant, name, self.head.active == record.version)
    }
}

/// Limits the concurrent and the queued invocations of a function.
pub struct Gate {
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

    /// Whether invocations run or wait.
    pub fn is_busy(&self) -> bool {
        self.permits.available_permits() < self.concurrency_max as usize
    }

    /// Number of running invocations.
    pub fn running(&self) -> u32 {
        let free = u32::try_from(self.permits.available_permits()).unwrap_or(u32::MAX);
        self.concurrency_max.saturating_sub(free)
    }

    /// A permit, if one is free.
    pub fn try_enter(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for a permit. The caller bounds the wait by the invocation's deadline.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit, Fault> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let _place = GatePlace::take(&self.waiting, self.queue_len_max).ok_or_else(|| {
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

/// A place in a queue of bounded length, released on drop.
struct GatePlace<'a>(&'a AtomicU32);

impl<'a> GatePlace<'a> {
    fn take(waiting: &'a AtomicU32, len_max: u32) -> Option<Self> {
        let taken = waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |len| (len < len_max).then_some(len + 1));
        // Lazily: a place that was not taken must not be released.
        taken.is_ok().then(|| Self(waiting))
    }
}

impl Drop for GatePlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
