//! Batching state of a model in memory, learned from its runs.

mod class;

use super::choose::{self, BatchChoice, Situation};
use super::curve::Curve;
use super::{BatchRules, Fit, TrialVerdict};
use crate::request::PlacedJob;
use class::{CHOICES_SKIPPED, Class, PROBING_AHEAD, PROBING_SHARE, probe};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_types::Profile;

/// Limit of request classes with separate run times. Beyond the limit, the batcher drops the least
/// recently used class.
const CLASSES_MAX: usize = 32;
/// Failed trials after which a model's requests always run alone.
const TRIALS_MAX: u32 = 8;
/// Cost of a trial, in runs of one item.
const TRIAL_RUNS: f64 = 8.0;

/// Decides whether, and how, requests for one model run together.
pub(crate) struct Batcher {
    rules: BatchRules,
    profile: Profile,
    learned: Mutex<Learned>,
    /// Whether batching is ruled out: its trial has failed, or the outputs could not be split.
    has_failed: AtomicBool,
}

#[derive(Default)]
struct Learned {
    classes: HashMap<Box<[u32]>, Class>,
    clock: u64,
    trial: Trial,
}

/// Whether the items of a batch may affect each other's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// Not known, after this many failed trials.
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

/// A successful run.
#[derive(Debug, Clone)]
pub(crate) struct SuccessfulRun<'a> {
    pub(crate) class: &'a [u32],
    /// The items of each member.
    pub(crate) items: Vec<u32>,
    pub(crate) time: Duration,
}

impl Batcher {
    /// Creates a batcher with these rules, starting from the model's earlier profile.
    pub(crate) fn new(rules: BatchRules, profile: Profile) -> Self {
        let trial = if rules.is_vouched { Trial::Passed } else { Trial::default() };
        let learned = Mutex::new(Learned { trial, ..Learned::default() });
        Self { rules, profile, learned, has_failed: AtomicBool::new(false) }
    }

    pub(crate) fn rules(&self) -> &BatchRules {
        &self.rules
    }

    /// Whether requests are known to affect each other's answers, so that there is nothing to
    /// choose.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Whether requests of a class run alone for now, without looking at other waiting requests.
    pub(crate) fn runs_alone(&self, class: &[u32]) -> bool {
        if self.is_idle() {
            return true;
        }
        let mut learned = self.learned.lock();
        let Some(class) = learned.classes.get_mut(class).filter(|class| class.is_settled) else {
            return false;
        };
        class.skipped = (class.skipped + 1) % CHOICES_SKIPPED;
        class.skipped != 0
    }

    /// Batch class and size of a request; `None` if the request runs alone.
    pub(crate) fn fit(&self, job: &PlacedJob) -> Option<Fit> {
        Fit::for_job(&self.rules, job)
    }

    /// Chooses which waiting requests run now.
    pub(crate) fn choose(&self, class: &[u32], situation: &Situation<'_>) -> BatchChoice {
        let mut learned = self.learned.lock();
        let learned = &mut *learned;
        let Some(leader) = situation.candidates.first() else { return BatchChoice::Run(vec![0]) };
        let known = learned.class(class, self);
        let Some(own_ns) = known.curve.estimate_ns(leader.items) else { return BatchChoice::Run(vec![0]) };
        match learned.trial {
            Trial::Failed | Trial::UnderWay(_) => return BatchChoice::Run(vec![0]),
            Trial::Open(_) if situation.candidates.len() < 2 => return BatchChoice::Run(vec![0]),
            Trial::Open(trials) => {
                if leader.slack_ns < TRIAL_RUNS * own_ns {
                    return BatchChoice::Run(vec![0]);
                }
                learned.trial = Trial::UnderWay(trials);
                return BatchChoice::TryOut;
            }
            Trial::Passed => {}
        }
        let known = learned.class(class, self);
        known.recover();
        known.settle(&self.rules);
        let Class { curve, credit_ns, choices, next_probe, items_max, .. } = known;
        let items_max = (*items_max).min(self.rules.size_max);
        if items_max < 2 {
            return BatchChoice::Run(vec![0]);
        }
        let credit_ns = *credit_ns.get_or_insert(PROBING_AHEAD * own_ns);
        let curve = &*curve;
        choose::choose(situation, curve, &self.rules, items_max, |available| {
            probe(available, curve, &self.rules, credit_ns, (choices, next_probe))
        })
    }

    /// Records a successful run.
    pub(crate) fn ran(&self, ran: &SuccessfulRun<'_>) {
        let mut learned = self.learned.lock();
        let time_ns = u64::try_from(ran.time.as_nanos()).unwrap_or(u64::MAX);
        let class = learned.class(ran.class, self);
        let alone_ns: Option<f64> = ran.items.iter().map(|items| class.curve.estimate_ns(*items)).sum();
        if let (Some(credit_ns), Some(alone_ns)) = (&mut class.credit_ns, alone_ns) {
            let loss_ns = if ran.items.len() > 1 { (time_ns as f64 - alone_ns).max(0.0) } else { 0.0 };
            let most_ns = PROBING_AHEAD * alone_ns.max(1.0);
            *credit_ns = (*credit_ns + PROBING_SHARE * time_ns as f64 - loss_ns).min(most_ns);
        }
        class.curve.add(ran.items.iter().sum(), time_ns);
    }

    /// Records the failure of a batch with this many items.
    pub(crate) fn failed(&self, class: &[u32], items: u32) {
        self.learned.lock().class(class, self).fail(items);
    }

