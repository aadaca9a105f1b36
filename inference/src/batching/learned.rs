//! What a model in memory has learned about running its requests together.

use super::choose::{self, Choice, Situation};
use super::curve::Curve;
use super::{BatchRules, Fit};
use crate::request::Job;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_types::Profile;

/// Classes of requests whose times are told apart; the one asked for longest ago is forgotten.
const CLASSES_MAX: usize = 32;
/// The share of a model's run time that measuring sizes which do not pay may cost.
const PROBING_SHARE: f64 = 0.01;
/// What measuring may cost at first, in runs of one.
const PROBING_AHEAD: f64 = 32.0;
/// A size that has been measured before is measured again after so many choices for each of its items: large ones, which hold up those that
/// are run to measure them, less often.
const CHOICES_PER_ITEM: u32 = 64;
/// Requests tried out in vain before a model's requests are left alone.
const TRIALS_MAX: u32 = 8;
/// What trying a request out takes, in runs of one.
const TRIAL_RUNS: f64 = 8.0;
/// A batch that failed leaves the next requests alone: as many as it had, twice as many with every failure in a row, so many times.
const FAILURES_MAX: u32 = 10;

/// Whether, and how, requests for one model are run together.
pub(crate) struct Batcher {
    rules: BatchRules,
    profile: Profile,
    learned: Mutex<Learned>,
    /// Whether trying requests out has failed.
    has_failed: AtomicBool,
}

#[derive(Default)]
struct Learned {
    classes: HashMap<Box<[u32]>, Class>,
    clock: u64,
    trial: Trial,
    /// Requests that are to run alone, after a batch that failed.
    alone: u64,
    failures: u32,
}

/// Whether the items of a batch may change each other's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// Not known after so many trials.
    Open(u32),
    UnderWay(u32),
    Passed,
    Failed,
}

impl Default for Trial {
    fn default() -> Self {
        Self::Open(0)
    }
}

/// What is known of requests of one class.
struct Class {
    curve: Curve,
    /// What measuring may cost now, in nanoseconds. Below zero while it has cost too much.
    credit_ns: Option<f64>,
    choices: u32,
    /// Which size to measure again next.
    next_probe: usize,
    used: u64,
}

/// A run that worked.
#[derive(Debug, Clone)]
pub(crate) struct Ran<'a> {
    pub(crate) class: &'a [u32],
    /// The items of each member.
    pub(crate) items: Vec<u32>,
    pub(crate) time: Duration,
}

impl Batcher {
    /// For a model of these rules, starting from what it cost before.
    pub(crate) fn new(rules: BatchRules, profile: Profile) -> Self {
        let trial = if rules.is_vouched { Trial::Passed } else { Trial::default() };
        let learned = Mutex::new(Learned { trial, ..Learned::default() });
        Self { rules, profile, learned, has_failed: AtomicBool::new(false) }
    }

    pub(crate) fn rules(&self) -> &BatchRules {
        &self.rules
    }

    /// Whether requests are known to change each other's answers, so that there is nothing to choose.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// What a request brings to a batch; none if it runs alone.
    pub(crate) fn fit(&self, job: &Job) -> Option<Fit> {
        Fit::of(&self.rules, job)
    }

    /// Which of those that wait run now.
    pub(crate) fn choose(&self, class: &[u32], situation: &Situation<'_>) -> Choice {
        let mut learned = self.lock();
        let learned = &mut *learned;
        let Some(leader) = situation.candidates.first() else { return Choice::Run(vec![0]) };
        if learned.alone > 0 {
            learned.alone -= 1;
            return Choice::Run(vec![0]);
        }
        let known = learned.class(class, self);
        let Some(own_ns) = known.curve.estimate_ns(leader.items) else { return Choice::Run(vec![0]) };
        match learned.trial {
            Trial::Failed | Trial::UnderWay(_) => return Choice::Run(vec![0]),
            Trial::Open(_) if situation.candidates.len() < 2 => return Choice::Run(vec![0]),
            Trial::Open(trials) => {
                if leader.slack_ns < TRIAL_RUNS * own_ns {
                    return Choice::Run(vec![0]);
                }
                learned.trial = Trial::UnderWay(trials);
                return Choice::TryOut;
            }
            Trial::Passed => {}
        }
        let known = learned.class(class, self);
        let Class { curve, credit_ns, choices, next_probe, .. } = known;
        let credit_ns = *credit_ns.get_or_insert(PROBING_AHEAD * own_ns);
        let curve = &*curve;
        choose::choose(situation, curve, &self.rules, |available| {
            probe(available, curve, &self.rules, credit_ns, (choices, next_probe))
        })
    }

