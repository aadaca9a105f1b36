//! Instance slots, and the idle instances that occupy some of them. An instance slot is the place
//! for one instance of a function in the engines' allocators.
//!
//! The number of slots is fixed. Each tenant may have a share of them, and tenants that wait for a
//! slot take turns. An invocation holds one slot while it runs. Afterwards, a reusable
//! instance keeps the slot and waits in it. Its wait ends when: an invocation of the same version
//! of its function takes it; an invocation finds no free slot, or too many instances wait already,
//! and this instance has waited longest; it has waited for `reuse.idle_ms`, or is `reuse.age_ms`
//! old; its version is no longer the active one; a secret that it got has another value; or the node
//! shuts down.

mod tenants;
pub use tenants::InstanceLimits;
use tenants::{InstancePermit, InstanceShare, InstanceShares};

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use weir_call::{Fault, Turn, Turnstile};
use weir_control::registry::DeployedFunction;
use weir_control::secrets::GrantedSecrets;
use weir_sandbox::instance::Instance;
use weir_sandbox::{SecretEnv, TenantMemory};
use weir_telemetry::{FunctionColdStart, InstanceScope, Metrics, QuotaKind, Retired};
use weir_types::{ErrorCode, TenantId};

/// The instance slots of a node.
pub struct InstanceSlots {
    turns: Turnstile,
    shares: InstanceShares,
    idle: Mutex<Idle>,
    /// The limit of idle instances, over all functions.
    idle_max: usize,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Idle {
    /// Idle instances, the longest waiting first.
    waiting: VecDeque<WaitingForSlot>,
    /// The number of invocations that wait for a slot of the node. While it is not zero, no instance
    /// becomes idle.
    wanted: usize,
    /// The number of invocations that wait for a slot of their tenant's share. While a tenant has an
    /// entry, none of its instances becomes idle.
    wanted_by_tenant: HashMap<TenantId, usize>,
    is_closed: bool,
}

/// An idle instance in its slot.
struct WaitingForSlot {
    since: Instant,
    deployment: Arc<DeployedFunction>,
    instance: Box<Instance>,
    /// The secrets that the instance got.
    secrets: GrantedSecrets,
    permit: InstancePermit,
}

/// A slot for an invocation, with the instance in it, if any.
pub struct InstanceSlot {
    /// An instance to reuse; `None`: create a new one.
    pub idle: Option<Box<Instance>>,
    /// The secrets of the instance, encrypted.
    pub secrets: GrantedSecrets,
    /// The secrets of a new instance, decrypted.
    pub env: SecretEnv,
    pub permit: InstancePermit,
    /// The memory of all instances of the function's tenant.
    pub memory: TenantMemory,
}

impl InstanceSlots {
    /// Creates free slots. The gates of functions bound the number of invocations that wait for one.
    pub fn new(limits: InstanceLimits, metrics: Arc<Metrics>) -> Self {
        let [slots, idle_max] = [limits.instances_max, limits.idle_max].map(|max| max as usize);
        let turns = Turnstile::new("invocations", slots, usize::MAX);
        Self { turns, shares: InstanceShares::new(limits), idle: Mutex::default(), idle_max, metrics }
    }

    /// Takes a slot for an invocation, out of its tenant's share. The caller bounds the wait by its
    /// deadline. With `may_wait` unset, fails if no slot is free. Also fails if there is no memory for
    /// a new instance. An idle instance must have got `secrets`.
    pub async fn take(
        &self,
        deployment: &Arc<DeployedFunction>,
        secrets: GrantedSecrets,
        may_wait: bool,
    ) -> Result<InstanceSlot, Fault> {
        let share = self.shares.tenant(&deployment.id.tenant);
        let memory = share.memory.clone();
        if deployment.manifest.reuse.is_some()
            && let Some(WaitingForSlot { instance, permit, .. }) = self.take_idle(deployment, &secrets)
        {
            deployment.metrics.instance(false);
            let env = SecretEnv::default();
            return Ok(InstanceSlot { idle: Some(instance), secrets, env, permit, memory });
        }
        self.make_room(deployment, &memory)?;
        let permit = self.permit(&share, may_wait).await?;
        deployment.metrics.instance(true);
        if deployment.manifest.reuse.is_some() {
            // The call itself runs as well.
            let is_scaled_out = deployment.gate.running() > 1;
            deployment.metrics.cold_start(match is_scaled_out {
                true => FunctionColdStart::ScaledOut,
                false => FunctionColdStart::Instance,
            });
        }
        Ok(InstanceSlot { idle: None, secrets, env: SecretEnv::default(), permit, memory })
    }

