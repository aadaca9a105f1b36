//! Which of the requests that wait run now, together. Plain functions of plain data: no clock, no locks.
//!
//! A run is led by the request that is first in line. The others join in the order of their urgency, then of their deadlines, then of
//! their arrival, as long as
//! - the batch keeps within its bounds, and leaves one request for every other slot that is free;
//! - nobody in it is late for it who would be in time alone: deadlines are held against the expected time of the whole run;
//! - nobody of another model has to wait for one who is less urgent, or is late because others joined.
//!
//! Of the sizes that are left, the one is taken after which all that waits is soonest done, if the rest is run at the best size there is; it
//! is one request if more together save next to nothing. Where many are about to be late, the first in line may be one that only a small run could save: it is
//! passed by if that run would make more of the others late than it saves.

use super::BatchRules;
use super::curve::Curve;

/// How much longer than expected a run may take without anybody being late.
const MARGIN: f64 = 1.1;
/// The share of the time of runs one by one that a batch has to save.
const SAVING_MIN: f64 = 0.05;
/// How far from the best a run may be for being smaller.
const TOLERANCE: f64 = 1.01;
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
    /// How many wait for the model, those that are not looked at included.
    pub(crate) waiting: usize,
    /// Other slots that could run some of them now.
    pub(crate) free_slots: usize,
    /// Whether the device is running something.
    pub(crate) is_busy: bool,
    /// The most urgent of what waits for other models.
    pub(crate) others_priority: Option<u32>,
    /// How long those may wait that are next in line for other models, in nanoseconds; infinite if nobody waits for this slot.
    pub(crate) others_slack_ns: f64,
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
struct Batch {
    members: Vec<usize>,
    /// Whether somebody was left out so that nobody is late.
    is_hurried: bool,
    /// As many as members: what the first so many are together.
    steps: Vec<Step>,
}

/// A possible run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    items: u32,
    /// What it is expected to take.
    time_ns: f64,
    /// What its members would take one after another.
    alone_ns: f64,
    /// How long it may take so that nobody is late.
    slack_ns: f64,
}

impl Batch {
    /// Run its members up to the one at `last`.
    fn run(&self, last: usize) -> Choice {
        Choice::Run(self.members.iter().take(last.saturating_add(1)).copied().collect())
    }
}

impl Step {
    fn pays(&self) -> bool {
        self.time_ns <= (1.0 - SAVING_MIN) * self.alone_ns
    }

    fn cost_ns(&self) -> f64 {
        self.time_ns / f64::from(self.items)
    }
}

/// Choose, where the time of a run of one is known; of `items_max` items at most. `probe` is told how many items there are, and may ask for a run of a size so as to
/// measure it.
pub(super) fn choose(
    situation: &Situation<'_>,
    curve: &Curve,
    rules: &BatchRules,
    items_max: u32,
    probe: impl FnOnce(u32) -> Option<u32>,
) -> Choice {
    let candidates = situation.candidates;
    let order = order(situation, curve);
    let members_max = candidates.len().div_ceil(situation.free_slots + 1);
    let others_slack_ns = situation.others_slack_ns;
    let places = Places { candidates, members_max, items_max, others_slack_ns, curve };
    let first_items = order.iter().take(members_max).filter_map(|position| candidates.get(*position));
    let available = first_items.fold(0_u32, |items, one| items.saturating_add(one.items)).min(items_max);
    if let Some(batch) =
        probe(available).and_then(|size| measuring(&places, &order, size, is_overloaded(situation, curve)))
    {
        return batch.run(usize::MAX);
    }
    let all = places.gather(&order);
    let chosen = best(&all.steps, curve, rules);
    if all.is_hurried
        && let Some((others, last)) =
            passing_by(&places, &order, (&all, chosen), is_overloaded(situation, curve), rules)
    {
        return others.run(last);
    }
    let Some(step) = all.steps.get(chosen) else { return Choice::Run(vec![0]) };
    match waits(situation, step, curve, rules) {
        Some(for_ns) => Choice::Wait(for_ns),
        None => all.run(chosen),
    }
}

/// Whether a run of any measured size up to `items_max` costs less for each item than a run of one, by enough to be worth it.
pub(super) fn pays(curve: &Curve, items_max: u32) -> bool {
    let least_ns = curve.least_cost_ns(|size| size > 1 && size <= items_max);
    least_ns
        .zip(curve.estimate_ns(1))
        .is_some_and(|(least_ns, one_ns)| least_ns <= (1.0 - SAVING_MIN) * one_ns)
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

/// What a batch is made of, and how large it may get.
struct Places<'a> {
    candidates: &'a [Candidate],
    members_max: usize,
    items_max: u32,
    others_slack_ns: f64,
    curve: &'a Curve,
}

