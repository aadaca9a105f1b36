//! Configuration of the copies of calls for shadows.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Limits of the copies of calls for shadows. Calls above them are not copied. See
/// docs/guides/release.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShadowConfig {
    /// Copies that run at once. 0: no calls are copied.
    pub calls_max: u32,
    /// Copies of one tenant that run at once, out of `calls_max`.
    pub tenant_calls_max: u32,
    /// Requests and outputs that are kept for copies.
    pub bytes_max: u64,
    /// Requests and outputs that are kept for copies of one tenant, out of `bytes_max`.
    pub tenant_bytes_max: u64,
    /// Largest request that is copied, and largest outputs of a model that are compared.
    pub body_bytes_max: u64,
}

impl Default for ShadowConfig {
    fn default() -> Self {
        Self {
            calls_max: 8,
            tenant_calls_max: 4,
            bytes_max: 64 * MIB,
            tenant_bytes_max: 16 * MIB,
            body_bytes_max: MIB,
        }
    }
}