    /// Whether a copy of a call may take a slot and memory that no call is likely to need: at least
    /// half of the instances and of the memory are free, for the tenant and on the node.
    pub fn has_spare(&self, deployment: &DeployedFunction) -> bool {
        let share = self.shares.tenant(&deployment.id.tenant);
        let is_spare = |free: usize, max: u32| free > 0 && free.saturating_mul(2) >= max as usize;
        let permits = share.permits.as_ref();
        permits.is_none_or(|permits| is_spare(permits.available_permits(), share.instances_max))
            && is_spare(self.turns.free(), self.shares.instances_max)
            && share.memory.has_spare(deployment.manifest.limits.memory_bytes)
    }

    /// Keeps `instance` in its slot for the next invocation.
    pub fn keep(
        &self,
        deployment: &Arc<DeployedFunction>,
        instance: Box<Instance>,
        secrets: GrantedSecrets,
        permit: InstancePermit,
    ) {
        let function_max = deployment.manifest.reuse.as_ref().map_or(0, |reuse| reuse.idle_max as usize);
        let since = Instant::now();
        let kept = WaitingForSlot { since, deployment: deployment.clone(), instance, secrets, permit };
        self.retire(|idle| {
            let Idle { waiting, wanted, wanted_by_tenant, is_closed } = idle;
            let is_wanted = *wanted > 0 || wanted_by_tenant.contains_key(&deployment.id.tenant);
            let node_max = if is_wanted || *is_closed { 0 } else { self.idle_max };
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

    /// Retires an idle instance that counts for `scope`. Returns false if there is none.
    fn retire_idle(&self, scope: InstanceScope, tenant: &TenantId) -> bool {
        let mut is_retired = false;
        self.retire(|idle| {
            let longest = idle.take_longest(scope, tenant);
            is_retired = longest.is_some();
            longest.into_iter().collect()
        });
        is_retired
    }

    async fn permit(&self, share: &InstanceShare, may_wait: bool) -> Result<InstancePermit, Fault> {
        let tenant = self.tenant_permit(share, may_wait).await?;
        let node = self.node_turn(&share.tenant, may_wait).await?;
        Ok(InstancePermit { _tenant: tenant, _node: node })
    }

    /// Takes a permit out of the tenant's share; an idle instance of the tenant makes room.
    async fn tenant_permit(
        &self,
        share: &InstanceShare,
        may_wait: bool,
    ) -> Result<Option<OwnedSemaphorePermit>, Fault> {
        let Some(permits) = &share.permits else { return Ok(None) };
        let free = || permits.clone().try_acquire_owned();
        if let Ok(permit) = free() {
            return Ok(Some(permit));
        }
        let _wanted = SlotDemand::new(self, InstanceScope::Tenant, &share.tenant);
        if let Ok(permit) = free() {
            return Ok(Some(permit));
        }
        if !may_wait {
            self.metrics.access.over_quota(&share.tenant, QuotaKind::Instances);
            let text = format!("{}, and nested calls do not wait", share.used_up());
            return Err(Fault::new(ErrorCode::QueueFull, text));
        }
        self.metrics.process.instance_waited(InstanceScope::Tenant);
        let permit = permits.clone().acquire_owned().await;
        permit.map(Some).map_err(|_| Fault::new(ErrorCode::Unavailable, "the node is shutting down"))
    }

    /// Takes a permit of the node; an idle instance makes room.
    async fn node_turn(&self, tenant: &TenantId, may_wait: bool) -> Result<Turn, Fault> {
        if let Some(turn) = self.turns.try_turn() {
            return Ok(turn);
        }
        let _wanted = SlotDemand::new(self, InstanceScope::Node, tenant);
        if let Some(turn) = self.turns.try_turn() {
            return Ok(turn);
        }
        if !may_wait {
            let text = "all instance slots are in use (sandbox.instances_max), and nested calls do not wait for a slot";
            return Err(Fault::new(ErrorCode::QueueFull, text));
        }
        self.metrics.process.instance_waited(InstanceScope::Node);
        self.turns.turn(tenant).await
    }

    /// Live instances of a tenant, idle ones included, and their limit. `is_alone`: whether all
    /// instances of the node are the tenant's. The number is `None` if the tenant may have all
    /// instances of the node, because they are not counted by tenant then.
    pub fn usage(&self, tenant: &TenantId, is_alone: bool) -> (Option<u64>, u64) {
        let share = self.shares.tenant(tenant);
        let max = u64::from(share.instances_max);
        let free = match &share.permits {
            Some(permits) => Some(permits.available_permits()),
            None => is_alone.then(|| self.turns.free()),
        };
        (free.map(|free| max.saturating_sub(free as u64)), max)
    }

    /// Used and allowed memory of the instances of a tenant.
    pub fn memory(&self, tenant: &TenantId) -> (u64, u64) {
        self.shares.tenant(tenant).memory.usage()
    }

    /// The reason why a call of `tenant` has waited for too long, if the tenant has all instances of
    /// its share. Counts the call.
    pub fn share_used_up(&self, tenant: &TenantId) -> Option<String> {
        let share = self.shares.tenant(tenant);
        share.is_used_up().then(|| {
            self.metrics.access.over_quota(tenant, QuotaKind::Instances);
            share.used_up()
        })
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

impl Idle {
    /// Removes the instance that counts for `scope` and has waited longest.
    fn take_longest(&mut self, scope: InstanceScope, tenant: &TenantId) -> Option<(WaitingForSlot, Retired)> {
        let counts = |one: &WaitingForSlot| match scope {
            InstanceScope::Tenant => one.deployment.id.tenant == *tenant,
            InstanceScope::Node => true,
        };
        let at = self.waiting.iter().position(counts)?;
        self.waiting.remove(at).map(|one| (one, Retired::Room))
    }

    /// Changes the number of invocations that wait.
    fn count_wanted(&mut self, scope: InstanceScope, tenant: &TenantId, change: isize) {
        match scope {
            InstanceScope::Node => self.wanted = self.wanted.saturating_add_signed(change),
            InstanceScope::Tenant => {
                let wanted = self.wanted_by_tenant.entry(tenant.clone()).or_default();
                *wanted = wanted.saturating_add_signed(change);
                if *wanted == 0 {
                    self.wanted_by_tenant.remove(tenant);
                }
            }
        }
    }
}

/// An invocation that waits for a slot, until it has one or gives up.
struct SlotDemand<'a> {
    slots: &'a InstanceSlots,
    scope: InstanceScope,
    tenant: &'a TenantId,
}

impl<'a> SlotDemand<'a> {
    /// Counts the invocation, and retires an idle instance that counts for `scope`.
    fn new(slots: &'a InstanceSlots, scope: InstanceScope, tenant: &'a TenantId) -> Self {
        slots.retire(|idle| {
            idle.count_wanted(scope, tenant, 1);
            idle.take_longest(scope, tenant).into_iter().collect()
        });
        Self { slots, scope, tenant }
    }
}

impl Drop for SlotDemand<'_> {
    fn drop(&mut self) {
        self.slots.idle.lock().count_wanted(self.scope, self.tenant, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use weir_sandbox::GuestMemory;

    type Waiting = BoxFuture<'static, Result<InstancePermit, Fault>>;

    fn slots(instances_max: u32, tenant_instances_max: u32) -> Arc<InstanceSlots> {
        let metrics = Metrics::new();
        let limits = InstanceLimits {
            instances_max,
            idle_max: 0,
            tenant_instances_max: Box::new(move |_| tenant_instances_max),
            memory: GuestMemory::new(u64::MAX, |_| u64::MAX, metrics.clone()),
        };
        Arc::new(InstanceSlots::new(limits, metrics))
    }

    /// Requests a permit. Returns it if the call does not have to wait.
    fn request(
        slots: &Arc<InstanceSlots>,
        tenant: &str,
        may_wait: bool,
    ) -> Result<Result<InstancePermit, Fault>, Waiting> {
        let slots = slots.clone();
        let share = slots.shares.tenant(&TenantId::new(tenant).unwrap());
        let mut waiting = async move { slots.permit(&share, may_wait).await }.boxed();
        (&mut waiting).now_or_never().ok_or(waiting)
    }

    fn take(slots: &Arc<InstanceSlots>, tenant: &str) -> InstancePermit {
        let Ok(permit) = request(slots, tenant, true) else { panic!("{tenant} waits") };
        permit.unwrap()
    }

    fn wait(slots: &Arc<InstanceSlots>, tenant: &str) -> Waiting {
        let Err(waiting) = request(slots, tenant, true) else { panic!("{tenant} does not wait") };
        waiting
    }

    #[test]
    fn tenant_with_all_instances_of_its_share_delays_no_other_tenant() {
        let slots = slots(4, 2);
        let mut hoarded = vec![take(&slots, "a"), take(&slots, "a")];
        let mut waiting: Vec<_> = (0..10).map(|_| wait(&slots, "a")).collect();
        let other = [take(&slots, "b"), take(&slots, "b")];
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        hoarded.pop();
        assert!((&mut waiting[0]).now_or_never().unwrap().is_ok());
        assert!((&mut waiting[1]).now_or_never().unwrap().is_ok(), "the permit was dropped again");
        drop((waiting, other));
        let idle = slots.idle.lock();
        assert_eq!((idle.wanted, idle.wanted_by_tenant.len()), (0, 0));
    }

    #[test]
    fn tenants_take_turns_for_the_slots_of_the_node() {
        let slots = slots(4, 3);
        let mut hoarded: Vec<_> = (0..3).map(|_| take(&slots, "a")).collect();
        let _held = take(&slots, "b");
        let mut first = wait(&slots, "b");
        let mut second = wait(&slots, "b");
        let mut other = wait(&slots, "c");
        hoarded.pop();
        let _first = (&mut first).now_or_never().unwrap().unwrap();
        hoarded.pop();
        assert!((&mut second).now_or_never().is_none(), "it is the turn of the other tenant");
        let _other = (&mut other).now_or_never().unwrap().unwrap();
        hoarded.pop();
        assert!((&mut second).now_or_never().is_some());
    }

    #[test]
    fn nested_calls_fail_at_the_share_and_name_the_setting() {
        let slots = slots(4, 1);
        let acme = TenantId::new("acme").unwrap();
        assert_eq!(slots.share_used_up(&acme), None);
        let _held = take(&slots, "acme");
        let Ok(Err(fault)) = request(&slots, "acme", false) else { panic!("it was not refused") };
        assert_eq!(fault.code, ErrorCode::QueueFull);
        assert!(fault.text.contains("instances_max of [node.tenants]"), "{}", fault.text);
        assert!(slots.share_used_up(&acme).unwrap().contains("1 instances"));
        assert_eq!(slots.share_used_up(&TenantId::default()), None);
    }

    #[test]
    fn tenant_of_an_unshared_node_takes_all_slots() {
        let slots = slots(3, 3);
        assert!(slots.shares.tenant(&TenantId::default()).permits.is_none());
        let _all = [(); 3].map(|()| take(&slots, "default"));
        let Ok(Err(fault)) = request(&slots, "default", false) else { panic!("it was not refused") };
        assert!(fault.text.contains("sandbox.instances_max"), "{}", fault.text);
        drop(wait(&slots, "default"));
    }
}
