//! Instance slots, and the idle instances that occupy some of them. An instance slot is the place
//! for one instance of a function in the engines' allocators.
//!
//! The number of slots is fixed. An invocation holds one slot while it runs. Afterwards, a reusable
//! instance keeps the slot and waits in it. Its wait ends when: an invocation of the same version
//! of its function takes it; an invocation finds no free slot, or too many instances wait already,
//! and this instance has waited longest; it has waited for `reuse.idle_ms`, or is `reuse.age_ms`
//! old; its version is no longer the active one; a secret that it got has another value; or the node
//! shuts down.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_call::Fault;
use weir_control::registry::DeployedFunction;
use weir_control::secrets::GrantedSecrets;
use weir_sandbox::instance::Instance;
use weir_sandbox::{GuestMemory, SecretEnv, TenantMemory};
use weir_telemetry::{GuestMemoryScope, Metrics, Retired};
use weir_types::{ErrorCode, TenantId};

/// The instance slots of a node.
pub struct InstanceSlots {
    free: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// The limit of idle instances, over all functions.
    idle_max: usize,
    /// The memory of all instances.
    memory: GuestMemory,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Idle {
    /// Idle instances, the longest waiting first.
    waiting: VecDeque<WaitingForSlot>,
    /// The number of invocations that wait for a slot. While it is not zero, no instance becomes
    /// idle.
    wanted: usize,
    is_closed: bool,
}

/// An idle instance in its slot.
struct WaitingForSlot {
    since: Instant,
    deployment: Arc<DeployedFunction>,
    instance: Box<Instance>,
    /// The secrets that the instance got.
    secrets: GrantedSecrets,
    permit: OwnedSemaphorePermit,
}

/// A slot for an invocation, with the instance in it, if any.
pub struct InstanceSlot {
    /// An instance to reuse; `None`: create a new one.
    pub idle: Option<Box<Instance>>,
    /// The secrets of the instance, encrypted.
    pub secrets: GrantedSecrets,
    /// The secrets of a new instance, decrypted.
    pub env: SecretEnv,
    pub permit: OwnedSemaphorePermit,
    /// The memory of all instances of the function's tenant.
    pub memory: TenantMemory,
}

impl InstanceSlots {
    /// Creates `slots` free slots, of which idle instances may hold `idle_max`.
    pub fn new(slots: usize, idle_max: usize, memory: GuestMemory, metrics: Arc<Metrics>) -> Self {
        Self { free: Arc::new(Semaphore::new(slots)), idle: Mutex::default(), idle_max, memory, metrics }
    }

    /// Takes a slot for an invocation. The caller bounds the wait by its deadline. With `may_wait`
    /// unset, fails if no slot is free. Also fails if there is no memory for a new instance. An idle
    /// instance must have got `secrets`.
    pub async fn take(
        &self,
        deployment: &Arc<DeployedFunction>,
        secrets: GrantedSecrets,
        may_wait: bool,
    ) -> Result<InstanceSlot, Fault> {
        let memory = self.memory.tenant(&deployment.id.tenant);
        if deployment.manifest.reuse.is_some()
            && let Some(WaitingForSlot { instance, permit, .. }) = self.take_idle(deployment, &secrets)
        {
            deployment.metrics.instance(false);
            let env = SecretEnv::default();
            return Ok(InstanceSlot { idle: Some(instance), secrets, env, permit, memory });
        }
        self.make_room(deployment, &memory)?;
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if !may_wait => {
                let text = "all instance slots are in use (sandbox.instances_max), and nested calls do not wait for a slot";
                return Err(Fault::new(ErrorCode::QueueFull, text));
            }
            Err(_) => self.wait().await?,
        };
        deployment.metrics.instance(true);
        Ok(InstanceSlot { idle: None, secrets, env: SecretEnv::default(), permit, memory })
    }

    /// Keeps `instance` in its slot for the next invocation.
    pub fn keep(
        &self,
        deployment: &Arc<DeployedFunction>,
        instance: Box<Instance>,
        secrets: GrantedSecrets,
        permit: OwnedSemaphorePermit,
    ) {
        let function_max = deployment.manifest.reuse.as_ref().map_or(0, |reuse| reuse.idle_max as usize);
        let since = Instant::now();
        let kept = WaitingForSlot { since, deployment: deployment.clone(), instance, secrets, permit };
        self.retire(|idle| {
            let Idle { waiting, wanted, is_closed } = idle;
            let node_max = if *wanted > 0 || *is_closed { 0 } else { self.idle_max };
            waiting.push_back(kept);
            let of_function = |one: &WaitingForSlot| Arc::ptr_eq(&one.deployment, deployment);
            let over = if node_max == 0 {
                waiting.pop_back()
            } else if waiting.iter().filter(|one| of_function(one)).count() > function_max {
                waiting.iter().position(of_function).and_then(|at| waiting.remove(at))
            } else if waiting.len() > node_max {
                waiting.pop_front()
            } else {
                None
            };
            over.map(|over| (over, Retired::Room)).into_iter().collect()
        });
    }

