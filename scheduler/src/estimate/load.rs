//! Load times of models into device memory, by the tier that their bytes come from.

use super::{RunLine, round_ns};
use serde::{Deserialize, Serialize};
use weir_types::RunningMean;

/// Where bytes outside a device's memory are stored, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageTier {
    /// Another device of the same node.
    Sibling,
    /// The node's memory.
    Memory,
    /// The node's disk.
    Disk,
    /// The object store shared by all nodes.
    ObjectStore,
}

impl StorageTier {
    /// The tier that bytes are in after a transfer on their way to a device, if any.
    pub(crate) const fn next(self) -> Option<Self> {
        match self {
            Self::Sibling | Self::Memory => None,
            Self::Disk => Some(Self::Memory),
            // A fetched file remains in the page cache.
            Self::ObjectStore => Some(Self::Memory),
        }
    }

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sibling => "sibling",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::ObjectStore => "object-store",
        }
    }

    /// All tiers.
    pub const ALL: [Self; 4] = [Self::Sibling, Self::Memory, Self::Disk, Self::ObjectStore];

    /// Assumed bandwidth of a tier before the first measured load: on the low side, so that first
    /// loads are not underestimated.
    const fn prior_bytes_per_ns(self) -> f64 {
        match self {
            Self::Sibling => 8.0,
            Self::Memory => 4.0,
            Self::Disk => 0.25,
            Self::ObjectStore => 0.1,
        }
    }
}

/// Mean load times of one model, by kind of device and tier.
#[derive(Debug, Clone, Default)]
pub struct LoadTimes {
    kinds: Vec<[RunningMean; StorageTier::ALL.len()]>,
}

impl LoadTimes {
    /// Adds a load onto a device of the kind with index `kind`.
    pub fn add(&mut self, kind: usize, tier: StorageTier, load_time_ns: u64) {
        if self.kinds.len() <= kind {
            self.kinds.resize(kind + 1, Default::default());
        }
        self.kinds[kind][tier as usize].add(load_time_ns);
    }

    /// The mean of the added times, if there are any.
    #[must_use]
    pub fn mean_ns(&self, kind: usize, tier: StorageTier) -> Option<f64> {
        let mean = self.kinds.get(kind)?[tier as usize];
        (mean.count > 0).then_some(mean.mean)
    }
}

/// Load times of all models by size, for each kind of device and tier: a fixed time and a bandwidth,
/// by least squares with exponentially fading samples.
#[derive(Debug, Clone, Default)]
pub struct Bandwidths {
    kinds: Vec<[RunLine; StorageTier::ALL.len()]>,
}

const MIB: f64 = (1_u64 << 20) as f64;

impl Bandwidths {
    /// Adds a load of `bytes` onto a device of the kind with index `kind`.
    pub fn add(&mut self, kind: usize, tier: StorageTier, bytes: u64, load_time_ns: u64) {
        if bytes == 0 {
            return;
        }
        if self.kinds.len() <= kind {
            self.kinds.resize(kind + 1, Default::default());
        }
        self.kinds[kind][tier as usize].add_at(bytes as f64 / MIB, load_time_ns);
    }

    /// Whether a load from `tier` was measured.
    #[must_use]
    pub fn is_measured(&self, kind: usize, tier: StorageTier) -> bool {
        self.measured_ns(kind, tier, 0).is_some()
    }

    /// Time to load `bytes` from `tier`, as measured, or at an assumed bandwidth.
    #[must_use]
    pub fn by_size_ns(&self, kind: usize, tier: StorageTier, bytes: u64) -> u64 {
        let prior_ns = || round_ns(bytes as f64 / tier.prior_bytes_per_ns());
        self.measured_ns(kind, tier, bytes).unwrap_or_else(prior_ns)
    }

    /// Time to load `bytes` from `tier`, if loads from there were measured.
    #[must_use]
    pub fn measured_ns(&self, kind: usize, tier: StorageTier, bytes: u64) -> Option<u64> {
        self.kinds.get(kind)?[tier as usize].proportional_ns(bytes as f64 / MIB).map(round_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn load_time_by_size_uses_the_measured_bandwidth_of_the_tier() {
        let mut all = Bandwidths::default();
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, 1_000), 4_000);
        assert!(
            all.by_size_ns(0, StorageTier::Memory, 1_000)
                < all.by_size_ns(0, StorageTier::ObjectStore, 1_000)
        );
        all.add(0, StorageTier::Disk, 2 * MIB, 400);
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, MIB), 200, "one size: time grows with the size");
        assert_eq!(all.by_size_ns(1, StorageTier::Disk, 1_000), 4_000, "kinds are apart");
    }

    #[test]
    fn load_time_of_small_models_has_its_fixed_part() {
        let mut all = Bandwidths::default();
        for size in [1, 50, 2, 100, 1, 80] {
            all.add(0, StorageTier::Memory, size * MIB, 5_000_000 + size * 1_000_000);
        }
        for size in [1, 10, 200] {
            let expected_ns = 5_000_000 + size * 1_000_000;
            let found_ns = all.by_size_ns(0, StorageTier::Memory, size * MIB);
            assert!(found_ns.abs_diff(expected_ns) <= expected_ns / 1_000, "{found_ns}, not {expected_ns}");
        }
        // A larger model that loads in no time is noise: the fixed part is never negative.
        (0..8).for_each(|_| all.add(1, StorageTier::Memory, 10 * MIB, 1_000));
        (0..8).for_each(|_| all.add(1, StorageTier::Memory, 100 * MIB, 1_000_000));
        assert!(all.by_size_ns(1, StorageTier::Memory, MIB) > 0);
    }

    #[test]
    fn load_times_saturate() {
        let mut all = Bandwidths::default();
        all.add(0, StorageTier::Disk, 0, u64::MAX);
        all.add(0, StorageTier::Disk, 1, u64::MAX);
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, u64::MAX), u64::MAX);
    }
}
