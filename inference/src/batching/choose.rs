//! Chooses which waiting requests run now, as one batch. Pure functions of plain data: no clock, no
//! locks.
//!
//! The first request in line leads the run. Other requests join by urgency, then deadline, then
//! arrival, under these conditions:
//! - The batch stays within its limits, and leaves one request for every other free slot.
//! - No member misses a deadline that it would meet alone; deadlines are compared with the expected
//!   time of the whole run.
//! - No request for another model of the tenant waits for a less urgent request, and no request for
//!   another model misses its deadline because others joined.
//! - While several tenants use the device, a run of more than one request takes at most a
//!   limit or 1.5 times the run time of its first request alone, whichever is longer, since the other
//!   tenants' requests wait for it.
//!
//! Of the remaining sizes, the choice is the one after which all waiting requests finish soonest,
//! assuming that the rest runs at the best size that it can reach. The run has one request if more
//! together save next to nothing. Under overload, the first in line may be a request that only a
//! small run could finish in time: it is skipped if that run would make more of the other requests
//! late than it saves.

mod gather;

use super::BatchRules;
use super::curve::Curve;
use gather::{Batch, BatchLimits, CandidateRun, MARGIN, SAVING_MIN};

/// The fraction of its time by which a run may exceed the best run in exchange for being smaller.
const TOLERANCE: f64 = 0.02;
/// The longest run while several tenants use the device, in runs of the first in line alone. Models
/// whose runs hardly take longer with more requests are batched in any case.
const SHARED_RUN: f64 = 1.5;
/// A waiting request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitingRequest {
    pub(crate) items: u32,
    pub(crate) bytes: u64,
    /// Lower is more urgent.
    pub(crate) priority: u32,
    /// Time until its deadline, in nanoseconds; infinite without a deadline.
    pub(crate) slack_ns: f64,
    /// Time that the request has waited, in nanoseconds.
    pub(crate) waited_ns: f64,
}

/// The state of the queue when a slot becomes free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// Requests of one class: the first in line, followed by the others in the order of their
    /// arrival.
    pub(crate) candidates: &'a [WaitingRequest],
    /// All requests that wait for the model, including those that are not candidates.
    pub(crate) waiting: usize,
    /// Other slots that could run some of the candidates now.
    pub(crate) free_slots: usize,
    /// Whether the device is running something.
    pub(crate) is_busy: bool,
    /// The most urgent priority among requests that wait for other models of the tenant.
    pub(crate) others_priority: Option<u32>,
    /// The longest time that the next requests for other models can wait, in nanoseconds; infinite
    /// if no other model waits for this slot.
    pub(crate) others_slack_ns: f64,
    /// The longest time that a run of more than one short request may take, in nanoseconds; infinite
    /// while no other tenant uses the device.
    pub(crate) run_ns_max: f64,
}

/// Decision for a free slot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BatchChoice {
    /// Run these requests together: positions among the candidates, at least one.
    Run(Vec<usize>),
    /// Run the first in line alone, followed by a trial of whether requests of its class can be
    /// batched.
    TryOut,
    /// Wait this many nanoseconds for more requests, or until the queue changes.
    Wait(f64),
}

/// Chooses a run of at most `items_max` items; the time of a run of one item must be known. `probe`
/// receives the number of available items, and may request a run of a certain size in order to
/// measure it.
pub(super) fn choose(
    situation: &Situation<'_>,
    curve: &Curve,
    rules: &BatchRules,
    items_max: u32,
    probe: impl FnOnce(u32) -> Option<u32>,
) -> BatchChoice {
    let candidates = situation.candidates;
    let order = order(situation, curve);
    let members_max = candidates.len().div_ceil(situation.free_slots + 1);
    let others_slack_ns = situation.others_slack_ns;
    let alone_ns = candidates.first().and_then(|leader| curve.bound_ns(leader.items));
    let run_ns_max = situation.run_ns_max.max(SHARED_RUN * alone_ns.unwrap_or_default());
    let places = BatchLimits { candidates, members_max, items_max, others_slack_ns, run_ns_max, curve };
    let first_items = order.iter().take(members_max).filter_map(|position| candidates.get(*position));
    let available = first_items.fold(0_u32, |items, one| items.saturating_add(one.items)).min(items_max);
    if let Some(batch) =
        probe(available).and_then(|size| measuring(&places, &order, size, is_overloaded(situation, curve)))
    {
        return batch.run(usize::MAX);
    }
    let all = places.gather(&order);
    let rest_max = rest_max(situation, available, members_max);
    let chosen = best(&all.steps, rest_max, &places, rules);
    if all.is_hurried
        && let Some((others, last)) =
            passing_by(&places, &order, (&all, chosen, rest_max), is_overloaded(situation, curve), rules)
    {
        return others.run(last);
    }
    let Some(step) = all.steps.get(chosen) else { return BatchChoice::Run(vec![0]) };
    match waits(situation, step, &places, rules) {
        Some(for_ns) => BatchChoice::Wait(for_ns),
        None => all.run(chosen),
    }
}

