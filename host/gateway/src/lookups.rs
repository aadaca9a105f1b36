//! Lookups of unknown names in the datastore: another node of the cluster may have deployed the name
//! a moment ago, and its event has not arrived yet.
//!
//! Clients choose the names, so lookups are limited: few at once on the node, few per second of each
//! tenant, and each for a short time. Beyond the rate, the name counts as missing. If the stores of
//! the cluster do not answer in time, the call is answered 503, because the name may exist.

use crate::NodeState;
use crate::error::ApiError;
use crate::quotas::RateLimit;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use weir_cluster::ForwardGrant;
use weir_control::workflows::DeployedWorkflow;
use weir_types::{ErrorCode, ModelRef, Name, TenantId};

/// Lookups at once on this node.
const AT_ONCE_MAX: usize = 8;
/// Longest time of a lookup, including the wait for its turn.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Lookups per second of a tenant, on average.
const TENANT_PER_S: u32 = 10;
/// Lookups of a tenant before the average counts.
const TENANT_BURST: u32 = 50;
/// Lookups of one workflow's unknown targets per request.
const TARGETS_MAX: usize = 16;

/// The limits on lookups of unknown names.
pub(crate) struct Lookups {
    turns: Semaphore,
    /// The rate of each tenant that has looked up a name. The node's configuration bounds the
    /// number of tenants.
    tenants: Mutex<HashMap<TenantId, RateLimit>>,
    /// The rate of all clients without a token together, who may name any tenant.
    strangers: RateLimit,
    started: Instant,
}

/// The client that causes a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupFor {
    /// A client of the tenant.
    Tenant,
    /// A client without a token.
    Stranger,
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(AT_ONCE_MAX),
            tenants: Mutex::default(),
            strangers: RateLimit::new(TENANT_PER_S, TENANT_BURST),
            started: Instant::now(),
        }
    }
}

impl Lookups {
    /// Counts a lookup. Returns whether it is within the rate.
    fn admit(&self, tenant: &TenantId, client: LookupFor) -> bool {
        let now_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if client == LookupFor::Stranger {
            return self.strangers.take(now_ns).is_ok();
        }
        let mut tenants = self.tenants.lock();
        if let Some(rate) = tenants.get(tenant) {
            return rate.take(now_ns).is_ok();
        }
        let rate = RateLimit::new(TENANT_PER_S, TENANT_BURST);
        let is_within = rate.take(now_ns).is_ok();
        tenants.insert(tenant.clone(), rate);
        is_within
    }
}

impl NodeState {
    /// Reads everything that the tenant has deployed under `name` from the datastore of the cluster.
    /// Returns whether the datastore has the name; `false` beyond the rate, and on a node without a
    /// cluster, which knows all names.
    pub(crate) async fn look_up(
        &self,
        tenant: &TenantId,
        name: &Name,
        client: LookupFor,
    ) -> Result<bool, ApiError> {
        if self.cluster.is_none() || !self.permits.lookups.admit(tenant, client) {
            return Ok(false);
        }
        let reading = async {
            let Ok(_turn) = self.permits.lookups.turns.acquire().await else { return Ok(false) };
            let is_found = self.read_name(tenant, name).await?;
            // The event of a deletion may have arrived between the read and its effect.
            Ok(is_found && self.read_name(tenant, name).await?)
        };
        timeout(TIME_MAX, reading).await.unwrap_or_else(|_| {
            let text = format!(
                "this node does not know {name}, and the stores of the cluster did not answer in time whether another node has just deployed it; try again"
            );
            Err(ApiError::new(ErrorCode::Unavailable, text))
        })
    }

    /// Reads a name from the datastore. Returns whether the datastore has it.
    async fn read_name(&self, tenant: &TenantId, name: &Name) -> Result<bool, ApiError> {
        let function = async { self.registry.refresh(tenant, name).await.map_err(ApiError::from) };
        let workflow = async { self.workflows.refresh(tenant, name).await.map_err(ApiError::from) };
        let model = async { self.models.refresh(tenant, name).await.map_err(ApiError::from) };
        let found: (bool, bool, bool) = tokio::try_join!(function, workflow, model)?;
        Ok(found.0 || found.1 || found.2)
    }

    /// Whether this node knows the versions of models that a forwarded call uses. Reads unknown ones
    /// from the datastore: the event of a push may arrive after the first call.
    pub(crate) async fn knows_chosen(&self, grant: &ForwardGrant) -> bool {
        let is_known = |name, version| self.models.get(&grant.tenant, name, Some(version)).is_ok();
        for (ModelRef { name, .. }, version) in &grant.chosen {
            if !is_known(name, *version) {
                // Without the datastore, the call runs where the version is known.
                let _ = self.models.refresh(&grant.tenant, name).await;
                if !is_known(name, *version) {
                    return false;
                }
            }
        }
        true
    }

    /// Looks up targets of a workflow that this node does not know.
    pub(crate) async fn look_up_targets(&self, workflow: &DeployedWorkflow) -> Result<(), ApiError> {
        let tenant = &workflow.id.tenant;
        for _ in 0..TARGETS_MAX {
            let Some(name) = self.dispatch.catalog.unknown_target(workflow) else { break };
            if !self.look_up(tenant, &name, LookupFor::Tenant).await? {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_names_of_a_tenant_are_looked_up_at_a_limited_rate() {
        let lookups = Lookups::default();
        let admitted = |tenant: &TenantId, client: LookupFor| {
            (0..1_000).filter(|_| lookups.admit(tenant, client)).count()
        };
        let acme = tenant("acme");
        assert_eq!(admitted(&acme, LookupFor::Tenant), TENANT_BURST as usize);
        assert_eq!(admitted(&tenant("beta"), LookupFor::Tenant), TENANT_BURST as usize, "rates are separate");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(&acme, LookupFor::Tenant), TENANT_PER_S as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_share_one_rate_and_leave_no_trace() {
        let lookups = Lookups::default();
        let admitted =
            (0..1_000).filter(|number| lookups.admit(&tenant(&format!("t{number}")), LookupFor::Stranger));
        assert_eq!(admitted.count(), TENANT_BURST as usize);
        assert!(lookups.tenants.lock().is_empty());
        assert!(lookups.admit(&tenant("t1"), LookupFor::Tenant), "the tenant's own clients have their rate");
    }
}
