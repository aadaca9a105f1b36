//! Memory of answers that clients have not taken yet, counted and limited per connection, tenant
//! and node.
//!
//! An answer that is in memory as a whole counts from its head to its last byte. A streamed answer
//! counts by the pieces that the connection has taken from the function. Calls are refused before
//! they run while a limit is reached, and a whole answer is refused if it does not fit. An answer
//! always fits if no other answer counts for the limit, so that an answer above the limit can be
//! sent at all.

use crate::AnswersConfig;
use crate::quotas::RequestPermit;
use axum::response::Response;
use http_body::Body as _;
use parking_lot::RwLock;
use prometheus_client::metrics::gauge::Gauge;
use std::collections::HashMap;
use std::sync::Arc;
use weir_call::Fault;
use weir_call::body::WholeBody;
use weir_telemetry::{AnswerScope, CutCause, Metrics};
use weir_types::{ErrorCode, TenantId};

/// Counters and limits of the bytes of answers.
pub(crate) struct AnswerBudget {
    config: AnswersConfig,
    metrics: Arc<Metrics>,
    /// Counters of tenants. The node's configuration bounds their number.
    tenants: RwLock<HashMap<TenantId, Gauge>>,
}

/// Tenant to which an answer belongs.
#[derive(Debug)]
pub(crate) struct AnswerOwner {
    bytes: Gauge,
    /// The request counts as in progress until the answer has ended.
    permit: Option<RequestPermit>,
}

/// Bytes of answers of one connection, tenant and node, counted until dropped.
#[derive(Debug)]
pub(crate) struct CountedBytes {
    bytes: i64,
    scopes: Arc<Scopes>,
}

/// Counters to which an answer adds.
#[derive(Debug)]
pub(crate) struct Scopes {
    connection: Gauge,
    tenant: Option<Gauge>,
    node: Gauge,
    _permit: Option<RequestPermit>,
}

impl AnswerBudget {
    /// Creates counters with these limits.
    pub(crate) fn new(config: AnswersConfig, metrics: Arc<Metrics>) -> Self {
        Self { config, metrics, tenants: RwLock::default() }
    }

    /// Returns the counter of a tenant, and the permit of its request, to attach to the answer.
    pub(crate) fn owner(&self, tenant: &TenantId, permit: Option<RequestPermit>) -> AnswerOwner {
        AnswerOwner { bytes: self.tenant_bytes(tenant), permit }
    }

    /// Bytes of answers that clients of a tenant have not taken, and their limit.
    pub(crate) fn usage(&self, tenant: &TenantId) -> (u64, u64) {
        let bytes = u64::try_from(self.tenant_bytes(tenant).get()).unwrap_or(0);
        (bytes, self.config.tenant_bytes_max)
    }

    fn tenant_bytes(&self, tenant: &TenantId) -> Gauge {
        if let Some(gauge) = self.tenants.read().get(tenant) {
            return gauge.clone();
        }
        let gauge = self.metrics.answers.tenant_bytes(tenant);
        self.tenants.write().entry(tenant.clone()).or_insert(gauge).clone()
    }

    /// Returns the counters of an answer on `connection`.
    pub(crate) fn scopes(&self, connection: &Gauge, owner: Option<AnswerOwner>) -> Arc<Scopes> {
        let (tenant, permit) = owner.map(|AnswerOwner { bytes, permit }| (bytes, permit)).unzip();
        Arc::new(Scopes {
            connection: connection.clone(),
            tenant,
            node: self.metrics.answers.bytes.clone(),
            _permit: permit.flatten(),
        })
    }

    /// Rejects a call while answers of its connection, its tenant or the node reach a limit.
    pub(crate) fn check(&self, connection: &Gauge, owner: &AnswerOwner) -> Result<(), Fault> {
        let tenant = &owner.bytes;
        let AnswersConfig { bytes_max, tenant_bytes_max, connection_bytes_max, .. } = self.config;
        let is_full = |gauge: &Gauge, bytes_max: u64| gauge.get() >= signed(bytes_max);
        if is_full(connection, connection_bytes_max) {
            return Err(self.refusal(AnswerScope::Connection));
        }
        if is_full(tenant, tenant_bytes_max) {
            return Err(self.refusal(AnswerScope::Tenant));
        }
        if is_full(&self.metrics.answers.bytes, bytes_max) {
            return Err(self.refusal(AnswerScope::Node));
        }
        Ok(())
    }

    /// Counts a response that is in memory as a whole, and none of others.
    pub(crate) fn admit_whole(
        &self,
        scopes: &Arc<Scopes>,
        response: &mut Response,
    ) -> Result<Option<CountedBytes>, Fault> {
        if response.extensions_mut().remove::<WholeBody>().is_none() {
            return Ok(None);
        }
        response.body().size_hint().exact().map(|bytes| self.admit(scopes, bytes)).transpose()
    }

