//! Quotas of tenants on this node: the rate of requests, the requests in progress, and shares of
//! the node's instances and memory.
//!
//! The rate is limited by the generic cell rate algorithm (`rate.rs`): a tenant may send a burst,
//! which refills at its rate. Clients without a token, who call public functions, may use half of both quotas, so
//! that they cannot shut the tenant's own clients out. `stored.rs` has the quotas of stored data, and
//! `usage.rs` reports the use of all quotas.

mod rate;
pub(crate) use rate::RateLimit;
use rate::RateMeter;
mod stored;
mod usage;

use crate::error::ApiError;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::time::Instant;
use weir_telemetry::{Metrics, QuotaKind};
use weir_types::{ErrorCode, TenantId};

/// Longest `retry-after` of a request over its quota.
const RETRY_AFTER_S_MAX: u64 = 60;

/// Quotas of a tenant on each node. An omitted quota is that of `tenant_default`, and else the
/// default of the node: none on a node without a token file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantQuotas {
    /// Requests per second, on average. Default: 5 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u32>,
    /// Requests at once, before the average counts. Default: twice `requests_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_burst: Option<u32>,
    /// Requests in progress, until the client has taken the answer. Default: 2 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_running_max: Option<u32>,
    /// Live instances of functions, idle ones included. Default: half of those of all tenants
    /// (`sandbox.instances_max`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_max: Option<u32>,
    /// Linear memory of the instances of functions. Default: half of that of all tenants
    /// (`sandbox.guest_memory_bytes_max`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_memory_bytes_max: Option<u64>,
    /// Memory of bodies and tensors of requests in progress. Default: half of that of all tenants
    /// (`gateway.arena_bytes_max`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_bytes_max: Option<u64>,
    /// Names of functions, models, kernel graphs and workflows together. Default: 10 000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names_max: Option<u32>,
    /// Bytes of all versions of the tenant's components and models. Default: 256 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes_max: Option<u64>,
}

/// Quotas of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Quotas by tenant.
    pub tenants: BTreeMap<TenantId, TenantQuotas>,
    /// Quotas of other tenants, and of those without a value.
    pub tenant_default: TenantQuotas,
    /// Whether the node may have several tenants: it has a token file.
    pub is_shared: bool,
}

/// Invalid quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is at least 1")]
pub struct QuotaError(&'static str);

impl TenantQuotas {
    /// Checks the quotas.
    ///
    /// # Errors
    /// If a quota would let no request through.
    pub fn check(&self) -> Result<(), QuotaError> {
        let quotas = [
            ("requests_per_s", self.requests_per_s.map(u64::from)),
            ("requests_burst", self.requests_burst.map(u64::from)),
            ("requests_running_max", self.requests_running_max.map(u64::from)),
            ("instances_max", self.instances_max.map(u64::from)),
            ("guest_memory_bytes_max", self.guest_memory_bytes_max),
            ("arena_bytes_max", self.arena_bytes_max),
        ];
        let zero = quotas.into_iter().find(|(_, quota)| *quota == Some(0));
        zero.map_or(Ok(()), |(name, _)| Err(QuotaError(name)))
    }
}

/// The values of a tenant's quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaValues {
    requests_per_s: u32,
    requests_burst: u32,
    requests_running_max: u32,
    pub(crate) names_max: u32,
    pub(crate) stored_bytes_max: u64,
}

impl QuotaConfig {
    /// The live instances that functions of `tenant` may have, if those of all tenants may have
    /// `node_max`.
    #[must_use]
    pub fn instances_max(&self, tenant: &TenantId, node_max: u32) -> u32 {
        let given = self.quota(tenant, |quotas| quotas.instances_max);
        given.unwrap_or(if self.is_shared { node_max.div_ceil(2) } else { node_max })
    }

    /// The memory that the instances of functions of `tenant` may have, if those of all tenants may
    /// have `node_bytes_max`.
    #[must_use]
    pub fn guest_memory_bytes_max(&self, tenant: &TenantId, node_bytes_max: u64) -> u64 {
        let given = self.quota(tenant, |quotas| quotas.guest_memory_bytes_max);
        given.unwrap_or(if self.is_shared { node_bytes_max / 2 } else { node_bytes_max })
    }

