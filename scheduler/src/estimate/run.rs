//! Run times of invocations with all models in memory: a line over the batch size for each function
//! and kind of device, learned as invocations finish.

use super::round_ns;

/// Run time of one function on one kind of device: `mean + slope x (batch - mean batch)`, by least
/// squares with exponentially fading samples.
///
/// The first samples count equally, later samples with a weight of at least 1/32. The slope is 0
/// while all batches have one size, and the mean of equal samples is exactly their value. The first
/// sample is forgotten if the second is much smaller: a first run may include preparations, such as
/// the compilation of kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunLine {
    count: u64,
    batch: f64,
    run_time_ns: f64,
    batch_variance: f64,
    covariance: f64,
}

/// Number of samples after which the weight stays constant.
const SAMPLES_MAX: u64 = 32;

/// Ratio of the first sample to the second from which the first includes preparations.
const PREPARATION_MIN: f64 = 4.0;

/// Assumed run time before any measurement: a model of moderate size on a CPU.
const PRIOR_NS: u64 = 100_000_000;

impl RunLine {
    /// Adds a run of `batch` items.
    pub fn add(&mut self, batch: u32, run_time_ns: u64) {
        let is_no_smaller = f64::from(batch) >= self.batch;
        if self.count == 1 && is_no_smaller && run_time_ns as f64 * PREPARATION_MIN < self.run_time_ns {
            *self = Self::default();
        }
        self.add_at(f64::from(batch), run_time_ns);
    }

    /// Adds a sample at any point of the horizontal axis.
    pub(super) fn add_at(&mut self, batch: f64, run_time_ns: u64) {
        self.count = self.count.saturating_add(1);
        let weight = 1.0 / self.count.min(SAMPLES_MAX) as f64;
        let batch_change = batch - self.batch;
        let time_change = run_time_ns as f64 - self.run_time_ns;
        self.batch += batch_change * weight;
        self.run_time_ns += time_change * weight;
        self.batch_variance = (1.0 - weight) * (self.batch_variance + weight * batch_change * batch_change);
        self.covariance = (1.0 - weight) * (self.covariance + weight * batch_change * time_change);
    }

    /// The expected time that `more` items add to a run of `batch` items; `None` while all samples
    /// have one size.
    #[must_use]
    pub fn added_ns(&self, batch: u32, more: u32) -> Option<u64> {
        let whole_ns = self.estimate_ns(batch.saturating_add(more)).filter(|_| self.batch_variance > 1e-6)?;
        Some(whole_ns.saturating_sub(self.estimate_ns(batch)?))
    }

    /// The expected time for `batch` items; `None` before the first sample. A negative slope counts
    /// as noise.
    #[must_use]
    pub fn estimate_ns(&self, batch: u32) -> Option<u64> {
        let slope = self.slope().map_or(0.0, |slope| slope.max(0.0));
        let line = self.run_time_ns + slope * (f64::from(batch) - self.batch);
        (self.count > 0).then(|| round_ns(line))
    }

    /// The expected time at a point of the horizontal axis, for a quantity that takes no time if it
    /// is 0 and no less time if it is larger; `None` before the first sample. While all samples have
    /// one size, the time is proportional to the size.
    pub(super) fn proportional_ns(&self, at: f64) -> Option<f64> {
        let per_unit = self.run_time_ns / self.batch.max(f64::MIN_POSITIVE);
        let slope = self.slope().map_or(per_unit, |slope| slope.clamp(0.0, per_unit.max(0.0)));
        (self.count > 0).then_some(self.run_time_ns + slope * (at - self.batch))
    }

    /// The additional time per unit; `None` while all samples have one size.
    fn slope(&self) -> Option<f64> {
        (self.batch_variance > 1e-6).then(|| self.covariance / self.batch_variance)
    }
}

/// Run times of one function, or of all functions, by kind of device.
#[derive(Debug, Clone, Default)]
pub struct RunTimes {
    kinds: Vec<RunLine>,
}