impl Places<'_> {
    /// Join those in `order`, each unless it would be too much, or somebody too late.
    fn gather(&self, order: &[usize]) -> Batch {
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
    fn patient(&self, order: &[usize], time_ns: f64) -> Vec<usize> {
        let is_patient = |at: &&usize| self.candidates.get(**at).is_some_and(|one| one.slack_ns >= time_ns);
        order.iter().filter(is_patient).copied().collect()
    }

    /// Leave out those for whom the first in line must not be passed by.
    fn keep_as_urgent(&self, order: &mut Vec<usize>) {
        let most = self.candidates.first().map_or(0, |leader| leader.priority);
        order.retain(|at| self.candidates.get(*at).is_some_and(|one| one.priority <= most));
    }
}

/// A run of about `size`, if it makes nobody late who would be in time.
fn measuring(places: &Places<'_>, order: &[usize], size: u32, is_overloaded: bool) -> Option<Batch> {
    let time_ns = places.curve.bound_ns(size)? * MARGIN;
    let mut patient = places.patient(order, time_ns);
    let is_made_late = |one: &Candidate| {
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
    let batch = Places { items_max: size, ..*places }.gather(&patient);
    let items = batch.steps.last()?.items;
    (items > Curve::near(size) && items <= size).then_some(batch)
}

/// The step after which what waits is soonest done, if what it leaves is done at the least cost there is; the smallest of those that are
/// about as good.
fn best(steps: &[Step], curve: &Curve, rules: &BatchRules) -> usize {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return 0 };
    let sizes = |size: u32| match &rules.preferred_sizes[..] {
        [] => size <= rules.size_max,
        preferred => size == 1 || preferred.contains(&size),
    };
    let least_ns = curve.least_cost_ns(sizes).unwrap_or(f64::INFINITY).min(first.cost_ns());
    let done_ns = |step: &Step| step.time_ns + f64::from(last.items - step.items) * least_ns;
    let paying = steps.iter().enumerate().skip(1).filter(|(position, step)| {
        let next = steps.get(position + 1).map_or(u32::MAX, |next| next.items);
        step.pays() && is_preferred(step.items, next, last.items, rules)
    });
    let soonest_ns = paying.clone().map(|(_, step)| done_ns(step)).fold(done_ns(first), f64::min);
    let mut good =
        std::iter::once((0, first)).chain(paying).filter(|(_, step)| done_ns(step) <= soonest_ns * TOLERANCE);
    good.next().map_or(0, |(position, _)| position)
}

/// Whether a run may have so many items, where the next larger one would have `next`: as near below a preferred size as it gets, or any
/// number while fewer wait than the smallest of those.
fn is_preferred(items: u32, next: u32, available: u32, rules: &BatchRules) -> bool {
    let smallest = rules.preferred_sizes.first();
    smallest.is_none_or(|smallest| available < *smallest)
        || rules.preferred_sizes.iter().any(|size| *size <= available && items <= *size && next > *size)
}

/// The run that leaves out those who would keep it small, if that leaves more in time.
fn passing_by(
    places: &Places<'_>,
    order: &[usize],
    (kept, chosen): (&Batch, usize),
    is_overloaded: bool,
    rules: &BatchRules,
) -> Option<(Batch, usize)> {
    let first = kept.steps.get(chosen)?;
    // What would be run if there were no deadlines.
    let unhurried = |one: &Candidate| Candidate { slack_ns: f64::INFINITY, ..*one };
    let unhurried: Vec<Candidate> = places.candidates.iter().map(unhurried).collect();
    let wanted = Places { candidates: &unhurried, ..*places }.gather(order);
    let wanted = wanted.steps.get(best(&wanted.steps, places.curve, rules))?;
    if wanted.items <= first.items {
        return None;
    }
    let mut patient = places.patient(order, wanted.time_ns * MARGIN);
    places.keep_as_urgent(&mut patient);
    let others = places.gather(&patient);
    let last = best(&others.steps, places.curve, rules);
    let run = others.members.get(..=last)?;
    let second = others.steps.get(last)?;
    // Where not all can be in time anyway, a run that does less for its time makes others late who are not looked at.
    if is_overloaded && second.cost_ns() < first.cost_ns() {
        return Some((others, last));
    }
    let both_ns = (first.time_ns + second.time_ns) * MARGIN;
    let late = run.len() - places.patient(run, both_ns).len();
    let saved = kept.members.iter().take(chosen + 1).filter(|position| !run.contains(position)).count();
    (late > saved).then_some((others, last))
}

