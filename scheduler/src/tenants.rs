//! Tenant limits and fair sharing between tenants.
//!
//! Every policy calls [`Tenants::may_start`] before it starts an invocation, so that limits and
//! fairness hold under all policies. Limits cap a tenant's concurrent invocations, its share of
//! device time (a token bucket), and the memory of its models. Fairness is start-time fair
//! queueing: each tenant has a virtual clock that advances with its device time divided by its
//! weight. A tenant that begins to wait has no savings: its clock starts at the virtual time. A tenant whose clock is more than [`LAG_ROUNDS`] rounds ahead of the last tenant that
//! waits and could start must let that tenant start first. (The default policy also lets invocations
//! of tenants with lower clocks start first if they need no load.) Fairness never leaves a device idle: if
//! the tenants whose turn it is cannot use the device, the others may.

mod charges;

use crate::estimate::round_ns;
use crate::keys::KeyTable;
use crate::policy::OpenableModel;
use crate::{DeviceKey, DeviceView, ModelKey, ModelParts, TenantKey};
use charges::Charges;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{RunningMean, TenantId};

/// Limits of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// Weight of the tenant's share of the cluster's time, relative to the other waiting tenants. 0
    /// counts as 1.
    pub weight: u32,
    /// Maximum number of concurrent invocations.
    #[serde(skip_serializing_if = "no_cap_u32")]
    pub running_max: u32,
    /// Share of the cluster's device time, from 0 to 1, over about ten seconds. NaN counts as 0.
    #[serde(serialize_with = "share")]
    pub device_share_max: f64,
    /// Maximum memory of the tenant's models on all devices together, in bytes. Parts shared by
    /// models count once per device.
    #[serde(skip_serializing_if = "no_cap_u64")]
    pub resident_bytes_max: u64,
    /// Maximum memory of the tenant's required copies on all devices together, in bytes. Parts shared
    /// by models count for each model.
    #[serde(skip_serializing_if = "no_cap_u64")]
    pub required_bytes_max: u64,
}

/// Omits the default: not every format has integers of that size.
fn no_cap_u32(cap: &u32) -> bool {
    *cap == u32::MAX
}

fn no_cap_u64(cap: &u64) -> bool {
    *cap == u64::MAX
}

/// Clamps a share to the range from 0 to 1, since JSON has no infinity.
pub(crate) fn share<S: Serializer>(share: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) })
}

impl Default for TenantLimits {
    /// Equal weights and no limits.
    fn default() -> Self {
        Self {
            weight: 1,
            running_max: u32::MAX,
            device_share_max: 1.0,
            resident_bytes_max: u64::MAX,
            required_bytes_max: u64::MAX,
        }
    }
}

/// Limits under which none of a tenant's invocations could ever run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TenantLimitsError {
    /// The weight is 0.
    #[error("weight is at least 1")]
    Weight,
    /// The tenant may run no invocation.
    #[error("running_max is at least 1")]
    Running,
    /// The tenant gets no device time.
    #[error("device_share_max is above 0 and up to 1")]
    Share,
}

impl TenantLimits {
    /// Whether an invocation that takes no device time may have to wait because of these limits.
    #[must_use]
    pub fn may_hold_back(&self) -> bool {
        self.running_max < u32::MAX || self.device_share_max < 1.0
    }

    /// Checks that the tenant's invocations can run.
    ///
    /// # Errors
    /// The limit that prevents it.
    pub fn check(&self) -> Result<(), TenantLimitsError> {
        match self {
            Self { weight: 0, .. } => Err(TenantLimitsError::Weight),
            Self { running_max: 0, .. } => Err(TenantLimitsError::Running),
            Self { device_share_max, .. } if *device_share_max > 0.0 && *device_share_max <= 1.0 => Ok(()),
            Self { .. } => Err(TenantLimitsError::Share),
        }
    }
}

/// Number of tenants above which unused entries are reused; see [`KeyTable`].
const TENANTS_MAX: usize = 4_096;

/// Rounds that a tenant may be ahead of another, which leaves room for locality. A round is one
/// mean invocation on every slot.
const LAG_ROUNDS: f64 = 2.0;

/// Time for which a share of device time may be saved up.
const BURST_NS: f64 = 10e9;

/// Maximum number of tenants scanned for the last tenant that could start.
const SCAN_LEN_MAX: usize = 32;

