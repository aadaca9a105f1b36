//! The use of quotas by tenants.

use crate::TenantId;
use serde::{Deserialize, Serialize};

/// The use of quotas by tenants on the queried node. Response of `GET /v1/tenants`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantPage {
    /// With the operator's token, all tenants of the node by name; else the tenant of the token.
    pub tenants: Vec<TenantUsage>,
}

/// The use of quotas by one tenant. Part of [`TenantPage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// The tenant.
    pub tenant: TenantId,
    /// Its quotas.
    pub quotas: Vec<QuotaUsage>,
}

/// A quota of a tenant and its use. Part of [`TenantUsage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUsage {
    /// Setting of the quota: a key of `[node.tenants.NAME]`, or else the name of another setting of
    /// the node, such as `objects.tenant_len_max`.
    pub setting: String,
    /// Where the use counts.
    pub scope: QuotaScope,
    /// Current use; `None` if the node does not count it for this tenant, because the tenant may use
    /// all that the node has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// The quota; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
}

/// Where the use of a quota counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaScope {
    /// On each node separately.
    Node,
    /// On all nodes of the cluster together.
    Cluster,
}
