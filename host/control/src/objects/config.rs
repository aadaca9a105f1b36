//! Configuration of named objects.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Named objects: sizes, quotas and lifetimes. See docs/guides/objects.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectsConfig {
    /// Largest object.
    pub object_bytes_max: u64,
    /// Number of objects of one tenant.
    pub tenant_len_max: usize,
    /// Total size of one tenant's objects.
    pub tenant_bytes_max: u64,
    /// Time to live of an object whose request sets none.
    pub ttl_ms_default: u64,
    /// Longest time to live of an object.
    pub ttl_ms_max: u64,
    /// Percentage of the *free* memory for bodies and tensors that may cache objects, so that
    /// reading them needs no disk access.
    pub free_percent_max: u64,
}

impl Default for ObjectsConfig {
    fn default() -> Self {
        Self {
            object_bytes_max: 256 * MIB,
            tenant_len_max: 10_000,
            tenant_bytes_max: 4096 * MIB,
            ttl_ms_default: 24 * 3_600_000,
            ttl_ms_max: 365 * 24 * 3_600_000,
            free_percent_max: 25,
        }
    }
}