/// All tenants with invocations that wait or run, or with models in memory.
#[derive(Debug)]
pub struct Tenants {
    table: KeyTable<TenantId, Tenant>,
    limits: BTreeMap<TenantId, TenantLimits>,
    limits_default: TenantLimits,
    /// Tenants with waiting invocations, by their clocks.
    waiting: BTreeSet<(u64, TenantKey)>,
    /// Virtual time: the device time, by weight, of the tenant that started last, as of that start.
    /// Expected times of running invocations are excluded. An estimate that is too high would delay
    /// all tenants that begin to wait during the run.
    time_ns: u64,
    charges_ns: RunningMean,
    slots: u64,
    now_ns: u64,
    turns: Turns,
}

/// Whether tenants that are ahead must let others start first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    Kept,
    /// The tenants whose turn it is cannot use the free capacity.
    Waived,
}

#[derive(Debug, Default)]
struct Tenant {
    limits: TenantLimits,
    /// Whether `limits` are set, or still the entry's initial values.
    has_limits: bool,
    waiting: u32,
    running: u32,
    charges: Charges,
    /// The tenant's models in memory, with the number of devices that hold each.
    held: BTreeMap<ModelKey, u32>,
    /// Device time divided by weight, with the expected time of the running invocations.
    clock_ns: u64,
    /// Device time of the invocations that have ended, divided by weight.
    used_ns: u64,
    /// Device time that the tenant may still use, as of `settled_at_ns`.
    tokens_ns: f64,
    settled_at_ns: u64,
}

impl Tenants {
    pub(crate) fn new(limits: BTreeMap<TenantId, TenantLimits>, limits_default: TenantLimits) -> Self {
        let (waiting, charges_ns) = Default::default();
        Self {
            table: KeyTable::new(TENANTS_MAX),
            limits,
            limits_default,
            waiting,
            time_ns: 0,
            charges_ns,
            slots: 0,
            now_ns: 0,
            turns: Turns::Kept,
        }
    }

    /// Whether an invocation of `tenant` may start now.
    #[must_use]
    pub fn may_start(&self, tenant: TenantKey) -> bool {
        let state = self.table.get(tenant.0);
        self.is_within_caps(state) && (self.turns == Turns::Waived || self.is_in_turn(state))
    }

    /// Whether another tenant with waiting invocations has had less device time, by weight.
    #[must_use]
    pub(crate) fn is_ahead(&self, tenant: TenantKey) -> bool {
        let clock_ns = self.table.get(tenant.0).clock_ns;
        self.waiting.first().is_some_and(|(first_ns, _)| *first_ns < clock_ns)
    }

    /// Whether `tenant` has had less device time than `other`, by weight.
    #[must_use]
    pub(crate) fn is_behind(&self, tenant: TenantKey, other: TenantKey) -> bool {
        self.table.get(tenant.0).clock_ns < self.table.get(other.0).clock_ns
    }

    /// Whether the limits of `tenant` prevent a start now, independent of turns.
    pub(crate) fn is_capped(&self, tenant: TenantKey) -> bool {
        !self.is_within_caps(self.table.get(tenant.0))
    }

    /// Whether the limits allow one more invocation in addition to `promised` invocations that take
    /// `promised_ns` of device time together.
    pub(crate) fn has_room(&self, tenant: TenantKey, promised: u32, promised_ns: u64) -> bool {
        let state = self.table.get(tenant.0);
        state.running.saturating_add(promised) < state.limits.running_max
            && self.tokens_ns(state).is_none_or(|tokens_ns| tokens_ns > promised_ns as f64)
    }

    /// Bytes that the tenant's models may still take.
    #[must_use]
    pub fn bytes_left(&self, tenant: TenantKey) -> u64 {
        let state = self.table.get(tenant.0);
        state.limits.resident_bytes_max.saturating_sub(state.charges.bytes())
    }

    /// Bytes by which the tenant's models would exceed the limit if a device held `demands`.
    pub(crate) fn over_bytes(
        &self,
        tenant: TenantKey,
        (key, device): (DeviceKey, &DeviceView),
        demands: &[OpenableModel],
    ) -> u64 {
        let state = self.table.get(tenant.0);
        if state.limits.resident_bytes_max == u64::MAX {
            return 0;
        }
        state.charges.added_bytes(key, device, demands).saturating_sub(self.bytes_left(tenant))
    }

