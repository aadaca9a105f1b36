//! Configuration of asynchronous invocations.

mod triggers;
pub use triggers::TriggersConfig;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Asynchronous invocations: queues, retention, retries and callbacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Invocations and callbacks that this node runs at once. At 0 the node accepts invocations and
    /// runs none.
    pub running_max: u32,
    /// Maximum for one tenant within `running_max`, so that other tenants always have room.
    pub tenant_running_max: u32,
    /// Unfinished invocations accepted by this node. Further invocations are answered with 429.
    pub queue_len_max: u32,
    /// Unfinished invocations of one tenant, over all nodes. Further invocations are answered with
    /// 429.
    pub tenant_queue_len_max: u32,
    /// Disk space for the requests and results of one tenant. Above it, the tenant's oldest results
    /// are deleted before `retention_ms`.
    pub tenant_bytes_max: u64,
    /// Ended invocations kept for one tenant. Above it, the oldest are deleted before
    /// `retention_ms`.
    pub tenant_kept_max: u32,
    /// Retention of an invocation and its result after its end.
    pub retention_ms: u64,
    /// Attempts before an invocation is given up as dead; at least one.
    pub attempts_max: u32,
    /// Longest time to retry an invocation that could not start, because of full queues or a node
    /// that shuts down.
    pub age_ms_max: u64,
    /// Backoff before the second attempt of an invocation or a callback; it doubles with each
    /// attempt.
    pub backoff_ms: u64,
    /// Longest backoff.
    pub backoff_ms_max: u64,
    /// Lease of a node's claims: the silence after which other nodes take over the invocations that
    /// the node accepted.
    pub lease_ms: u64,
    /// Clients that may wait for the end of invocations at once.
    pub waiters_max: u32,
    /// Longest wait of one client, with `wait_ms` or `Prefer: wait=`.
    pub wait_ms_max: u64,
    /// Hosts that callbacks may reach with the results of direct model inferences and of workflows,
    /// in the syntax of `outbound_hosts` in a function's manifest.
    pub callback_hosts: Vec<String>,
    /// Attempts to deliver a callback.
    pub callback_attempts_max: u32,
    /// Time limit of one callback attempt.
    pub callback_timeout_ms: u64,
    /// Triggers, which start asynchronous invocations on a schedule.
    pub triggers: TriggersConfig,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        Self {
            running_max: 32,
            tenant_running_max: 24,
            queue_len_max: 10_000,
            tenant_queue_len_max: 2_000,
            tenant_bytes_max: 4096 * MIB,
            tenant_kept_max: 10_000,
            retention_ms: 24 * 3_600_000,
            attempts_max: 3,
            age_ms_max: 6 * 3_600_000,
            backoff_ms: 1_000,
            backoff_ms_max: 60_000,
            lease_ms: 5_000,
            waiters_max: 1_000,
            wait_ms_max: 60_000,
            callback_hosts: Vec::new(),
            callback_attempts_max: 5,
            callback_timeout_ms: 10_000,
            triggers: TriggersConfig::default(),
        }
    }
}