impl RunTimes {
    /// Adds a run of `batch` items on a device of the kind with index `kind`.
    pub fn add(&mut self, kind: usize, batch: u32, run_time_ns: u64) {
        if self.kinds.len() <= kind {
            self.kinds.resize(kind + 1, RunLine::default());
        }
        self.kinds[kind].add(batch, run_time_ns);
    }

    /// The expected time on the kind, if any run on it was measured.
    #[must_use]
    pub fn estimate_ns(&self, kind: usize, batch: u32) -> Option<u64> {
        self.kinds.get(kind)?.estimate_ns(batch)
    }

    /// The expected time that `more` items add to a run of `batch` items on the kind, if it is
    /// known.
    #[must_use]
    pub fn added_ns(&self, kind: usize, batch: u32, more: u32) -> Option<u64> {
        self.kinds.get(kind)?.added_ns(batch, more)
    }

    /// Number of runs measured on the kind.
    #[must_use]
    pub(crate) fn count(&self, kind: usize) -> u64 {
        self.kinds.get(kind).map_or(0, |line| line.count)
    }

    /// The expected time: the function's own measurement, else the caller's value, else the
    /// measurement of all functions on the kind, else `PRIOR_NS`.
    #[must_use]
    pub fn estimate_or_prior_ns(&self, others: &Self, kind: usize, batch: u32, told_ns: Option<u64>) -> u64 {
        self.estimate_ns(kind, batch)
            .or(told_ns)
            .or_else(|| others.estimate_ns(kind, batch))
            .unwrap_or(PRIOR_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn run_time_prefers_own_measurement_then_caller_then_other_functions() {
        let mut own = RunTimes::default();
        let mut others = RunTimes::default();
        assert_eq!(own.estimate_or_prior_ns(&others, 0, 1, None), PRIOR_NS);
        others.add(0, 1, 50);
        assert_eq!(own.estimate_or_prior_ns(&others, 0, 1, None), 50);
        assert_eq!(own.estimate_or_prior_ns(&others, 0, 1, Some(7)), 7);
        own.add(0, 1, 9);
        assert_eq!(own.estimate_or_prior_ns(&others, 0, 1, Some(7)), 9);
        assert_eq!(own.estimate_or_prior_ns(&others, 1, 1, Some(7)), 7, "kinds are apart");
    }

    #[test]
    fn equal_runs_have_an_exact_mean_and_extremes_saturate() {
        let mut line = RunLine::default();
        assert_eq!(line.estimate_ns(1), None);
        (0..1_000).for_each(|_| line.add(1, 1_333_333_333));
        assert_eq!(line.estimate_ns(1), Some(1_333_333_333));
        assert_eq!(line.estimate_ns(64), Some(1_333_333_333), "no slope is known");
        line.add(u32::MAX, u64::MAX);
        line.add(0, 0);
        assert!(line.estimate_ns(u32::MAX).is_some());
    }

    #[test]
    fn first_run_with_preparations_is_forgotten() {
        let mut line = RunLine::default();
        line.add(1, 60_000_000);
        line.add(1, 500_000);
        assert_eq!(line.estimate_ns(1), Some(500_000));
        line.add(1, 60_000_000);
        line.add(1, 500_000);
        assert!(line.estimate_ns(1) > Some(10_000_000), "later runs count");
    }

    proptest! {
        /// The fit predicts runs on a line, for every order of the samples.
        #[test]
        fn run_line_fits_samples_in_any_order(
            batches in prop::collection::vec(1_u32..64, 2..200),
            base in 1_000_u64..1_000_000,
            per_item in 0_u64..100_000,
        ) {
            prop_assume!(batches.iter().any(|batch| *batch != batches[0]));
            let mut line = RunLine::default();
            for batch in &batches {
                line.add(*batch, base + per_item * u64::from(*batch));
            }
            for batch in &batches {
                let told = line.estimate_ns(*batch).unwrap();
                let right = base + per_item * u64::from(*batch);
                prop_assert!(told.abs_diff(right) <= right / 1_000 + 2, "{told} instead of {right}");
            }
        }
    }
}