    /// Expected time of a request that runs alone, in nanoseconds, if known.
    pub(crate) fn alone_ns(&self, fit: &Fit) -> Option<f64> {
        self.learned.lock().classes.get(&fit.class)?.curve.estimate_ns(fit.items)
    }

    /// Records the verdict of a trial. Returns whether it decides if requests may run together.
    pub(crate) fn tried(&self, verdict: TrialVerdict) -> bool {
        let mut learned = self.learned.lock();
        let Trial::UnderWay(trials) = learned.trial else { return false };
        learned.trial = match verdict {
            TrialVerdict::Same => Trial::Passed,
            TrialVerdict::Differs => Trial::Failed,
            TrialVerdict::Failed if trials + 1 >= TRIALS_MAX => Trial::Failed,
            TrialVerdict::Failed => Trial::Open(trials + 1),
            TrialVerdict::Unclear => Trial::Open(trials),
        };
        self.has_failed.store(learned.trial == Trial::Failed, Ordering::Relaxed);
        !matches!(learned.trial, Trial::Open(_))
    }

    /// Stops batching for good, because the outputs of a batch could not be split.
    pub(crate) fn give_up(&self) {
        self.learned.lock().trial = Trial::Failed;
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Forgets all measured times, because the cost of runs has changed.
    pub(crate) fn forget_times(&self) {
        self.learned.lock().classes.clear();
    }
}

impl Learned {
    /// State of a class. The first class starts from the profile measured before the model was
    /// loaded.
    fn class(&mut self, key: &[u32], batcher: &Batcher) -> &mut Class {
        self.clock += 1;
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(key) {
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.classes.remove(&key));
        }
        // A profile does not separate classes.
        let is_first = self.classes.is_empty();
        let curve = || if is_first { Curve::from_profile(&batcher.profile) } else { Curve::default() };
        let fresh = || Class::new(curve());
        let class = self.classes.entry(key.into()).or_insert_with(fresh);
        class.used = self.clock;
        class
    }
}

#[cfg(test)]
mod tests {
    use super::super::WaitingRequest;
    use super::*;
    use weir_types::{Batching, BatchingMode, ElementType, Port, Signature};

    fn batcher(mode: BatchingMode) -> Batcher {
        let port = |name: &str| Port { name: name.into(), datatype: ElementType::Fp32, shape: vec![None] };
        let signature = Signature { inputs: vec![port("x")], outputs: vec![port("y")] };
        let rules = BatchRules::for_signature(&signature, &Batching { mode, ..Batching::default() })
            .unwrap()
            .unwrap();
        let mut profile = Profile::default();
        for items in [1, 2, 4, 8, 16, 32] {
            let time = profile.run_time_ns.entry(items).or_default();
            (0..2).for_each(|_| time.add(1_000_000));
        }
        Batcher::new(rules, profile)
    }

    fn choose(batcher: &Batcher, waiting: usize) -> BatchChoice {
        let slack_ns = f64::INFINITY;
        let candidates =
            vec![WaitingRequest { items: 1, bytes: 4, priority: 100, slack_ns, waited_ns: 0.0 }; waiting];
        let free_slots = 0;
        let is_busy = false;
        let others_priority = None;
        let others_slack_ns = f64::INFINITY;
        let situation = Situation {
            candidates: &candidates,
            waiting,
            free_slots,
            is_busy,
            others_priority,
            others_slack_ns,
            run_ns_max: f64::INFINITY,
        };
        batcher.choose(&[], &situation)
    }

    fn size(choice: &BatchChoice) -> usize {
        match choice {
            BatchChoice::Run(members) => members.len(),
            BatchChoice::TryOut | BatchChoice::Wait(_) => 0,
        }
    }

    #[test]
    fn requests_are_trialled_once_before_batching() {
        for (verdict, then) in [(TrialVerdict::Same, 8), (TrialVerdict::Differs, 1)] {
            let batcher = batcher(BatchingMode::Auto);
            assert_eq!(size(&choose(&batcher, 1)), 1, "one by itself is no occasion");
            assert_eq!(choose(&batcher, 8), BatchChoice::TryOut);
            assert_eq!(size(&choose(&batcher, 8)), 1, "that is under way");
            assert!(!batcher.tried(TrialVerdict::Unclear), "nothing was shown");
            assert_eq!(choose(&batcher, 8), BatchChoice::TryOut);
            assert!(batcher.tried(verdict));
            assert_eq!((size(&choose(&batcher, 8)), batcher.is_idle()), (then, then == 1));
        }
        let unclear = batcher(BatchingMode::Auto);
        for _ in 0..TRIALS_MAX {
            assert_eq!(choose(&unclear, 8), BatchChoice::TryOut);
            assert!(!unclear.is_idle());
            unclear.tried(TrialVerdict::Failed);
        }
        assert!(unclear.is_idle());
        assert_eq!(size(&choose(&batcher(BatchingMode::On), 8)), 8);
    }

    #[test]
    fn failed_batches_shrink_and_back_off() {
        let batcher = batcher(BatchingMode::On);
        // Batches of more than eight items run out of memory.
        let mut failures = Vec::new();
        for choice in 0..20_000 {
            let items = size(&choose(&batcher, 32));
            if items > 8 {
                failures.push(choice);
                batcher.failed(&[], items as u32);
            }
        }
        assert!(size(&choose(&batcher, 32)) >= 4, "smaller ones do not fail");
        assert!((3..12).contains(&failures.len()), "{failures:?}");
        let pauses: Vec<u32> = failures.windows(2).map(|pair| pair[1] - pair[0]).skip(1).collect();
        assert!(pauses.is_sorted(), "{failures:?}");
    }
}
