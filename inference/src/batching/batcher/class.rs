//! What is known of requests of one class: how long their runs take, which sizes are to be measured, and which fail.

use super::super::BatchRules;
use super::super::choose;
use super::super::curve::Curve;

/// The share of a model's run time that measuring sizes which do not pay may cost.
pub(super) const PROBING_SHARE: f64 = 0.01;
/// What measuring may cost at first, in runs of one.
pub(super) const PROBING_AHEAD: f64 = 32.0;
/// A size that has been measured before is measured again after so many choices for each of its items: large ones, which hold up those that
/// are run to measure them, less often.
const CHOICES_PER_ITEM: u32 = 64;
/// Sizes up to here are measured whatever came of smaller ones; larger ones, which take more memory, only where something saves time.
const MEASURED_ALWAYS: u32 = 8;
/// Where nothing saves time, so many requests are run alone for each choice that is thought over.
pub(super) const CHOICES_SKIPPED: u32 = 64;
/// After a batch that failed, batches have half its items, for so many choices; twice as many with every failure, so many times.
const CHOICES_AFTER_FAILURE: u32 = 256;
const FAILURES_MAX: u32 = 10;

/// What is known of requests of one class.
pub(super) struct Class {
    pub(super) curve: Curve,
    /// What measuring may cost now, in nanoseconds. Below zero while it has cost too much.
    pub(super) credit_ns: Option<f64>,
    pub(super) choices: u32,
    /// Which size to measure again next.
    pub(super) next_probe: usize,
    /// Items in one run, at most, since a larger one failed; and how many choices until twice as many are tried.
    pub(super) items_max: u32,
    careful: u32,
    failures: u32,
    /// Whether nothing saves time, as far as is known, and how often that was taken as it is since it was last looked into.
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

    /// Take note of whether nothing saves time.
    pub(super) fn settle(&mut self, rules: &BatchRules) {
        let mut first = sizes(rules).into_iter().filter(|size| *size <= MEASURED_ALWAYS);
        self.is_settled =
            first.all(|size| self.curve.knows(size)) && !choose::pays(&self.curve, rules.size_max);
        if self.is_settled {
            self.choices = self.choices.saturating_add(CHOICES_SKIPPED - 1);
        }
    }

    /// A batch of so many items has failed, for want of memory or for one of them.
    pub(super) fn fail(&mut self, items: u32) {
        self.items_max = self.items_max.min(items / 2);
        self.careful = CHOICES_AFTER_FAILURE << self.failures;
        self.failures = (self.failures + 1).min(FAILURES_MAX);
    }

    /// Try larger batches again, some time after one has failed.
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

/// Sizes that are measured: one, powers of two, and what is preferred.
fn sizes(rules: &BatchRules) -> Vec<u32> {
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|size| *size < rules.size_max);
    let mut sizes: Vec<u32> =
        powers.chain([rules.size_max]).chain(rules.preferred_sizes.iter().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The size to measure now, if any; with so many items at hand.
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
    // What was measured long ago may have changed.
    *choices = choices.saturating_add(1);
    // Every other time it is one, which all else is compared with.
    let place = if (*next).is_multiple_of(2) { 0 } else { *next / 2 % sizes.len() };
    let size = *sizes.get(place)?;
    if *choices < CHOICES_PER_ITEM.saturating_mul(size) {
        return None;
    }
    (*choices, *next) = (0, (*next + 1) % (2 * sizes.len()));
    let loss_ns = curve.estimate_ns(size)? - curve.estimate_ns(1)? * f64::from(size);
    (size <= available && loss_ns <= credit_ns && is_worth_it(size)).then_some(size)
}
