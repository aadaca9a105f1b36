//! What a model in memory has learned about running its requests together.

use super::choose::{self, Choice, Situation, Step};
use super::curve::Curve;
use super::{BatchRules, Fit};
use crate::request::Job;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_types::Profile;

/// Classes of requests whose times are told apart; the one asked for longest ago is forgotten.
const CLASSES_MAX: usize = 32;
/// The share of a model's run time that measuring sizes which do not pay may cost.
const PROBING_SHARE: f64 = 0.01;
/// What measuring may cost at first, in runs of one.
const PROBING_AHEAD: f64 = 32.0;
/// Choices between two measurements of sizes that have been measured before.
const CHOICES_PER_PROBE: u32 = 64;
/// How many times longer than it can take, as far as is known, a run that is measured may take without making anybody late.
const PROBING_ROOM: f64 = 2.0;
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
        Self { rules, profile, learned: Mutex::new(Learned { trial, ..Learned::default() }) }
    }

    pub(crate) fn rules(&self) -> &BatchRules {
        &self.rules
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
        choose::choose(situation, curve, &self.rules, |steps| {
            probe(steps, curve, &self.rules, credit_ns, (choices, next_probe))
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
        !matches!(learned.trial, Trial::Open(_))
    }

    /// The outputs of a batch could not be told apart: no requests are run together any more.
    pub(crate) fn give_up(&self) {
        self.lock().trial = Trial::Failed;
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

/// The step to take so as to measure what it takes, if one is to be measured now.
fn probe(
    steps: &[Step],
    curve: &Curve,
    rules: &BatchRules,
    credit_ns: f64,
    (choices, next_probe): (&mut u32, &mut usize),
) -> Option<usize> {
    let available = steps.last().filter(|_| steps.len() > 1)?.items;
    if credit_ns < 0.0 {
        return None;
    }
    let sizes = sizes(rules);
    let step_of = |size: u32| {
        let step = steps.iter().rposition(|step| step.items <= size && step.room >= PROBING_ROOM)?;
        steps.get(step).filter(|step| step.items > size / 2).map(|_| step)
    };
    // A size that was never measured might pay.
    let unknown = sizes.iter().filter(|size| **size <= available && !curve.knows(**size)).copied();
    if let Some(step) = unknown.filter_map(step_of).next() {
        return Some(step);
    }
    *choices += 1;
    if *choices < CHOICES_PER_PROBE {
        return None;
    }
    // What was measured long ago may have changed.
    let size = *sizes.get(*next_probe % sizes.len())?;
    *next_probe = (*next_probe + 1) % sizes.len();
    let step = step_of(size)?;
    let loss_ns = steps.get(step)?.loss_ns();
    if loss_ns > credit_ns {
        return None;
    }
    *choices = 0;
    Some(step)
}