/// Whether some measured size up to `items_max` costs less per item than a run of one item, by
/// enough to be worth batching.
pub(super) fn pays(curve: &Curve, items_max: u32) -> bool {
    let least_ns = curve.least_cost_ns(|size| size > 1 && size <= items_max);
    least_ns
        .zip(curve.estimate_ns(1))
        .is_some_and(|(least_ns, one_ns)| least_ns <= (1.0 - SAVING_MIN) * one_ns)
}

/// Candidates that may run now, in joining order: the first in line, followed by those that can
/// still meet their deadlines. A first in line that cannot meet its deadline yields to requests of
/// the same urgency that can.
fn order(situation: &Situation<'_>, curve: &Curve) -> Vec<usize> {
    let Some(leader) = situation.candidates.first() else { return Vec::new() };
    let others_priority = situation.others_priority.unwrap_or(u32::MAX).max(leader.priority);
    let mut order: Vec<usize> = (1..situation.candidates.len()).collect();
    let of = |position: &usize| situation.candidates.get(*position);
    order.retain(|position| {
        of(position).is_some_and(|one| one.priority <= others_priority && can_be_in_time(one, curve))
    });
    order.sort_by(|a, b| {
        let key = |position: &usize| {
            of(position).map_or((u32::MAX, f64::INFINITY), |one| (one.priority, one.slack_ns))
        };
        let ((a_priority, a_slack_ns), (b_priority, b_slack_ns)) = (key(a), key(b));
        a_priority.cmp(&b_priority).then(a_slack_ns.total_cmp(&b_slack_ns)).then(a.cmp(b))
    });
    let gives_way = !can_be_in_time(leader, curve)
        && order.first().and_then(of).is_some_and(|next| next.priority == leader.priority);
    if !gives_way {
        order.insert(0, 0);
    }
    order
}

fn can_be_in_time(one: &WaitingRequest, curve: &Curve) -> bool {
    curve.estimate_ns(one.items).is_none_or(|time_ns| one.slack_ns >= time_ns)
}

/// A run of about `size` items, if it makes no request late that would be in time.
fn measuring(places: &BatchLimits<'_>, order: &[usize], size: u32, is_overloaded: bool) -> Option<Batch> {
    let time_ns = places.curve.bound_ns(size)? * MARGIN;
    let mut patient = places.patient(order, time_ns);
    let is_made_late = |one: &WaitingRequest| {
        let own_ns = places.curve.estimate_ns(one.items).unwrap_or_default();
        (own_ns..time_ns + own_ns).contains(&one.slack_ns)
    };
    let mut others =
        order.iter().filter(|at| !patient.contains(at)).filter_map(|at| places.candidates.get(*at));
    if !is_overloaded && others.any(is_made_late) {
        return None;
    }
    if patient.first() != order.first() {
        places.keep_as_urgent(&mut patient);
    }
    let batch = BatchLimits { items_max: size, ..*places }.gather(&patient);
    let items = batch.steps.last()?.items;
    (items > Curve::near(size) && items <= size).then_some(batch)
}

/// Estimated items of all waiting requests, at the members' average: no later run can be larger.
fn rest_max(situation: &Situation<'_>, items: u32, members: usize) -> u32 {
    let waiting = u64::try_from(situation.waiting).unwrap_or(u64::MAX);
    let members = u64::try_from(members).unwrap_or(u64::MAX).max(1);
    let rest_max = waiting.saturating_mul(u64::from(items)).div_ceil(members);
    u32::try_from(rest_max).unwrap_or(u32::MAX)
}