/// Whether more wait than can be in time, at the best size there is.
fn is_overloaded(situation: &Situation<'_>, curve: &Curve) -> bool {
    let longest_ns = situation.candidates.iter().map(|one| one.slack_ns).fold(0.0, f64::max);
    let least_ns = curve.least_cost_ns(|_| true).unwrap_or_default();
    situation.waiting as f64 * least_ns > longest_ns
}

/// How long to wait for more; none to run `step` now. Only where the owner allows it, and never while nothing runs.
fn waits(situation: &Situation<'_>, step: &Step, curve: &Curve, rules: &BatchRules) -> Option<f64> {
    let delay_max_ns = rules.queue_delay_max.as_nanos() as f64;
    if !situation.is_busy || delay_max_ns == 0.0 {
        return None;
    }
    let goal = rules.preferred_sizes.last().copied().unwrap_or(rules.size_max);
    let goal_ns = curve.estimate_ns(goal)?;
    let grows = step.items < goal && goal_ns < (1.0 - SAVING_MIN) * step.cost_ns() * f64::from(goal);
    let waited_ns = situation.candidates.iter().map(|one| one.waited_ns).fold(0.0, f64::max);
    let for_ns = (delay_max_ns - waited_ns).min(step.slack_ns - goal_ns * MARGIN);
    (grows && for_ns > 0.0).then_some(for_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn rules(size_max: u32, preferred_sizes: &[u32], delay_us: u64) -> BatchRules {
        BatchRules {
            is_vouched: true,
            size_max,
            preferred_sizes: preferred_sizes.to_vec(),
            queue_delay_max: Duration::from_micros(delay_us),
            mask: None,
            padded: vec![false],
        }
    }

    /// Runs of which each item takes `each` beside what the run takes by itself.
    fn curve(fixed: u64, each: u64, size_max: u32) -> Curve {
        let mut curve = Curve::default();
        for items in (0..11).map(|power| 1 << power).filter(|items| *items <= size_max) {
            (0..2).for_each(|_| curve.add(items, fixed + each * u64::from(items)));
        }
        curve
    }

    fn one(slack_ns: f64) -> Candidate {
        Candidate { items: 1, bytes: 4, priority: 100, slack_ns, waited_ns: 0.0 }
    }

    fn situation(candidates: &[Candidate]) -> Situation<'_> {
        let waiting = candidates.len();
        let (others_priority, others_slack_ns) = (None, f64::INFINITY);
        Situation { candidates, waiting, free_slots: 0, is_busy: false, others_priority, others_slack_ns }
    }

    fn chosen(candidates: &[Candidate], curve: &Curve, rules: &BatchRules) -> Vec<usize> {
        match choose(&situation(candidates), curve, rules, rules.size_max, |_| None) {
            Choice::Run(members) => members,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn those_with_the_nearest_deadlines_join_first() {
        let slacks = [f64::INFINITY, 9e6, f64::INFINITY, 5e6, 7e6];
        assert_eq!(chosen(&slacks.map(one), &curve(1_000, 1, 32), &rules(3, &[], 0)), [0, 3, 4]);
    }

    #[test]
    fn runs_are_brought_to_preferred_sizes() {
        let (flat, preferred) = (curve(1_000, 1, 32), rules(32, &[4, 8], 0));
        for (waiting, runs) in [(1, 1), (3, 3), (5, 4), (7, 4), (8, 8), (20, 8)] {
            let candidates = vec![one(f64::INFINITY); waiting];
            assert_eq!(chosen(&candidates, &flat, &preferred).len(), runs, "{waiting} wait");
        }
    }

    #[test]
    fn nobody_of_another_model_is_late_because_others_joined() {
        let (curve, candidates) = (curve(1_000, 100, 32), vec![one(f64::INFINITY); 16]);
        for (others_slack_ns, runs) in [(f64::INFINITY, 16), (2_000.0, 8), (1_150.0, 1), (900.0, 16)] {
            let situation = Situation { others_slack_ns, ..situation(&candidates) };
            let Choice::Run(run) = choose(&situation, &curve, &rules(32, &[], 0), 32, |_| None) else {
                panic!()
            };
            assert_eq!(run.len(), runs, "{others_slack_ns}");
        }
    }

    #[test]
    fn one_who_would_keep_many_small_is_passed_by_only_if_that_saves_more() {
        // Alone 1100, all sixteen 2600.
        let curve = curve(1_000, 100, 32);
        let many = |slack_ns| {
            let mut candidates = vec![one(slack_ns); 16];
            candidates.insert(0, one(1_300.0));
            candidates
        };
        assert_eq!(
            chosen(&many(3_500.0), &curve, &rules(32, &[], 0)).len(),
            16,
            "sixteen would be late for one"
        );
        assert_eq!(chosen(&many(9_000.0), &curve, &rules(32, &[], 0)), [0], "nobody would be");
        // One of greater urgency is not passed by for others.
        let mut urgent = many(3_500.0);
        urgent[0].priority = 1;
        assert_eq!(chosen(&urgent, &curve, &rules(32, &[], 0)), [0]);
    }

    prop_compose! {
        fn any_candidate()(items in 1_u32..9, priority in 1_u32..4, slack_ns in prop_oneof![0.0..20_000.0, Just(f64::INFINITY)], waited_ns in 0.0..2e6) -> Candidate {
            Candidate { items, bytes: u64::from(items) * 4, priority, slack_ns, waited_ns }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_chosen_keeps_its_promises(
            mut candidates in prop::collection::vec(any_candidate(), 1..40),
            (fixed, each) in (1_u64..5_000, 0_u64..500),
            (size_max, free_slots) in (2_u32..40, 0_usize..4),
            preferred in prop::collection::btree_set(1_u32..40, 0..3),
            delay_us in prop_oneof![Just(0), 1_u64..2_000],
            others_slack_ns in prop_oneof![0.0..20_000.0, Just(f64::INFINITY)],
            (is_busy, others_priority, measured) in (any::<bool>(), prop::option::of(1_u32..4), prop::option::of(2_u32..40)),
        ) {
            // In line by priority.
            candidates.sort_by_key(|candidate| candidate.priority);
            let preferred: Vec<u32> = preferred.into_iter().filter(|size| *size <= size_max).collect();
            let (rules, curve) = (rules(size_max, &preferred, delay_us), curve(fixed, each, size_max));
            let situation = Situation { free_slots, is_busy, others_priority, others_slack_ns, ..situation(&candidates) };
            let probe = |available: u32| measured.filter(|size| *size <= available);
            match choose(&situation, &curve, &rules, size_max, probe) {
                Choice::TryOut => prop_assert!(false, "that is not decided here"),
                Choice::Wait(for_ns) => {
                    prop_assert!(is_busy && delay_us > 0, "it waits while nothing runs, or unasked");
                    let waited_ns = candidates.iter().map(|one| one.waited_ns).fold(0.0, f64::max);
                    prop_assert!(for_ns > 0.0 && waited_ns + for_ns <= delay_us as f64 * 1e3 + 1e-3);
                }
                Choice::Run(run) => {
                    let members: Vec<Candidate> = run.iter().map(|at| candidates[*at]).collect();
                    let mut unique = run.clone();
                    unique.sort_unstable();
                    unique.dedup();
                    prop_assert!(!run.is_empty() && unique.len() == run.len());
                    prop_assert!(run.len() <= candidates.len().div_ceil(free_slots + 1), "others have nothing left");
                    let items: u32 = members.iter().map(|one| one.items).sum();
                    prop_assert!(run.len() == 1 || items <= size_max);
                    for one in &members {
                        let alone_ns = curve.estimate_ns(one.items).unwrap();
                        let together_ns = curve.bound_ns(items).unwrap();
                        let in_time = one.slack_ns < alone_ns || one.slack_ns >= together_ns * MARGIN;
                        prop_assert!(run.len() == 1 || in_time, "{one:?} is late for the others");
                        let most = others_priority.unwrap_or(u32::MAX).max(candidates[0].priority);
                        prop_assert!(one.priority <= most, "another model waits for one less urgent");
                    }
                    let first_ns = curve.estimate_ns(members[0].items).unwrap();
                    let in_time = others_slack_ns < first_ns || curve.bound_ns(items).unwrap() * MARGIN <= others_slack_ns;
                    prop_assert!(run.len() == 1 || in_time, "another model is late for a batch");
                    // The first in line is passed by for no one less urgent.
                    let first = candidates[0].priority;
                    prop_assert!(run.contains(&0) || members[0].priority == first, "it is passed by");
                }
            }
        }
    }
}
