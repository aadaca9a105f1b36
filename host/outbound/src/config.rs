//! Configuration of outbound requests.

use crate::Rule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::TenantId;

/// Outbound requests of guests, and callbacks: the destinations that they may reach, among the
/// hosts that a manifest or `async.callback_hosts` grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboundConfig {
    /// Destinations that are open although their addresses are refused by default: host names,
    /// `*.domain`, addresses and ranges (CIDR), each with an optional port.
    pub allow: Vec<Rule>,
    /// Destinations that are refused; they take precedence over `allow`.
    pub deny: Vec<Rule>,
    /// Time limit of a lookup of a host name.
    pub resolve_timeout_ms: u64,
    /// Lookups of host names at once, for one tenant. Further lookups wait, within their time
    /// limit.
    pub tenant_resolves_max: u32,
    /// Destinations by tenant, in addition to the rules for all tenants.
    pub tenants: BTreeMap<TenantId, TenantOutbound>,
    /// Destinations of tenants without an entry in `tenants`.
    pub tenant_default: TenantOutbound,
}

impl Default for OutboundConfig {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            resolve_timeout_ms: 5_000,
            tenant_resolves_max: 16,
            tenants: BTreeMap::new(),
            tenant_default: TenantOutbound::default(),
        }
    }
}

impl OutboundConfig {
    /// The rules of a tenant.
    pub(crate) fn tenant(&self, tenant: &TenantId) -> &TenantOutbound {
        self.tenants.get(tenant).unwrap_or(&self.tenant_default)
    }
}

/// Destinations of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantOutbound {
    /// The only destinations that the tenant may reach, whatever its manifests grant. None: no
    /// ceiling; an empty list: the tenant sends no requests.
    pub only: Option<Vec<Rule>>,
    /// Destinations that are open for the tenant, as in `outbound.allow`.
    pub allow: Vec<Rule>,
    /// Destinations that are refused for the tenant, as in `outbound.deny`.
    pub deny: Vec<Rule>,
}