    /// The tenant's memory limit, in bytes.
    #[must_use]
    pub fn bytes_max(&self, tenant: TenantKey) -> u64 {
        self.table.get(tenant.0).limits.resident_bytes_max
    }

    /// The tenant's limit of required copies, in bytes.
    #[must_use]
    pub fn required_bytes_max(&self, tenant: TenantKey) -> u64 {
        self.table.get(tenant.0).limits.required_bytes_max
    }

    /// The tenant's models that are in some device's memory or promised to be.
    pub fn held(&self, tenant: TenantKey) -> impl Iterator<Item = ModelKey> {
        self.table.get(tenant.0).held.keys().copied()
    }

    /// The tenant's id.
    #[must_use]
    pub fn id(&self, tenant: TenantKey) -> &TenantId {
        self.table.id(tenant.0)
    }

    /// Bytes that the tenant's models take or were promised.
    #[must_use]
    pub fn resident_bytes(&self, tenant: &TenantId) -> u64 {
        self.table.key(tenant).map_or(0, |key| self.table.get(key).charges.bytes())
    }

    /// Number of the tenant's running invocations.
    #[must_use]
    pub fn running(&self, tenant: &TenantId) -> u32 {
        self.table.key(tenant).map_or(0, |key| self.table.get(key).running)
    }

