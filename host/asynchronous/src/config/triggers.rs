//! Configuration of triggers.

use serde::{Deserialize, Serialize};

/// Triggers: requests that the node sends on a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggersConfig {
    /// Triggers of one tenant.
    pub tenant_triggers_max: u32,
    /// Triggers of all tenants.
    pub triggers_max: u32,
    /// Triggers of one tenant for streams, each of which has a connection to its server.
    pub tenant_streams_max: u32,
    /// Shortest interval between the ticks of a trigger.
    pub interval_ms_min: u64,
    /// Size limit of the body of a trigger's request.
    pub body_bytes_max: u32,
    /// Size limit of a message of a stream, and of a request with events.
    pub message_bytes_max: u32,
    /// Delay after which a tick counts as missed: the node was down, or could not store the request.
    pub late_ms_max: u64,
}

impl Default for TriggersConfig {
    fn default() -> Self {
        Self {
            tenant_triggers_max: 200,
            triggers_max: 5_000,
            tenant_streams_max: 20,
            interval_ms_min: 1_000,
            body_bytes_max: 64 << 10,
            message_bytes_max: 1 << 20,
            late_ms_max: 60_000,
        }
    }
}
