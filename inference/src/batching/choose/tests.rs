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

/// A curve where a run takes `fixed` plus `each` per item.
fn curve(fixed: u64, each: u64, size_max: u32) -> Curve {
    let mut curve = Curve::default();
    for items in (0..11).map(|power| 1 << power).filter(|items| *items <= size_max) {
        (0..2).for_each(|_| curve.add(items, fixed + each * u64::from(items)));
    }
    curve
}

fn one(slack_ns: f64) -> WaitingRequest {
    WaitingRequest { items: 1, bytes: 4, priority: 100, slack_ns, waited_ns: 0.0 }
}

fn situation(candidates: &[WaitingRequest]) -> Situation<'_> {
    Situation {
        candidates,
        waiting: candidates.len(),
        free_slots: 0,
        is_busy: false,
        others_priority: None,
        others_slack_ns: f64::INFINITY,
        run_ns_max: f64::INFINITY,
    }
}

fn chosen(candidates: &[WaitingRequest], curve: &Curve, rules: &BatchRules) -> Vec<usize> {
    match choose(&situation(candidates), curve, rules, rules.size_max, |_| None) {
        BatchChoice::Run(members) => members,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nearest_deadlines_join_first() {
    let slacks = [f64::INFINITY, 9e6, f64::INFINITY, 5e6, 7e6];
    assert_eq!(chosen(&slacks.map(one), &curve(1_000, 1, 32), &rules(3, &[], 0)), [0, 3, 4]);
}

#[test]
fn runs_on_a_shared_device_are_short_unless_batching_costs_little_time() {
    for (fixed, each, runs) in [(1_000, 1_000, 4), (10_000, 100, 16), (10_000, 1_000, 4)] {
        let candidates = vec![one(f64::INFINITY); 16];
        let situation = Situation { run_ns_max: 5_000.0, ..situation(&candidates) };
        let rules = rules(32, &[], 0);
        let BatchChoice::Run(members) = choose(&situation, &curve(fixed, each, 32), &rules, 32, |_| None)
        else {
            panic!("it waits")
        };
        assert_eq!(members.len(), runs, "{fixed} + {each} per request");
    }
}

#[test]
fn negligible_saving_does_not_form_a_batch() {
    for (fixed, runs) in [(30, 1), (200, 7)] {
        let candidates = vec![one(f64::INFINITY); 16];
        assert_eq!(chosen(&candidates, &curve(fixed, 1_000, 32), &rules(32, &[], 0)).len(), runs, "{fixed}");
    }
}

/// Regression test: eight clients that each wait for their answer ran one or two at a time, because
/// of a cheaper size of 32 that they could never reach.
#[test]
fn few_waiting_requests_batch_despite_cheaper_large_sizes() {
    let curve = curve(2_000, 250, 32);
    for waiting in 1..=8 {
        let candidates = vec![one(f64::INFINITY); waiting];
        assert_eq!(chosen(&candidates, &curve, &rules(32, &[], 0)).len(), waiting);
    }
}

#[test]
fn runs_use_preferred_sizes() {
    let flat = curve(1_000, 1, 32);
    let preferred = rules(32, &[4, 8], 0);
    for (waiting, runs) in [(1, 1), (3, 3), (5, 4), (7, 4), (8, 8), (20, 8)] {
        let candidates = vec![one(f64::INFINITY); waiting];
        assert_eq!(chosen(&candidates, &flat, &preferred).len(), runs, "{waiting} wait");
    }
}

#[test]
fn batch_does_not_make_other_models_late() {
    let curve = curve(1_000, 100, 32);
    let candidates = vec![one(f64::INFINITY); 16];
    for (others_slack_ns, runs) in [(f64::INFINITY, 16), (2_000.0, 8), (1_150.0, 1), (900.0, 16)] {
        let situation = Situation { others_slack_ns, ..situation(&candidates) };
        let BatchChoice::Run(run) = choose(&situation, &curve, &rules(32, &[], 0), 32, |_| None) else {
            panic!()
        };
        assert_eq!(run.len(), runs, "{others_slack_ns}");
    }
}

#[test]
fn tight_leader_is_skipped_only_if_that_saves_more() {
    // Alone 1100, all sixteen 2600.
    let curve = curve(1_000, 100, 32);
    let many = |slack_ns| {
        let mut candidates = vec![one(slack_ns); 16];
        candidates.insert(0, one(1_300.0));
        candidates
    };
    assert_eq!(chosen(&many(3_500.0), &curve, &rules(32, &[], 0)).len(), 16, "sixteen would be late for one");
    assert_eq!(chosen(&many(9_000.0), &curve, &rules(32, &[], 0)), [0], "nobody would be");
    // A more urgent request is not skipped for others.
    let mut urgent = many(3_500.0);
    urgent[0].priority = 1;
    assert_eq!(chosen(&urgent, &curve, &rules(32, &[], 0)), [0]);
}

prop_compose! {
    fn any_candidate()(items in 1_u32..9, priority in 1_u32..4, slack_ns in prop_oneof![0.0..20_000.0, Just(f64::INFINITY)], waited_ns in 0.0..2e6) -> WaitingRequest {
        WaitingRequest { items, bytes: u64::from(items) * 4, priority, slack_ns, waited_ns }
    }
}

proptest! {
    #[test]
    fn choice_respects_limits_deadlines_and_priorities(
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
        let rules = rules(size_max, &preferred, delay_us);
        let curve = curve(fixed, each, size_max);
        let situation = Situation { free_slots, is_busy, others_priority, others_slack_ns, ..situation(&candidates) };
        let probe = |available: u32| measured.filter(|size| *size <= available);
        match choose(&situation, &curve, &rules, size_max, probe) {
            BatchChoice::TryOut => prop_assert!(false, "that is not decided here"),
            BatchChoice::Wait(for_ns) => {
                prop_assert!(is_busy && delay_us > 0, "it waits while nothing runs, or unasked");
                let waited_ns = candidates.iter().map(|one| one.waited_ns).fold(0.0, f64::max);
                prop_assert!(for_ns > 0.0 && waited_ns + for_ns <= delay_us as f64 * 1e3 + 1e-3);
            }
            BatchChoice::Run(run) => {
                let members: Vec<WaitingRequest> = run.iter().map(|at| candidates[*at]).collect();
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
                // The first in line is skipped only for requests of the same urgency.
                let first = candidates[0].priority;
                prop_assert!(run.contains(&0) || members[0].priority == first, "it is passed by");
            }
        }
    }
}
