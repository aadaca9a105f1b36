//! Load times of models into device memory, by the tier that their bytes come from.

use super::round_ns;
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
    /// The tier that bytes pass through next on their way to a device, if any.
    pub(crate) const fn next(self) -> Option<Self> {
        match self {
            Self::Sibling | Self::Memory => None,
            Self::Disk => Some(Self::Memory),
            Self::ObjectStore => Some(Self::Disk),
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

/// Mean load times by kind of device and tier, either of one model or of all models per MiB.
#[derive(Debug, Clone, Default)]
pub struct LoadTimes {
    kinds: Vec<[RunningMean; StorageTier::ALL.len()]>,
}

const MIB: f64 = (1_u64 << 20) as f64;

impl LoadTimes {
    /// Adds a load onto a device of the kind with index `kind`.
    pub fn add(&mut self, kind: usize, tier: StorageTier, load_time_ns: u64) {
        if self.kinds.len() <= kind {
            self.kinds.resize(kind + 1, Default::default());
        }
        self.kinds[kind][tier as usize].add(load_time_ns);
    }

    /// Adds a load, normalized to the time per MiB.
    pub fn add_per_mib(&mut self, kind: usize, tier: StorageTier, bytes: u64, load_time_ns: u64) {
        if bytes > 0 {
            self.add(kind, tier, round_ns(load_time_ns as f64 * MIB / bytes as f64));
        }
    }

    /// The mean of the added times, if there are any.
    #[must_use]
    pub fn mean_ns(&self, kind: usize, tier: StorageTier) -> Option<f64> {
        let mean = self.kinds.get(kind)?[tier as usize];
        (mean.count > 0).then_some(mean.mean)
    }

    /// Time to load `bytes` from `tier`, at the mean bandwidth of that tier, or an assumed one.
    #[must_use]
    pub fn by_size_ns(&self, kind: usize, tier: StorageTier, bytes: u64) -> u64 {
        let prior_ns = || round_ns(bytes as f64 / tier.prior_bytes_per_ns());
        self.measured_ns(kind, tier, bytes).unwrap_or_else(prior_ns)
    }

    /// Time to load `bytes` from `tier`, at the mean bandwidth of that tier, if it was measured.
    #[must_use]
    pub fn measured_ns(&self, kind: usize, tier: StorageTier, bytes: u64) -> Option<u64> {
        self.mean_ns(kind, tier).map(|mean_ns| round_ns(bytes as f64 * mean_ns / MIB))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_time_by_size_uses_the_measured_bandwidth_of_the_tier() {
        let mut all = LoadTimes::default();
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, 1_000), 4_000);
        assert!(
            all.by_size_ns(0, StorageTier::Memory, 1_000)
                < all.by_size_ns(0, StorageTier::ObjectStore, 1_000)
        );
        all.add_per_mib(0, StorageTier::Disk, 1 << 20, 100);
        all.add_per_mib(0, StorageTier::Disk, 2 << 20, 400);
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, 2 << 20), 300);
        assert_eq!(all.by_size_ns(1, StorageTier::Disk, 1_000), 4_000, "kinds are apart");
    }

    #[test]
    fn load_times_saturate() {
        let mut all = LoadTimes::default();
        all.add_per_mib(0, StorageTier::Disk, 0, u64::MAX);
        all.add_per_mib(0, StorageTier::Disk, 1, u64::MAX);
        assert_eq!(all.by_size_ns(0, StorageTier::Disk, u64::MAX), u64::MAX);
    }
}
