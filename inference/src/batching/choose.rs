//! Which of the requests that wait run now, together. Plain functions of plain data: no clock, no locks.
//!
//! A run is led by the request that is first in line. The others join in the order of their urgency, then of their deadlines, then of
//! their arrival, as long as
//! - the batch keeps within its bounds, and leaves one request for every other slot that is free;
//! - nobody in it is late for it who would be in time alone: deadlines are held against the expected time of the whole run;
//! - nobody of another model has to wait for one who is less urgent.
//!
//! Of the sizes that are left, the smallest is taken that does about as much in a second as the best of them; it is one request if more
//! together save next to nothing. Where many are about to be late, the first in line may be one that only a small run could save: it is
//! passed by if that run would make more of the others late than it saves.

use super::BatchRules;
use super::curve::Curve;

/// How much longer than expected a run may take without anybody being late.
const MARGIN: f64 = 1.1;
/// The share of the time of runs one by one that a batch has to save.
const SAVING_MIN: f64 = 0.05;
/// How far from the best a size may be for being smaller.
const TOLERANCE: f64 = 1.02;
/// The bytes of inputs in a batch, at most.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) items: u32,
    pub(crate) bytes: u64,
    /// Lower is more urgent.
    pub(crate) priority: u32,
    /// How long until its deadline, in nanoseconds; infinite if it has none.
    pub(crate) slack_ns: f64,
    /// How long it has waited, in nanoseconds.
    pub(crate) waited_ns: f64,
}

/// What a free slot finds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// Requests of one class, the first in line first, then in the order of their arrival.
    pub(crate) candidates: &'a [Candidate],
    /// Other slots that could run some of them now.
    pub(crate) free_slots: usize,
    /// Whether the device is running something.
    pub(crate) is_busy: bool,
    /// The most urgent of what waits for other models.
    pub(crate) others_priority: Option<u32>,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Choice {
    /// Run these together; positions among the candidates, never none.
    Run(Vec<usize>),
    /// Run the first in line alone, and use the occasion to find out whether its like may be run together.
    TryOut,
    /// Wait so many nanoseconds for more, or until something happens.
    Wait(f64),
}

/// Requests that can run together, in the order in which they join; the first so many of them can, too.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) members: Vec<usize>,
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
    /// How much longer than it can take it might go on without making anybody late: 1 for just long enough.
    pub(super) room: f64,
}

impl Step {
    /// What the run costs more than its members one by one; negative if it saves.
    pub(super) fn loss_ns(&self) -> f64 {
        self.time_ns - self.alone_ns
    }

    pub(super) fn pays(&self) -> bool {
        self.time_ns <= (1.0 - SAVING_MIN) * self.alone_ns
    }

    fn cost_ns(&self) -> f64 {
        self.time_ns / f64::from(self.items)
    }
}

/// Choose, where the time of a run of one is known. `probe` may ask for one of the steps so as to measure it.
pub(super) fn choose(
    situation: &Situation<'_>,
    curve: &Curve,
    rules: &BatchRules,
    mut probe: impl FnMut(&[Step]) -> Option<usize>,
) -> Choice {
    let order = order(situation, curve);
    let members_max = situation.candidates.len().div_ceil(situation.free_slots + 1);
    let all = gather(situation.candidates, &order, members_max, curve, rules);
    let (chosen, is_probe) = match probe(&all.steps) {
        Some(step) => (step, true),
        None => (best(&all.steps, rules), false),
    };
    let run =
        |batch: &Batch, last: usize| Choice::Run(batch.members.iter().take(last + 1).copied().collect());
    let Some(step) = all.steps.get(chosen).copied() else { return Choice::Run(vec![0]) };
    if is_probe {
        return run(&all, chosen);
    }
    if let Some((others, last)) =
        passing_by(situation.candidates, &order, (&all, chosen), members_max, curve, rules)
    {
        return run(&others, last);
    }
    let slack_ns = all.members.iter().take(chosen + 1).filter_map(|member| situation.candidates.get(*member));
    let slack_ns = slack_ns.map(|member| member.slack_ns).fold(f64::INFINITY, f64::min);
    match waits(situation, step, slack_ns, curve, rules) {
        Some(for_ns) => Choice::Wait(for_ns),
        None => run(&all, chosen),
    }
}

/// Who may run now, in the order in which they join: the first in line, and behind it those who can still be in time. One in line who
/// cannot be gives way to those of the same urgency who can.
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

fn can_be_in_time(one: &Candidate, curve: &Curve) -> bool {
    curve.estimate_ns(one.items).is_none_or(|time_ns| one.slack_ns >= time_ns)
}

