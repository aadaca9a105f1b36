//! Measurements of one request class: run times, sizes to probe, and failures.

use super::super::BatchRules;
use super::super::choose;
use super::super::curve::Curve;

/// The fraction of a model's run time that probing unprofitable sizes may cost.
pub(super) const PROBING_SHARE: f64 = 0.01;
/// The initial probing credit, in runs of one item.
pub(super) const PROBING_AHEAD: f64 = 32.0;
/// Choices, per item of a size, until the size is measured again. Large sizes are measured less
/// often, because gathering them delays requests.
const CHOICES_PER_ITEM: u32 = 64;
/// Sizes up to this one are always measured. Larger sizes need more memory, and are measured only
/// where batching saves time.
const MEASURED_ALWAYS: u32 = 8;
/// Where batching saves no time, this many requests run alone between two full choices.
pub(super) const CHOICES_SKIPPED: u32 = 64;
/// After a failed batch, batches have at most half its items for this many choices. The number of
/// choices doubles with every failure, up to `FAILURES_MAX` times.
const CHOICES_AFTER_FAILURE: u32 = 256;
const FAILURES_MAX: u32 = 10;

/// Measurements of one request class.
pub(super) struct Class {
    pub(super) curve: Curve,
    /// Current probing credit, in nanoseconds; negative after overspending.
    pub(super) credit_ns: Option<f64>,
    pub(super) choices: u32,
    /// Index of the next size to measure again.
    pub(super) next_probe: usize,
    /// The most items in one run after a larger run failed, and the choices until the limit
    /// doubles.
    pub(super) items_max: u32,
    careful: u32,
    failures: u32,
    /// Whether batching saves no time by current measurements, and how many choices were skipped
    /// since the last full choice.
    pub(super) is_settled: bool,
    pub(super) skipped: u32,
    pub(super) used: u64,
}

impl Class {
    pub(super) fn new(curve: Curve) -> Self {
        Self {
            curve,
            credit_ns: None,
            choices: 0,
            next_probe: 0,
            items_max: u32::MAX,
            careful: 0,
            failures: 0,
            is_settled: false,
            skipped: 0,
            used: 0,
        }
    }

    /// Updates `is_settled`: whether batching saves no time.
    pub(super) fn settle(&mut self, rules: &BatchRules) {
        let mut first = sizes(rules).into_iter().filter(|size| *size <= MEASURED_ALWAYS);
        self.is_settled =
            first.all(|size| self.curve.knows(size)) && !choose::pays(&self.curve, rules.size_max);
        if self.is_settled {
            self.choices = self.choices.saturating_add(CHOICES_SKIPPED - 1);
        }
    }

    /// Records a failed batch of `items` items, which ran out of memory or had a bad request.
    pub(super) fn fail(&mut self, items: u32) {
        self.items_max = self.items_max.min(items / 2);
        self.careful = CHOICES_AFTER_FAILURE << self.failures;
        self.failures = (self.failures + 1).min(FAILURES_MAX);
    }

    /// Raises the limit again some time after a failure.
    pub(super) fn recover(&mut self) {
        if self.items_max == u32::MAX {
            return;
        }
        self.careful = self.careful.saturating_sub(1);
        if self.careful == 0 {
            self.items_max = self.items_max.max(1).saturating_mul(2);
            self.careful = CHOICES_AFTER_FAILURE;
        }
    }
}

/// Sizes to measure: one, powers of two, and the preferred sizes.
fn sizes(rules: &BatchRules) -> Vec<u32> {
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|size| *size < rules.size_max);
    let mut sizes: Vec<u32> =
        powers.chain([rules.size_max]).chain(rules.preferred_sizes.iter().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The size to measure now, if any, with `available` items waiting.
pub(super) fn probe(
    available: u32,
    curve: &Curve,
    rules: &BatchRules,
    credit_ns: f64,
    (choices, next): (&mut u32, &mut usize),
) -> Option<u32> {
    if available < 2 || credit_ns < 0.0 {
        return None;
    }
    let sizes = sizes(rules);
    // A size that was never measured might pay.
    let is_worth_it = |size: u32| size <= MEASURED_ALWAYS || choose::pays(curve, size);
    if let Some(unknown) = sizes.iter().find(|size| **size <= available && !curve.knows(**size)) {
        return is_worth_it(*unknown).then_some(*unknown);
    }
    // An old measurement may be outdated.
    *choices = choices.saturating_add(1);
    // Every other probe measures one item, the reference for all other sizes.
    let place = if (*next).is_multiple_of(2) { 0 } else { *next / 2 % sizes.len() };
    let size = *sizes.get(place)?;
    if *choices < CHOICES_PER_ITEM.saturating_mul(size) {
        return None;
    }
    (*choices, *next) = (0, (*next + 1) % (2 * sizes.len()));
    let loss_ns = curve.estimate_ns(size)? - curve.estimate_ns(1)? * f64::from(size);
    (size <= available && loss_ns <= credit_ns && is_worth_it(size)).then_some(size)
}
