//! How much of a device a pool may have beside what lies outside of it.
//!
//! ```text
//!   total   | outside: contexts, modules, graphs, libraries, other processes | blocks of the pool | free                |
//!   pool                                                                     | capacity                     | headroom  |
//! ```
//!
//! The driver takes memory for contexts, modules, graphs and libraries without being asked for it, and other processes take theirs. It says only what is
//! free in all, from which the rest is worked out.

use crate::cuda::context::MemoryInfo;

/// What no block is made of: memory that the driver takes between two measurements, as for a graph that is instantiated, or for the local memory of a kernel
/// that is launched for the first time. Such things take some megabytes.
const HEADROOM_BYTES_MAX: u64 = 64 << 20;
/// The share of a device's memory that it is at most, so that small devices are of use.
const HEADROOM_SHARE: u64 = 64;

/// What a device was found to have for a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Memory of the device that is in use outside of the pool, by this process and others.
    pub outside_bytes: u64,
    /// The most that the pool may have: no more than it was made for.
    pub capacity_bytes: u64,
}

impl Measured {
    /// What a device with this memory has for a pool of at most `limit_bytes` that has created `pool_bytes` so far.
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
    fn capacity_is_what_is_left_beside_outside_memory_and_headroom() {
        let measured = |free_bytes, pool_bytes, limit_bytes| {
            let memory = MemoryInfo { free_bytes, total_bytes: 16 * GIB };
            let Measured { outside_bytes, capacity_bytes } = Measured::new(memory, pool_bytes, limit_bytes);
            (outside_bytes, capacity_bytes)
        };
        // There is more than the pool may have.
        assert_eq!(measured(15 * GIB, 0, 14 * GIB), (GIB, 14 * GIB));
        assert_eq!(measured(15 * GIB, 0, 16 * GIB), (GIB, 15 * GIB - HEADROOM_BYTES_MAX));
        // What the pool has counts, and is not outside.
        assert_eq!(measured(5 * GIB, 8 * GIB, 14 * GIB), (3 * GIB, 13 * GIB - HEADROOM_BYTES_MAX));
        // The headroom is in use: the pool has more than it may.
        assert_eq!(measured(0, 8 * GIB, 14 * GIB), (8 * GIB, 8 * GIB - HEADROOM_BYTES_MAX));
        assert_eq!(headroom_bytes(GIB), 16 << 20);
    }
}
