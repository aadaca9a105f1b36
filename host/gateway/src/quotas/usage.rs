//! The use of all quotas of a tenant, for `GET /v1/tenants`.

use super::{ClientUse, Quotas};
use crate::NodeState;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use weir_types::TenantId;
use weir_types::api::{QuotaScope, QuotaUsage, TenantUsage};

impl Quotas {
    /// Tenants with own quotas, and tenants that have sent requests.
    pub(super) fn tenants(&self) -> BTreeSet<TenantId> {
        self.config.tenants.keys().chain(self.tenants.read().keys()).cloned().collect()
    }

    /// The use of the quotas of requests.
    fn requests(&self, tenant: &TenantId) -> [QuotaUsage; 3] {
        let now_ns = self.now_ns();
        let values = self.values(tenant);
        let usage = self.usage(tenant);
        let ClientUse { rate, running, .. } = &usage.all;
        let quota = |setting, used: u64, max: u32| node(setting, (Some(used), limit_u32(max)));
        [
            quota("requests_per_s", usage.meter.per_s(now_ns), values.requests_per_s),
            quota("requests_burst", rate.burst_used(now_ns), values.requests_burst),
            quota(
                "requests_running_max",
                running.load(Ordering::Relaxed).into(),
                values.requests_running_max,
            ),
        ]
    }
}

impl NodeState {
    /// All tenants of the node: with a token, with own quotas, or with requests since the start.
    pub(crate) fn tenants(&self) -> BTreeSet<TenantId> {
        let mut all = self.permits.quotas.tenants();
        all.extend(self.access.tenants());
        all
    }

    /// The use of the quotas of a tenant.
    pub(crate) fn tenant_usage(&self, tenant: &TenantId) -> TenantUsage {
        let is_alone = self.access.serves_only(tenant);
        let mut quotas = Vec::from(self.permits.quotas.requests(tenant));
        quotas.extend(self.memory_usage(tenant, is_alone));
        quotas.extend(self.stored_usage(tenant));
        TenantUsage { tenant: tenant.clone(), quotas }
    }

    /// Instances, memory, uploads and WebSockets.
    fn memory_usage(&self, tenant: &TenantId, is_alone: bool) -> Vec<QuotaUsage> {
        let slots = &self.dispatch.slots;
        let instances = slots.usage(tenant, is_alone);
        let arena = self.arena.tenant_usage(tenant, is_alone);
        vec![
            node("instances_max", (instances.0, Some(instances.1))),
            node("guest_memory_bytes_max", counted(slots.memory(tenant))),
            node("arena_bytes_max", (arena.0, Some(arena.1))),
            node("gateway.tenant_uploads_max", counted(self.permits.uploads.usage(tenant))),
            node("sandbox.websockets.tenant_open_max", counted(self.permits.websockets.usage(tenant))),
            node("gateway.answers.tenant_bytes_max", counted(self.permits.answers.usage(tenant))),
        ]
    }

    /// Deployed and stored items.
    fn stored_usage(&self, tenant: &TenantId) -> Vec<QuotaUsage> {
        let values = self.permits.quotas.values(tenant);
        let invocations = self.invocations.usage(tenant);
        let config = self.invocations.config();
        let [objects, object_bytes] = self.objects.usage(tenant);
        let [triggers, streams] = self.triggers.usage(tenant);
        let stored_max = Some(values.stored_bytes_max).filter(|max| *max != u64::MAX);
        vec![
            cluster("names_max", (Some(self.names(tenant) as u64), limit_u32(values.names_max))),
            cluster("stored_bytes_max", (Some(self.stored_bytes(tenant)), stored_max)),
            cluster("objects.tenant_len_max", counted(objects)),
            cluster("objects.tenant_bytes_max", counted(object_bytes)),
            node(
                "async.tenant_running_max",
                counted((invocations.running, config.tenant_running_max.into())),
            ),
            cluster(
                "async.tenant_queue_len_max",
                counted((invocations.unfinished, config.tenant_queue_len_max.into())),
            ),
            cluster("async.tenant_kept_max", counted((invocations.kept, config.tenant_kept_max.into()))),
            cluster("async.tenant_bytes_max", counted((invocations.bytes, config.tenant_bytes_max))),
            cluster("async.triggers.tenant_triggers_max", counted(triggers)),
            cluster("async.triggers.tenant_streams_max", counted(streams)),
        ]
    }
}

/// Use and limit of a quota.
type UsedAndMax = (Option<u64>, Option<u64>);

fn node(setting: &str, (used, max): UsedAndMax) -> QuotaUsage {
    QuotaUsage { setting: setting.to_owned(), scope: QuotaScope::Node, used, max }
}

fn cluster(setting: &str, usage: UsedAndMax) -> QuotaUsage {
    QuotaUsage { scope: QuotaScope::Cluster, ..node(setting, usage) }
}

fn counted((used, max): (u64, u64)) -> UsedAndMax {
    (Some(used), Some(max))
}

/// `None` for a quota without a limit.
fn limit_u32(max: u32) -> Option<u64> {
    (max != u32::MAX).then(|| max.into())
}
