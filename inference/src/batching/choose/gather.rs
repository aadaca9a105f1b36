//! Who can run together without anybody being late.

use super::super::curve::Curve;
use super::{Candidate, Choice};

/// How much longer than expected a run may take without anybody being late.
pub(super) const MARGIN: f64 = 1.1;
/// The share of the time of runs one by one that a batch has to save.
pub(super) const SAVING_MIN: f64 = 0.05;
/// The bytes of inputs in a batch, at most.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// Requests that can run together, in the order in which they join; the first so many of them can, too.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) members: Vec<usize>,
    /// Whether somebody was left out so that nobody is late.
    pub(super) is_hurried: bool,
    /// As many as members: what the first so many are together.
    pub(super) steps: Vec<Step>,
}

/// A possible run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) items: u32,
    /// What it is expected to take.
    pub(super) time_ns: f64,
    /// What its members would take one after another.
    pub(super) alone_ns: f64,
    /// How long it may take so that nobody is late.
    pub(super) slack_ns: f64,
}

impl Batch {
    /// Run its members up to the one at `last`.
    pub(super) fn run(&self, last: usize) -> Choice {
        Choice::Run(self.members.iter().take(last.saturating_add(1)).copied().collect())
    }
}

impl Step {
    pub(super) fn pays(&self) -> bool {
        self.time_ns <= (1.0 - SAVING_MIN) * self.alone_ns
    }

    pub(super) fn cost_ns(&self) -> f64 {
        self.time_ns / f64::from(self.items)
    }
}

/// What a batch is made of, and how large it may get.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) candidates: &'a [Candidate],
    pub(super) members_max: usize,
    pub(super) items_max: u32,
    pub(super) others_slack_ns: f64,
    pub(super) curve: &'a Curve,
}

impl Places<'_> {
    /// Join those in `order`, each unless it would be too much, or somebody too late.
    pub(super) fn gather(&self, order: &[usize]) -> Batch {
        let mut batch = Batch::default();
        let (mut items, mut bytes, mut alone_ns, mut slack_ns) = (0_u32, 0_u64, 0.0, f64::INFINITY);
        for (position, one) in order.iter().filter_map(|at| Some((*at, self.candidates.get(*at)?))) {
            if batch.members.len() >= self.members_max.max(1) || items >= self.items_max {
                break;
            }
            let together = items.saturating_add(one.items);
            let times = (self.curve.estimate_ns(one.items), self.curve.estimate_ns(together));
            let ((Some(own_ns), Some(time_ns)), Some(bound_ns)) = (times, self.curve.bound_ns(together))
            else {
                continue;
            };
            // Those of other models who are late for a run of one are late anyway.
            let others_wait = batch.steps.first().is_some_and(|first| self.others_slack_ns >= first.time_ns);
            let others_slack_ns = if others_wait { self.others_slack_ns } else { f64::INFINITY };
            let is_late = bound_ns * MARGIN > slack_ns.min(one.slack_ns).min(others_slack_ns);
            let is_too_much = together > self.items_max || bytes.saturating_add(one.bytes) > BATCH_BYTES_MAX;
            if !batch.members.is_empty() && (is_late || is_too_much) {
                batch.is_hurried |= is_late;
                continue;
            }
            items = together;
            bytes = bytes.saturating_add(one.bytes);
            alone_ns += own_ns;
            // One who is too late already cannot be made late by anybody.
            if one.slack_ns >= own_ns {
                slack_ns = slack_ns.min(one.slack_ns);
            }
            batch.members.push(position);
            batch.steps.push(Step { items, time_ns, alone_ns, slack_ns });
        }
        batch
    }

    /// Those in `order` who would be in time for a run that takes so long.
    pub(super) fn patient(&self, order: &[usize], time_ns: f64) -> Vec<usize> {
        let is_patient = |at: &&usize| self.candidates.get(**at).is_some_and(|one| one.slack_ns >= time_ns);
        order.iter().filter(is_patient).copied().collect()
    }

    /// Leave out those for whom the first in line must not be passed by.
    pub(super) fn keep_as_urgent(&self, order: &mut Vec<usize>) {
        let most = self.candidates.first().map_or(0, |leader| leader.priority);
        order.retain(|at| self.candidates.get(*at).is_some_and(|one| one.priority <= most));
    }
}