/// The step after which all waiting requests finish soonest, if the remaining requests run at the
/// least cost per item that runs of at most `rest_max` items have. Of nearly equal steps, the
/// smallest.
fn best(steps: &[CandidateRun], rest_max: u32, places: &BatchLimits<'_>, rules: &BatchRules) -> usize {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return 0 };
    // Sizes that the waiting requests cannot reach do not count: requests would wait for a saving
    // that never happens.
    let is_short = |size: u32| places.is_short(size);
    let sizes = |size: u32| match &rules.preferred_sizes[..] {
        [] => size <= rules.size_max.min(rest_max) && is_short(size),
        preferred => size == 1 || (preferred.contains(&size) && size <= rest_max && is_short(size)),
    };
    let least_ns = places.curve.least_cost_ns(sizes).unwrap_or(f64::INFINITY).min(first.cost_ns());
    // Time of a run beyond the least cost of its items.
    let excess_ns = |step: &CandidateRun| step.time_ns - f64::from(step.items) * least_ns;
    let paying = steps.iter().enumerate().skip(1).filter(|(position, step)| {
        let next = steps.get(position + 1).map_or(u32::MAX, |next| next.items);
        step.pays() && is_preferred(step.items, next, last.items, rules)
    });
    let least_excess_ns = paying.clone().map(|(_, step)| excess_ns(step)).fold(excess_ns(first), f64::min);
    let is_good = |step: &CandidateRun| excess_ns(step) - least_excess_ns <= TOLERANCE * step.time_ns;
    let mut good = std::iter::once((0, first)).chain(paying).filter(|(_, step)| is_good(step));
    good.next().map_or(0, |(position, _)| position)
}

/// Whether a run may have `items` items, where the next larger run would have `next`. True for the
/// largest run within a preferred size, and for any size while fewer items wait than the smallest
/// preferred size.
fn is_preferred(items: u32, next: u32, available: u32, rules: &BatchRules) -> bool {
    let smallest = rules.preferred_sizes.first();
    smallest.is_none_or(|smallest| available < *smallest)
        || rules.preferred_sizes.iter().any(|size| *size <= available && items <= *size && next > *size)
}

/// The run without the requests that would keep it small, if that leaves more requests in time.
fn passing_by(
    places: &BatchLimits<'_>,
    order: &[usize],
    (kept, chosen, rest_max): (&Batch, usize, u32),
    is_overloaded: bool,
    rules: &BatchRules,
) -> Option<(Batch, usize)> {
    let first = kept.steps.get(chosen)?;
    // The run without any deadlines.
    let unhurried = |one: &WaitingRequest| WaitingRequest { slack_ns: f64::INFINITY, ..*one };
    let unhurried: Vec<WaitingRequest> = places.candidates.iter().map(unhurried).collect();
    let wanted = BatchLimits { candidates: &unhurried, ..*places }.gather(order);
    let wanted = wanted.steps.get(best(&wanted.steps, rest_max, places, rules))?;
    if wanted.items <= first.items {
        return None;
    }
    let mut patient = places.patient(order, wanted.time_ns * MARGIN);
    places.keep_as_urgent(&mut patient);
    let others = places.gather(&patient);
    let last = best(&others.steps, rest_max, places, rules);
    let run = others.members.get(..=last)?;
    let second = others.steps.get(last)?;
    // Under overload, a run with a lower throughput makes other requests late that are not examined
    // here.
    if is_overloaded && second.cost_ns() < first.cost_ns() {
        return Some((others, last));
    }
    let both_ns = (first.time_ns + second.time_ns) * MARGIN;
    let late = run.len() - places.patient(run, both_ns).len();
    let saved = kept.members.iter().take(chosen + 1).filter(|position| !run.contains(position)).count();
    (late > saved).then_some((others, last))
}

/// Whether more requests wait than can meet their deadlines, even at the best size.
fn is_overloaded(situation: &Situation<'_>, curve: &Curve) -> bool {
    let longest_ns = situation.candidates.iter().map(|one| one.slack_ns).fold(0.0, f64::max);
    let least_ns = curve.least_cost_ns(|_| true).unwrap_or_default();
    situation.waiting as f64 * least_ns > longest_ns
}

/// Time to wait for more requests, in nanoseconds; `None`: run `step` now. Waits only if the owner
/// allows a delay and the device is busy.
fn waits(
    situation: &Situation<'_>,
    step: &CandidateRun,
    places: &BatchLimits<'_>,
    rules: &BatchRules,
) -> Option<f64> {
    let delay_max_ns = rules.queue_delay_max.as_nanos() as f64;
    if !situation.is_busy || delay_max_ns == 0.0 {
        return None;
    }
    let goal = rules.preferred_sizes.last().copied().unwrap_or(rules.size_max);
    let goal_ns = places.curve.estimate_ns(goal)?;
    let may_grow = step.items < goal && places.is_short(goal);
    let grows = may_grow && goal_ns < (1.0 - SAVING_MIN) * step.cost_ns() * f64::from(goal);
    let waited_ns = situation.candidates.iter().map(|one| one.waited_ns).fold(0.0, f64::max);
    let for_ns = (delay_max_ns - waited_ns).min(step.slack_ns - goal_ns * MARGIN);
    (grows && for_ns > 0.0).then_some(for_ns)
}

#[cfg(test)]
mod tests;