    /// Tenants with waiting invocations, the lowest virtual clock first.
    pub fn waiting(&self) -> impl Iterator<Item = TenantKey> {
        self.waiting.iter().map(|(_, tenant)| *tenant)
    }

    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.turns = Turns::Kept;
    }

    /// Lets tenants start that are ahead. Returns whether that changes anything.
    pub(crate) fn waive_turns(&mut self) -> bool {
        let ahead = self.waiting.last().is_some_and(|(_, last)| !self.is_in_turn(self.table.get(last.0)));
        let news = ahead && self.turns == Turns::Kept;
        self.turns = Turns::Waived;
        news
    }

    pub(crate) fn retain(&mut self, tenant: &TenantId) -> TenantKey {
        let key = self.table.retain(tenant);
        let state = self.table.get_mut(key);
        if !state.has_limits {
            state.limits = self.limits.get(tenant).unwrap_or(&self.limits_default).clone();
            state.limits.weight = state.limits.weight.max(1);
            state.has_limits = true;
        }
        TenantKey(key)
    }

    pub(crate) fn release_id(&mut self, tenant: &TenantId) {
        if let Some(key) = self.table.key(tenant) {
            self.table.release(key);
        }
    }

    pub(crate) fn release(&mut self, tenant: TenantKey) {
        self.table.release(tenant.0);
    }

    /// Sets the number of slots of all devices together.
    pub(crate) fn set_slots(&mut self, slots: u64) {
        self.slots = slots;
    }

    pub(crate) fn begin_waiting(&mut self, tenant: TenantKey) {
        // No later than that of a tenant that waits: tenants that never use the same device have clocks
        // that lie far apart.
        let first_ns = self.first_in_caps().map_or(u64::MAX, |(first_ns, _)| first_ns);
        let time_ns = self.time_ns.min(first_ns);
        let state = self.table.get_mut(tenant.0);
        if state.waiting == 0 {
            if state.running == 0 {
                state.clock_ns = state.used_ns;
            }
            // An invocation that runs all the time, but does not use the device, saves nothing either.
            let idle_ns = time_ns.saturating_sub(state.clock_ns);
            state.used_ns = state.used_ns.saturating_add(idle_ns);
            state.clock_ns = state.clock_ns.saturating_add(idle_ns);
            self.waiting.insert((state.clock_ns, tenant));
        }
        state.waiting += 1;
    }

    pub(crate) fn end_waiting(&mut self, tenant: TenantKey) {
        let state = self.table.get_mut(tenant.0);
        state.waiting = state.waiting.saturating_sub(1);
        if state.waiting == 0 {
            self.waiting.remove(&(state.clock_ns, tenant));
        }
    }

    /// Starts an invocation that is expected to take `device_time_ns`.
    pub(crate) fn start(&mut self, tenant: TenantKey, device_time_ns: u64) {
        self.charges_ns.add(device_time_ns);
        let state = self.table.get_mut(tenant.0);
        state.running += 1;
        self.time_ns = self.time_ns.max(state.used_ns);
        self.charge(tenant, device_time_ns as f64);
    }

    /// Ends an invocation that took `taken_ns` instead of `expected_ns`.
    pub(crate) fn finish(&mut self, tenant: TenantKey, expected_ns: u64, taken_ns: u64) {
        self.charge(tenant, taken_ns as f64 - expected_ns as f64);
        let state = self.table.get_mut(tenant.0);
        state.running = state.running.saturating_sub(1);
        state.used_ns = state.used_ns.saturating_add(taken_ns / u64::from(state.limits.weight.max(1)));
    }

    /// Charges a model that a device holds to its tenant.
    pub(crate) fn holds(
        &mut self,
        tenant: &TenantId,
        (device, model): (DeviceKey, ModelKey),
        (bytes, parts): (u64, &ModelParts),
    ) {
        let Some(key) = self.table.key(tenant) else { return };
        let state = self.table.get_mut(key);
        state.charges.add(device, bytes, parts);
        *state.held.entry(model).or_default() += 1;
    }

    /// Removes the charge of a model that a device no longer holds.
    pub(crate) fn lets_go(
        &mut self,
        tenant: &TenantId,
        (device, model): (DeviceKey, ModelKey),
        (bytes, parts): (u64, &ModelParts),
    ) {
        let Some(key) = self.table.key(tenant) else { return };
        let state = self.table.get_mut(key);
        state.charges.remove(device, bytes, parts);
        if let Some(count) = state.held.get_mut(&model) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&model);
            }
        }
    }

    /// When a waiting tenant that used up its device time has some again.
    pub(crate) fn wake_at_ns(&self) -> Option<u64> {
        let short = |tenant: &TenantKey| {
            let state = self.table.get(tenant.0);
            let missing_ns = -self.tokens_ns(state)?;
            let rate = state.limits.device_share_max * self.slots as f64;
            (missing_ns >= 0.0 && rate > 0.0)
                .then(|| self.now_ns.saturating_add(round_ns(missing_ns / rate)).saturating_add(1))
        };
        self.waiting().take(SCAN_LEN_MAX).filter_map(|tenant| short(&tenant)).min()
    }

    fn charge(&mut self, tenant: TenantKey, device_time_ns: f64) {
        let state = self.table.get(tenant.0);
        let tokens_ns = self.tokens_ns(state).unwrap_or(0.0) - device_time_ns;
        let state = self.table.get_mut(tenant.0);
        let before = state.clock_ns;
        let weighted_ns = device_time_ns / f64::from(state.limits.weight);
        state.clock_ns = if weighted_ns < 0.0 {
            before.saturating_sub(round_ns(-weighted_ns))
        } else {
            before.saturating_add(round_ns(weighted_ns))
        };
        state.tokens_ns = tokens_ns;
        state.settled_at_ns = self.now_ns;
        if state.waiting > 0 {
            self.waiting.remove(&(before, tenant));
            self.waiting.insert((state.clock_ns, tenant));
        }
    }

    /// Device time that a tenant may use now; `None` without a limit.
    fn tokens_ns(&self, state: &Tenant) -> Option<f64> {
        let share = state.limits.device_share_max;
        if share >= 1.0 {
            return None;
        }
        let rate = share.max(0.0) * self.slots as f64;
        let earned_ns = self.now_ns.saturating_sub(state.settled_at_ns) as f64 * rate;
        Some((state.tokens_ns + earned_ns).min(BURST_NS * rate))
    }

    fn is_within_caps(&self, state: &Tenant) -> bool {
        state.running < state.limits.running_max
            && self.tokens_ns(state).is_none_or(|tokens_ns| tokens_ns > 0.0)
    }

    /// The tenant with the lowest clock that waits and could start, with its clock.
    fn first_in_caps(&self) -> Option<(u64, TenantKey)> {
        let mut waiting = self.waiting.iter().copied().take(SCAN_LEN_MAX);
        waiting.find(|(_, other)| self.is_within_caps(self.table.get(other.0)))
    }

    fn is_in_turn(&self, state: &Tenant) -> bool {
        let Some((behind_ns, _)) = self.first_in_caps() else { return true };
        let lag_ns = LAG_ROUNDS * self.charges_ns.mean * self.slots as f64 / f64::from(state.limits.weight);
        state.clock_ns <= behind_ns.saturating_add(round_ns(lag_ns))
    }
}

#[cfg(test)]
mod tests;
