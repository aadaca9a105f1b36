//! Gathers requests that can run together without missing deadlines.

use super::super::curve::Curve;
use super::{BatchChoice, WaitingRequest};

/// Safety factor: a run may take this much longer than expected without missing a deadline.
pub(super) const MARGIN: f64 = 1.1;
/// The fraction of the sequential time that a batch must save.
pub(super) const SAVING_MIN: f64 = 0.05;
/// The most input bytes in a batch.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// Requests that can run together, in joining order. Every prefix can run together as well.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) members: Vec<usize>,
    /// Whether a request was left out to meet deadlines.
    pub(super) is_hurried: bool,
    /// One step per member: the batch of all members up to this one.
    pub(super) steps: Vec<CandidateRun>,
}

/// A possible run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CandidateRun {
    pub(super) items: u32,
    /// Expected time of the run.
    pub(super) time_ns: f64,
    /// Total time if the members ran one after another.
    pub(super) alone_ns: f64,
    /// The longest time that the run may take without missing a deadline.
    pub(super) slack_ns: f64,
}

impl Batch {
    /// The choice of all members up to the one at `last`.
    pub(super) fn run(&self, last: usize) -> BatchChoice {
        BatchChoice::Run(self.members.iter().take(last.saturating_add(1)).copied().collect())
    }
}

impl CandidateRun {
    pub(super) fn pays(&self) -> bool {
        self.time_ns <= (1.0 - SAVING_MIN) * self.alone_ns
    }

    pub(super) fn cost_ns(&self) -> f64 {
        self.time_ns / f64::from(self.items)
    }
}

/// Inputs and limits of a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchLimits<'a> {
    pub(super) candidates: &'a [WaitingRequest],
    pub(super) members_max: usize,
    pub(super) items_max: u32,
    pub(super) others_slack_ns: f64,
    pub(super) run_ns_max: f64,
    pub(super) curve: &'a Curve,
}

impl BatchLimits<'_> {
    /// Whether a run of `items` takes no longer than other tenants may have to wait.
    pub(super) fn is_short(&self, items: u32) -> bool {
        self.curve.bound_ns(items).is_some_and(|bound_ns| bound_ns <= self.run_ns_max)
    }

    /// Adds the requests in `order`, except those that would exceed a limit or miss a deadline.
    pub(super) fn gather(&self, order: &[usize]) -> Batch {
        let mut batch = Batch::default();
        let mut items = 0_u32;
        let mut bytes = 0_u64;
        let mut alone_ns = 0.0;
        let mut slack_ns = f64::INFINITY;
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
            // Requests of other models that would be late even after a run of one item do not
            // count.
            let others_wait = batch.steps.first().is_some_and(|first| self.others_slack_ns >= first.time_ns);
            let others_slack_ns = if others_wait { self.others_slack_ns } else { f64::INFINITY };
            let is_late = bound_ns * MARGIN > slack_ns.min(one.slack_ns).min(others_slack_ns);
            let is_too_much = together > self.items_max
                || bytes.saturating_add(one.bytes) > BATCH_BYTES_MAX
                || !self.is_short(together);
            if !batch.members.is_empty() && (is_late || is_too_much) {
                batch.is_hurried |= is_late;
                continue;
            }
            items = together;
            bytes = bytes.saturating_add(one.bytes);
            alone_ns += own_ns;
            // A request that is already late does not limit the batch.
            if one.slack_ns >= own_ns {
                slack_ns = slack_ns.min(one.slack_ns);
            }
            batch.members.push(position);
            batch.steps.push(CandidateRun { items, time_ns, alone_ns, slack_ns });
        }
        batch
    }

    /// The requests in `order` that would be in time for a run of `time_ns`.
    pub(super) fn patient(&self, order: &[usize], time_ns: f64) -> Vec<usize> {
        let is_patient = |at: &&usize| self.candidates.get(**at).is_some_and(|one| one.slack_ns >= time_ns);
        order.iter().filter(is_patient).copied().collect()
    }

    /// Removes requests that are less urgent than the first in line.
    pub(super) fn keep_as_urgent(&self, order: &mut Vec<usize>) {
        let most = self.candidates.first().map_or(0, |leader| leader.priority);
        order.retain(|at| self.candidates.get(*at).is_some_and(|one| one.priority <= most));
    }
}