    /// The memory that bodies and tensors of `tenant` may have, if those of all tenants may have
    /// `node_bytes_max`.
    #[must_use]
    pub fn arena_bytes_max(&self, tenant: &TenantId, node_bytes_max: u64) -> u64 {
        let given = self.quota(tenant, |quotas| quotas.arena_bytes_max);
        given.unwrap_or(if self.is_shared { node_bytes_max / 2 } else { node_bytes_max })
    }

    /// A quota that is set for `tenant` or for tenants without a value.
    fn quota<T>(&self, tenant: &TenantId, quota: impl Fn(&TenantQuotas) -> Option<T>) -> Option<T> {
        self.tenants.get(tenant).and_then(&quota).or_else(|| quota(&self.tenant_default))
    }

    /// The quotas of `tenant`.
    pub(crate) fn values(&self, tenant: &TenantId) -> QuotaValues {
        let own = self.tenants.get(tenant).unwrap_or(&self.tenant_default);
        let default = &self.tenant_default;
        let pick = |own: Option<u32>, default: Option<u32>, shared: u32| {
            own.or(default).unwrap_or(if self.is_shared { shared } else { u32::MAX })
        };
        let requests_per_s = pick(own.requests_per_s, default.requests_per_s, 5_000);
        let stored_bytes_max = own.stored_bytes_max.or(default.stored_bytes_max);
        QuotaValues {
            requests_per_s,
            requests_burst: pick(
                own.requests_burst,
                default.requests_burst,
                requests_per_s.saturating_mul(2),
            ),
            requests_running_max: pick(own.requests_running_max, default.requests_running_max, 2_000),
            names_max: pick(own.names_max, default.names_max, 10_000),
            stored_bytes_max: stored_bytes_max.unwrap_or(if self.is_shared { 256 << 30 } else { u64::MAX }),
        }
    }
}

/// The use of the quotas, by tenant.
pub(crate) struct Quotas {
    config: QuotaConfig,
    metrics: Arc<Metrics>,
    /// The node's configuration bounds the number of tenants.
    tenants: RwLock<HashMap<TenantId, Arc<TenantUse>>>,
    started: Instant,
}

/// The use of a tenant's quotas.
struct TenantUse {
    all: ClientUse,
    /// Clients of public functions.
    anonymous: ClientUse,
    meter: RateMeter,
}

/// The use of quotas by some clients of a tenant.
struct ClientUse {
    rate: RateLimit,
    running: AtomicU32,
    running_max: u32,
}

/// A request in progress, until dropped.
pub(crate) struct RequestPermit {
    tenant: Arc<TenantUse>,
    is_anonymous: bool,
}

impl Quotas {
    pub(crate) fn new(config: QuotaConfig, metrics: Arc<Metrics>) -> Self {
        Self { config, metrics, tenants: RwLock::default(), started: Instant::now() }
    }

    /// The quotas of `tenant`.
    pub(crate) fn values(&self, tenant: &TenantId) -> QuotaValues {
        self.config.values(tenant)
    }

    /// Counts a request of a client of `tenant`, or rejects it. `is_anonymous`: whether the client
    /// has no token.
    pub(crate) fn admit(&self, tenant: &TenantId, is_anonymous: bool) -> Result<RequestPermit, ApiError> {
        let usage = self.usage(tenant);
        let permit = usage.clone().enter(is_anonymous).ok_or_else(|| {
            let max = self.values(tenant).requests_running_max;
            let text = format!(
                "{max} requests of this tenant are in progress on this node (requests_running_max of [node.tenants]); clients without a token may have half"
            );
            self.refuse(tenant, QuotaKind::Running, text, 1)
        })?;
        self.admit_rate(tenant, &usage, is_anonymous)?;
        Ok(permit)
    }

    /// Counts a request for a message or an event, or rejects it.
    pub(crate) fn admit_event(&self, tenant: &TenantId) -> Result<(), ApiError> {
        self.admit_rate(tenant, &self.usage(tenant), false)
    }