    /// A run has worked.
    pub(crate) fn ran(&self, ran: &Ran<'_>) {
        let mut learned = self.lock();
        let time_ns = u64::try_from(ran.time.as_nanos()).unwrap_or(u64::MAX);
        if ran.items.len() > 1 {
            learned.failures = 0;
        }
        let class = learned.class(ran.class, self);
        let alone_ns: Option<f64> = ran.items.iter().map(|items| class.curve.estimate_ns(*items)).sum();
        if let (Some(credit_ns), Some(alone_ns)) = (&mut class.credit_ns, alone_ns) {
            let loss_ns = if ran.items.len() > 1 { (time_ns as f64 - alone_ns).max(0.0) } else { 0.0 };
            let most_ns = PROBING_AHEAD * alone_ns.max(1.0);
            *credit_ns = (*credit_ns + PROBING_SHARE * time_ns as f64 - loss_ns).min(most_ns);
        }
        class.curve.add(ran.items.iter().sum(), time_ns);
    }

    /// A batch of so many requests has failed. They, and some of those after them, are run alone.
    pub(crate) fn failed(&self, members: usize) {
        let mut learned = self.lock();
        learned.alone = (members as u64) << learned.failures;
        learned.failures = (learned.failures + 1).min(FAILURES_MAX);
    }

    /// How a trial has ended: whether requests may be run together, if that could be told. Says whether this settles it.
    pub(crate) fn tried(&self, verdict: Option<bool>) -> bool {
        let mut learned = self.lock();
        let Trial::UnderWay(trials) = learned.trial else { return false };
        learned.trial = match verdict {
            Some(true) => Trial::Passed,
            Some(false) => Trial::Failed,
            None if trials + 1 >= TRIALS_MAX => Trial::Failed,
            None => Trial::Open(trials + 1),
        };
        self.has_failed.store(learned.trial == Trial::Failed, Ordering::Relaxed);
        !matches!(learned.trial, Trial::Open(_))
    }

    /// The outputs of a batch could not be told apart: no requests are run together any more.
    pub(crate) fn give_up(&self) {
        self.lock().trial = Trial::Failed;
        self.has_failed.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Learned> {
        // Nothing that runs under the lock can panic half-way.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learned {
    /// What is known of a class; of the first one, what the model cost before it was loaded.
    fn class(&mut self, key: &[u32], batcher: &Batcher) -> &mut Class {
        self.clock += 1;
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(key) {
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.classes.remove(&key));
        }
        // A profile does not tell classes apart.
        let is_first = self.classes.is_empty();
        let curve = || if is_first { Curve::of(&batcher.profile) } else { Curve::default() };
        let fresh = || Class { curve: curve(), credit_ns: None, choices: 0, next_probe: 0, used: 0 };
        let class = self.classes.entry(key.into()).or_insert_with(fresh);
        class.used = self.clock;
        class
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
fn probe(
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
    if let Some(unknown) = sizes.iter().find(|size| **size <= available && !curve.knows(**size)) {
        return Some(*unknown);
    }
    // What was measured long ago may have changed.
    *choices = choices.saturating_add(1);
    let size = *sizes.get(*next % sizes.len())?;
    if *choices < CHOICES_PER_ITEM.saturating_mul(size) {
        return None;
    }
    (*choices, *next) = (0, (*next + 1) % sizes.len());
    let loss_ns = curve.estimate_ns(size)? - curve.estimate_ns(1)? * f64::from(size);
    (size <= available && loss_ns <= credit_ns).then_some(size)
}
