//! Capacity of a pool, given the memory used outside of it.
//!
//! ```text
//!   total  | outside: contexts, modules, graphs,  | blocks of the pool | free               |
//!          | libraries, other processes           |                    |                    |
//!   pool                                          | capacity                     | headroom |
//! ```
//!
//! The driver takes memory for contexts, modules, graphs and libraries without a request, and so do
//! other processes. The driver only reports the free memory; the rest is computed from it.

use crate::cuda::context::MemoryInfo;

/// Memory that the pool never uses: the driver takes it between two measurements, for example when
/// a graph is instantiated, or for the local memory of a kernel at its first launch. Such
/// allocations take some megabytes.
const HEADROOM_BYTES_MAX: u64 = 64 << 20;
/// Upper limit of the headroom: one part in this many of the device's memory, so that small devices
/// are usable.
const HEADROOM_SHARE: u64 = 64;

/// Memory that a device was measured to have for a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// Device memory in use outside of the pool, by this process and others.
    pub outside_bytes: u64,
    /// The most that the pool may use: at most the limit that it was created with.
    pub capacity_bytes: u64,
}

impl MeasuredMemory {
    /// The result for a device with this `memory` and a pool that has a limit of `limit_bytes` and
    /// has created `pool_bytes` so far.
    pub(super) fn new(memory: MemoryInfo, pool_bytes: u64, limit_bytes: u64) -> Self {
        let MemoryInfo { free_bytes, total_bytes } = memory;
        let room_bytes = pool_bytes.saturating_add(free_bytes).saturating_sub(headroom_bytes(total_bytes));
        Self {
            outside_bytes: total_bytes.saturating_sub(free_bytes).saturating_sub(pool_bytes),
            capacity_bytes: limit_bytes.min(room_bytes),
        }
    }
}

fn headroom_bytes(total_bytes: u64) -> u64 {
    HEADROOM_BYTES_MAX.min(total_bytes / HEADROOM_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn capacity_excludes_outside_memory_and_headroom() {
        let measured = |free_bytes, pool_bytes, limit_bytes| {
            let memory = MemoryInfo { free_bytes, total_bytes: 16 * GIB };
            let MeasuredMemory { outside_bytes, capacity_bytes } =
                MeasuredMemory::new(memory, pool_bytes, limit_bytes);
            (outside_bytes, capacity_bytes)
        };
        // The device has more than the pool's limit.
        assert_eq!(measured(15 * GIB, 0, 14 * GIB), (GIB, 14 * GIB));
        assert_eq!(measured(15 * GIB, 0, 16 * GIB), (GIB, 15 * GIB - HEADROOM_BYTES_MAX));
        // The pool's own blocks are part of its capacity, and not outside.
        assert_eq!(measured(5 * GIB, 8 * GIB, 14 * GIB), (3 * GIB, 13 * GIB - HEADROOM_BYTES_MAX));
        // The headroom is in use: the pool has more than its capacity.
        assert_eq!(measured(0, 8 * GIB, 14 * GIB), (8 * GIB, 8 * GIB - HEADROOM_BYTES_MAX));
        assert_eq!(headroom_bytes(GIB), 16 << 20);
    }
}