    fn admit_rate(&self, tenant: &TenantId, usage: &TenantUse, is_anonymous: bool) -> Result<(), ApiError> {
        let now_ns = self.now_ns();
        let passed = match is_anonymous {
            true => usage.anonymous.rate.take(now_ns).and_then(|()| usage.all.rate.take(now_ns)),
            false => usage.all.rate.take(now_ns),
        };
        if passed.is_ok() {
            usage.meter.count(now_ns);
        }
        passed.map_err(|wait| {
            let rate = self.values(tenant).requests_per_s;
            let text = format!(
                "this tenant sends more than {rate} requests per second to this node (requests_per_s of [node.tenants]); clients without a token may send half"
            );
            let after_s = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
            self.refuse(tenant, QuotaKind::Rate, text, after_s.clamp(1, RETRY_AFTER_S_MAX))
        })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn usage(&self, tenant: &TenantId) -> Arc<TenantUse> {
        if let Some(usage) = self.tenants.read().get(tenant) {
            return usage.clone();
        }
        let usage = || Arc::new(TenantUse::new(&self.values(tenant)));
        self.tenants.write().entry(tenant.clone()).or_insert_with(usage).clone()
    }

    fn refuse(&self, tenant: &TenantId, kind: QuotaKind, text: String, after_s: u64) -> ApiError {
        self.metrics.access.over_quota(tenant, kind);
        ApiError { retry_after_s: Some(after_s), ..ApiError::new(ErrorCode::RateLimited, text) }
    }
}

impl TenantUse {
    fn new(values: &QuotaValues) -> Self {
        let client = |share: u32| {
            let part = |quota: u32| if quota == u32::MAX { quota } else { quota.div_ceil(share) };
            ClientUse {
                rate: RateLimit::new(part(values.requests_per_s), part(values.requests_burst)),
                running: AtomicU32::new(0),
                running_max: part(values.requests_running_max),
            }
        };
        Self { all: client(1), anonymous: client(2), meter: RateMeter::default() }
    }

    /// Counts a request in progress, unless there are too many.
    fn enter(self: Arc<Self>, is_anonymous: bool) -> Option<RequestPermit> {
        if is_anonymous && !self.anonymous.enter() {
            return None;
        }
        if !self.all.enter() {
            if is_anonymous {
                self.anonymous.leave();
            }
            return None;
        }
        Some(RequestPermit { tenant: self, is_anonymous })
    }
}

impl ClientUse {
    fn enter(&self) -> bool {
        let more = |running: u32| (running < self.running_max).then(|| running + 1);
        self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn leave(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.tenant.all.leave();
        if self.is_anonymous {
            self.tenant.anonymous.leave();
        }
    }
}

impl std::fmt::Debug for RequestPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestPermit").field("is_anonymous", &self.is_anonymous).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const S: u64 = 1_000_000_000;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn quotas(values: TenantQuotas) -> Quotas {
        let tenants = BTreeMap::from([(tenant("acme"), values)]);
        Quotas::new(QuotaConfig { tenants, ..QuotaConfig::default() }, Metrics::new())
    }

    #[test]
    fn burst_passes_and_refills_at_the_rate() {
        let limit = RateLimit::new(10, 3);
        let passed = |now_ns: u64| limit.take(now_ns).is_ok();
        assert_eq!([0, 0, 0, 0].map(passed), [true, true, true, false]);
        assert_eq!(limit.take(0), Err(Duration::from_millis(100)), "it says when the next one passes");
        assert!(!passed(S / 10 - 1) && passed(S / 10) && !passed(S / 10));
        assert_eq!([5 * S; 4].map(passed), [true, true, true, false], "no more than a burst is saved up");
        assert!((0..1_000).all(|_| RateLimit::new(u32::MAX, 1).take(0).is_ok()));
    }