/// Join those in `order`, each unless it would be too much, or somebody too late.
fn gather(
    candidates: &[Candidate],
    order: &[usize],
    members_max: usize,
    curve: &Curve,
    rules: &BatchRules,
) -> Batch {
    let mut batch = Batch::default();
    let (mut items, mut bytes, mut alone_ns, mut slack_ns) = (0_u32, 0_u64, 0.0, f64::INFINITY);
    for (position, one) in order.iter().filter_map(|position| Some((*position, candidates.get(*position)?))) {
        let is_first = batch.members.is_empty();
        if batch.members.len() >= members_max.max(1) {
            break;
        }
        let together = items.saturating_add(one.items);
        let Some(own_ns) = curve.estimate_ns(one.items) else { continue };
        let (Some(time_ns), Some(bound_ns)) = (curve.estimate_ns(together), curve.bound_ns(together)) else {
            continue;
        };
        let is_late = bound_ns * MARGIN > slack_ns.min(one.slack_ns);
        let is_too_much = together > rules.size_max || bytes.saturating_add(one.bytes) > BATCH_BYTES_MAX;
        if !is_first && (is_late || is_too_much) {
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
        batch.steps.push(Step { items, time_ns, alone_ns, room: slack_ns / bound_ns });
    }
    batch
}

/// The smallest of the steps that do about as much as the best of them.
fn best(steps: &[Step], rules: &BatchRules) -> usize {
    let available = steps.last().map_or(0, |step| step.items);
    let paying = steps.iter().enumerate().skip(1).filter(|(position, step)| {
        let next = steps.get(position + 1).map_or(u32::MAX, |next| next.items);
        step.pays() && is_preferred(step.items, next, available, rules)
    });
    let least_ns = paying.clone().map(|(_, step)| step.cost_ns()).fold(f64::INFINITY, f64::min);
    let mut good = paying.filter(|(_, step)| step.cost_ns() <= least_ns * TOLERANCE);
    good.next().map_or(0, |(position, _)| position)
}

/// Whether a run may have so many items, where the next larger one would have `next`: as near below a preferred size as it gets, or any
/// number while fewer wait than the smallest of those.
fn is_preferred(items: u32, next: u32, available: u32, rules: &BatchRules) -> bool {
    let smallest = rules.preferred_sizes.first();
    smallest.is_none_or(|smallest| available < *smallest)
        || rules.preferred_sizes.iter().any(|size| items <= *size && next > *size)
}

/// The run that leaves out those who would keep it small, if that leaves more in time.
fn passing_by(
    candidates: &[Candidate],
    order: &[usize],
    (kept, chosen): (&Batch, usize),
    members_max: usize,
    curve: &Curve,
    rules: &BatchRules,
) -> Option<(Batch, usize)> {
    let first = kept.steps.get(chosen)?;
    let leader = candidates.first()?;
    let of = |position: &usize| candidates.get(*position);
    // What would be run if there were no deadlines.
    let unhurried: Vec<Candidate> =
        candidates.iter().map(|one| Candidate { slack_ns: f64::INFINITY, ..*one }).collect();
    let wanted = gather(&unhurried, order, members_max, curve, rules);
    let wanted = wanted.steps.get(best(&wanted.steps, rules))?;
    if wanted.items <= first.items {
        return None;
    }
    let in_time = |position: &&usize| {
        of(position)
            .is_some_and(|one| one.slack_ns >= wanted.time_ns * MARGIN && one.priority <= leader.priority)
    };
    let others: Vec<usize> = order.iter().filter(in_time).copied().collect();
    let others = gather(candidates, &others, members_max, curve, rules);
    let last = best(&others.steps, rules);
    let second = others.steps.get(last)?;
    let run = others.members.get(..=last)?;
    let both_ns = (first.time_ns + second.time_ns) * MARGIN;
    let late = run.iter().filter(|position| of(position).is_some_and(|one| one.slack_ns < both_ns)).count();
    let saved = kept.members.iter().take(chosen + 1).filter(|position| !run.contains(position)).count();
    (late > saved).then_some((others, last))
}

/// How long to wait for more; none to run `step` now. Only where the owner allows it, and never while nothing runs.
fn waits(
    situation: &Situation<'_>,
    step: Step,
    slack_ns: f64,
    curve: &Curve,
    rules: &BatchRules,
) -> Option<f64> {
    let delay_max_ns = rules.queue_delay_max.as_nanos() as f64;
    if !situation.is_busy || delay_max_ns == 0.0 {
        return None;
    }
    let goal = rules.preferred_sizes.last().copied().unwrap_or(rules.size_max);
    let goal_ns = curve.estimate_ns(goal)?;
    let grows = step.items < goal && goal_ns < (1.0 - SAVING_MIN) * step.cost_ns() * f64::from(goal);
    let waited_ns = situation.candidates.iter().map(|one| one.waited_ns).fold(0.0, f64::max);
    let for_ns = (delay_max_ns - waited_ns).min(slack_ns - goal_ns * MARGIN);
    (grows && for_ns > 0.0).then_some(for_ns)
}