    /// Counts a whole answer, unless it exceeds a limit together with others.
    fn admit(&self, scopes: &Arc<Scopes>, bytes: u64) -> Result<CountedBytes, Fault> {
        let AnswersConfig { bytes_max, tenant_bytes_max, connection_bytes_max, .. } = self.config;
        let counted = CountedBytes::new(scopes, bytes);
        let is_over = |gauge: &Gauge, bytes_max: u64| {
            let all = gauge.get();
            all > signed(bytes_max) && all > counted.bytes
        };
        let tenant = scopes.tenant.as_ref();
        if is_over(&scopes.connection, connection_bytes_max) {
            return Err(self.refusal(AnswerScope::Connection));
        }
        if tenant.is_some_and(|tenant| is_over(tenant, tenant_bytes_max)) {
            return Err(self.refusal(AnswerScope::Tenant));
        }
        if is_over(&scopes.node, bytes_max) {
            return Err(self.refusal(AnswerScope::Node));
        }
        Ok(counted)
    }

    /// Returns the limits and the slowest pace.
    pub(crate) fn config(&self) -> &AnswersConfig {
        &self.config
    }

    /// Counts an answer that was cut off.
    pub(crate) fn cut(&self, cause: CutCause) {
        self.metrics.answers.cut(cause);
    }

    fn refusal(&self, scope: AnswerScope) -> Fault {
        self.metrics.answers.refused(scope);
        let AnswersConfig { bytes_max, tenant_bytes_max, connection_bytes_max, .. } = self.config;
        let (code, whose, bytes_max, setting) = match scope {
            AnswerScope::Connection => {
                (ErrorCode::AnswersFull, "this connection", connection_bytes_max, "connection_bytes_max")
            }
            AnswerScope::Tenant => {
                (ErrorCode::AnswersFull, "this tenant", tenant_bytes_max, "tenant_bytes_max")
            }
            AnswerScope::Node => (ErrorCode::Unavailable, "this node", bytes_max, "bytes_max"),
        };
        let text = format!(
            "clients of {whose} have not read earlier answers, which may take {bytes_max} bytes (gateway.answers.{setting}); read them and try again"
        );
        Fault::new(code, text)
    }
}

impl CountedBytes {
    /// Counts `bytes`, whatever the limits: they are in memory already.
    pub(crate) fn new(scopes: &Arc<Scopes>, bytes: u64) -> Self {
        let counted = Self { bytes: signed(bytes), scopes: scopes.clone() };
        counted.scopes.all().for_each(|gauge| {
            gauge.inc_by(counted.bytes);
        });
        counted
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.scopes.all().for_each(|gauge| {
            gauge.dec_by(self.bytes);
        });
    }
}

impl Scopes {
    fn all(&self) -> impl Iterator<Item = &Gauge> {
        [&self.connection, &self.node].into_iter().chain(&self.tenant)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_per_connection_tenant_and_node_and_are_released() {
        let config = AnswersConfig {
            connection_bytes_max: 100,
            tenant_bytes_max: 200,
            bytes_max: 300,
            ..AnswersConfig::default()
        };
        let budget = AnswerBudget::new(config, Metrics::new());
        let owner = |name: &str| budget.owner(&TenantId::new(name).unwrap(), None);
        let connections: [Gauge; 4] = Default::default();
        let admit = |connection: usize, tenant: &str, bytes| {
            let scopes = budget.scopes(&connections[connection], Some(owner(tenant)));
            budget.admit(&scopes, bytes).map_err(|error| error.code)
        };
        let first = admit(0, "a", 80).unwrap();
        assert_eq!(admit(0, "a", 30).unwrap_err(), ErrorCode::AnswersFull, "the connection is full");
        let second = admit(1, "a", 100).unwrap();
        assert_eq!(admit(2, "a", 30).unwrap_err(), ErrorCode::AnswersFull, "the tenant is full");
        let third = admit(2, "b", 100).unwrap();
        assert_eq!(admit(3, "b", 30).unwrap_err(), ErrorCode::Unavailable, "the node is full");
        let check = |connection: usize, tenant: &str| {
            budget.check(&connections[connection], &owner(tenant)).map_err(|error| error.code)
        };
        assert_eq!((check(2, "b"), check(3, "b")), (Err(ErrorCode::AnswersFull), Ok(())));
        drop((first, second, third));
        assert_eq!(budget.metrics.answers.bytes.get(), 0);
        let alone = admit(0, "a", 1_000).unwrap();
        assert_eq!(
            (check(1, "a"), check(1, "b")),
            (Err(ErrorCode::AnswersFull), Err(ErrorCode::Unavailable))
        );
        drop(alone);
        assert_eq!(check(0, "a"), Ok(()));
    }
}