    /// Retires instances that have waited too long, or whose version or secrets are not current.
    pub fn sweep(&self, is_current: impl Fn(&Arc<DeployedFunction>, &GrantedSecrets) -> bool) {
        let now = Instant::now();
        self.retire(|idle| {
            let mut over = Vec::new();
            for one in std::mem::take(&mut idle.waiting) {
                match one.end(now) {
                    None if is_current(&one.deployment, &one.secrets) => idle.waiting.push_back(one),
                    cause => over.push((one, cause.unwrap_or(Retired::Replaced))),
                }
            }
            over
        });
    }

    /// Retires all idle instances and keeps none from now on.
    pub fn close(&self) {
        self.retire(|idle| {
            idle.is_closed = true;
            std::mem::take(&mut idle.waiting).into_iter().map(|one| (one, Retired::Stopping)).collect()
        });
    }

    /// Retires idle instances, those first that have waited longest, until a new instance may have
    /// all the memory that its function's limits allow.
    ///
    /// # Errors
    /// If no memory is free after that.
    fn make_room(&self, deployment: &DeployedFunction, memory: &TenantMemory) -> Result<(), Fault> {
        let tenant = &deployment.id.tenant;
        let wanted_bytes = deployment.manifest.limits.memory_bytes;
        while let Some(scope) = memory.lacks(wanted_bytes)
            && self.retire_idle(scope, tenant)
        {}
        memory.lacks(1).map_or(Ok(()), |scope| Err(memory.refusal(scope)))
    }

    /// Retires an idle instance whose memory counts for `scope`. Returns false if there is none.
    fn retire_idle(&self, scope: GuestMemoryScope, tenant: &TenantId) -> bool {
        let mut is_retired = false;
        self.retire(|idle| {
            let counts = |one: &WaitingForSlot| match scope {
                GuestMemoryScope::Tenant => one.deployment.id.tenant == *tenant,
                GuestMemoryScope::Node => true,
            };
            let longest = idle.waiting.iter().position(counts).and_then(|at| idle.waiting.remove(at));
            is_retired = longest.is_some();
            longest.map(|one| (one, Retired::Room)).into_iter().collect()
        });
        is_retired
    }

    /// Waits for a slot; an idle instance makes room.
    async fn wait(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let wanted = Wanted(self);
        self.retire(|idle| {
            idle.wanted += 1;
            idle.waiting.pop_front().map(|one| (one, Retired::Room)).into_iter().collect()
        });
        let permit = self.free.clone().acquire_owned().await;
        drop(wanted);
        permit.map_err(|_| Fault::new(ErrorCode::Unavailable, "the node is shutting down"))
    }

    /// Takes the instance of exactly this version, with these secrets, that has waited least: its
    /// memory is the warmest.
    fn take_idle(
        &self,
        deployment: &Arc<DeployedFunction>,
        secrets: &GrantedSecrets,
    ) -> Option<WaitingForSlot> {
        let now = Instant::now();
        let mut taken = None;
        self.retire(|idle| {
            let mut over = Vec::new();
            while let Some(at) = idle.waiting.iter().rposition(|one| Arc::ptr_eq(&one.deployment, deployment))
                && let Some(one) = idle.waiting.remove(at)
            {
                match one.end(now) {
                    None if one.secrets == *secrets => {
                        taken = Some(one);
                        break;
                    }
                    None => over.push((one, Retired::Replaced)),
                    Some(cause) => over.push((one, cause)),
                }
            }
            over
        });
        taken
    }

    /// Applies `change` to the idle instances and retires the ones that it returns. Drops them
    /// outside the lock, since dropping clears their memory.
    fn retire(&self, change: impl FnOnce(&mut Idle) -> Vec<(WaitingForSlot, Retired)>) {
        let mut idle = self.idle.lock();
        let over = change(&mut idle);
        self.metrics.process.instances_idle.set(i64::try_from(idle.waiting.len()).unwrap_or(i64::MAX));
        drop(idle);
        over.into_iter().for_each(|(mut one, cause)| one.instance.end_as(cause));
    }
}

impl WaitingForSlot {
    /// The reason why it may not be used at `now`, if any.
    fn end(&self, now: Instant) -> Option<Retired> {
        let reuse = self.deployment.manifest.reuse.as_ref()?;
        let waited = now.saturating_duration_since(self.since);
        if waited >= Duration::from_millis(reuse.idle_ms) {
            Some(Retired::Idle)
        } else {
            self.instance.is_aged(reuse, now).then_some(Retired::Age)
        }
    }
}

/// An invocation that waits for a slot, until it has one or gives up.
struct Wanted<'a>(&'a InstanceSlots);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.idle.lock().wanted -= 1;
    }
}