    proptest! {
        /// In any time, no more requests pass than the burst and the rate allow.
        #[test]
        fn rate_holds_over_any_interval(
            per_s in 1_u32..50, burst in 1_u32..20, gaps_ms in prop::collection::vec(0_u64..200, 1..200),
        ) {
            let limit = RateLimit::new(per_s, burst);
            let mut now_ns = 0;
            let mut passed = Vec::new();
            for gap_ms in gaps_ms {
                now_ns += gap_ms * 1_000_000;
                if limit.take(now_ns).is_ok() {
                    passed.push(now_ns);
                }
            }
            for (at, from) in passed.iter().enumerate() {
                let allowed = u64::from(burst) + (now_ns - from).div_ceil(limit.interval_ns);
                prop_assert!((passed.len() - at) as u64 <= allowed);
            }
            // The first request always passes.
            prop_assert!(!passed.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_have_their_own_rates() {
        let quotas = quotas(TenantQuotas {
            requests_per_s: Some(1),
            requests_burst: Some(2),
            ..TenantQuotas::default()
        });
        let acme = &tenant("acme");
        let other = &tenant("other");
        assert!(quotas.admit(acme, false).is_ok() && quotas.admit(acme, false).is_ok());
        let refused = quotas.admit(acme, false).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_s), (ErrorCode::RateLimited, Some(1)));
        assert!((0..1_000).all(|_| quotas.admit(other, false).is_ok()), "the other tenant has its own rate");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(quotas.admit(acme, false).is_ok() && quotas.admit(acme, false).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_progress_are_limited_until_they_end() {
        let quotas = quotas(TenantQuotas { requests_running_max: Some(4), ..TenantQuotas::default() });
        let acme = &tenant("acme");
        let anonymous = [quotas.admit(acme, true).unwrap(), quotas.admit(acme, true).unwrap()];
        assert!(quotas.admit(acme, true).is_err(), "clients without a token have half");
        let own = [quotas.admit(acme, false).unwrap(), quotas.admit(acme, false).unwrap()];
        assert_eq!(quotas.admit(acme, false).unwrap_err().code, ErrorCode::RateLimited);
        drop(anonymous);
        assert!(quotas.admit(acme, true).is_ok());
        drop(own);
        let usage = quotas.usage(acme);
        assert_eq!(
            (usage.all.running.load(Ordering::Relaxed), usage.anonymous.running.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    #[test]
    fn shares_are_half_on_a_shared_node_and_can_be_set() {
        let few =
            TenantQuotas { instances_max: Some(3), arena_bytes_max: Some(4), ..TenantQuotas::default() };
        let config = |is_shared, tenant_default| QuotaConfig {
            tenants: [(tenant("acme"), few.clone())].into(),
            tenant_default,
            is_shared,
        };
        let instances = |config: &QuotaConfig, name| config.instances_max(&tenant(name), 9);
        let shared = config(true, TenantQuotas::default());
        assert_eq!((instances(&shared, "acme"), instances(&shared, "other")), (3, 5));
        let default = config(true, TenantQuotas { instances_max: Some(7), ..TenantQuotas::default() });
        assert_eq!((instances(&default, "acme"), instances(&default, "other")), (3, 7));
        let bytes = |config: &QuotaConfig, name| config.arena_bytes_max(&tenant(name), 64);
        assert_eq!((bytes(&shared, "acme"), bytes(&shared, "other")), (4, 32));
        let alone = config(false, TenantQuotas::default());
        assert_eq!((instances(&alone, "other"), bytes(&alone, "other")), (9, 64));
    }

    #[test]
    fn omitted_quotas_are_those_of_the_default_and_the_node() {
        let acme = TenantQuotas { requests_per_s: Some(7), ..TenantQuotas::default() };
        let default = TenantQuotas { names_max: Some(3), ..TenantQuotas::default() };
        let config = |is_shared| QuotaConfig {
            tenants: [(tenant("acme"), acme.clone())].into(),
            tenant_default: default.clone(),
            is_shared,
        };
        let values = config(true).values(&tenant("acme"));
        assert_eq!((values.requests_per_s, values.requests_burst, values.names_max), (7, 14, 3));
        let other = config(true).values(&tenant("other"));
        assert_eq!((other.requests_per_s, other.requests_running_max), (5_000, 2_000));
        let alone = config(false).values(&tenant("other"));
        assert_eq!((alone.requests_per_s, alone.names_max, alone.stored_bytes_max), (u32::MAX, 3, u64::MAX));
        let zero = TenantQuotas { requests_burst: Some(0), ..TenantQuotas::default() };
        assert!(TenantQuotas { instances_max: Some(0), ..TenantQuotas::default() }.check().is_err());
        assert!(zero.check().is_err() && acme.check().is_ok());
    }
}
