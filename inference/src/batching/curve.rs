//! Run time by number of items.

use crate::profiles::bucket;
use std::collections::BTreeMap;
use weir_types::{Profile, RunningMean};

/// Runs of a size that must be measured before their time is trusted.
const SAMPLES_MIN: u64 = 2;

/// Measured run times, by number of items.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve(BTreeMap<u32, RunningMean>);

impl Curve {
    /// Starts from an earlier profile.
    pub(crate) fn from_profile(profile: &Profile) -> Self {
        Self(profile.run_time_ns.clone())
    }

    /// Records one run.
    pub(crate) fn add(&mut self, items: u32, time_ns: u64) {
        let time = self.0.entry(bucket(items)).or_default();
        // The first run of a size may have allocated memory that later runs reuse.
        if time.count == 1 && (time_ns as f64) < time.mean {
            *time = RunningMean::default();
            time.add(time_ns);
        }
        time.add(time_ns);
    }

    /// Expected time of a run, in nanoseconds. Interpolates linearly between the neighbouring
    /// sizes, and scales proportionally beyond the largest size, so that no unmeasured saving is
    /// assumed. `None` without measurements.
    pub(crate) fn estimate_ns(&self, items: u32) -> Option<f64> {
        let size = bucket(items);
        let above = self.0.range(size..).next();
        let below = self.0.range(..size).next_back();
        match (below, above) {
            (_, Some((known, time))) if *known == size => Some(time.mean),
            (Some((low, at_low)), Some((high, at_high))) => {
                let part = f64::from(items.max(*low) - low) / f64::from(high - low);
                Some(at_low.mean + (at_high.mean - at_low.mean) * part)
            }
            (None, Some((_, time))) => Some(time.mean),
            (Some((known, time)), None) => Some(time.mean * f64::from(items) / f64::from((*known).max(1))),
            (None, None) => None,
        }
    }

    /// Upper bound of a run's time, in nanoseconds, if more items never take less time: the time of
    /// the next larger measured size. Beyond the largest size, the time scales proportionally.
    pub(crate) fn bound_ns(&self, items: u32) -> Option<f64> {
        let above = self.0.range(bucket(items)..).next();
        above.map_or_else(|| self.estimate_ns(items), |(_, time)| Some(time.mean))
    }

    /// The least measured time per item, in nanoseconds, among runs whose size passes `sizes`.
    pub(crate) fn least_cost_ns(&self, sizes: impl Fn(u32) -> bool) -> Option<f64> {
        let believed =
            self.0.iter().filter(|(size, time)| **size > 0 && time.count >= SAMPLES_MIN && sizes(**size));
        believed.map(|(size, time)| time.mean / f64::from(*size)).min_by(f64::total_cmp)
    }

    /// Lower limit, exclusive, of the sizes that count as near `items`.
    pub(crate) fn near(items: u32) -> u32 {
        items - items.div_ceil(4)
    }

    /// Whether runs of near `items` have been measured.
    pub(crate) fn knows(&self, items: u32) -> bool {
        let sizes = self.0.range(Self::near(items) + 1..=bucket(items));
        sizes.map(|(_, time)| time.count).sum::<u64>() >= SAMPLES_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> Curve {
        let mut curve = Curve::default();
        for (items, time_ns) in points {
            (0..2).for_each(|_| curve.add(*items, *time_ns));
        }
        curve
    }

    #[test]
    fn estimate_interpolates_between_sizes_and_scales_beyond() {
        let curve = curve(&[(2, 100), (6, 200), (8, 210)]);
        let estimates = [1, 2, 3, 4, 6, 7, 8, 32].map(|items| curve.estimate_ns(items).unwrap());
        assert_eq!(estimates, [100.0, 100.0, 125.0, 150.0, 200.0, 205.0, 210.0, 840.0]);
        assert_eq!([3, 6, 7].map(|items| curve.bound_ns(items).unwrap()), [200.0, 200.0, 210.0]);
        assert_eq!((Curve::default().estimate_ns(1), Curve::default().bound_ns(1)), (None, None));
    }

    #[test]
    fn slow_first_run_of_a_size_is_discarded() {
        let mut curve = Curve::default();
        [900, 100].into_iter().for_each(|time_ns| curve.add(4, time_ns));
        assert_eq!(curve.estimate_ns(4), Some(100.0));
        assert!(curve.knows(4) && curve.knows(5) && !curve.knows(3) && !curve.knows(8));
    }
}
