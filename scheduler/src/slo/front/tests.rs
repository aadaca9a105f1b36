#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;
use proptest::prelude::*;

fn step(steps: usize) -> impl Strategy<Value = FrontStep> {
    let quote =
        (1_u64..20, 0_u64..20).prop_map(|(time_ns, cost)| Quote { time_ns, cost: Cost::from_nanos(cost) });
    let after = prop::collection::btree_set(0..steps.max(1), 0..3);
    (after, prop::collection::vec(prop::option::weighted(0.8, quote), 3)).prop_map(move |(after, quotes)| {
        FrontStep { after: after.into_iter().filter(|after| *after < steps).collect(), quotes }
    })
}

fn workflow() -> impl Strategy<Value = Vec<FrontStep>> {
    (0_usize..6).prop_flat_map(|len| (0..len).map(step).collect::<Vec<_>>())
}

/// All placements, by enumeration.
fn all(steps: &[FrontStep]) -> Vec<StepPlacement> {
    let mut all = vec![(SmallVec::<[usize; 4]>::new(), Vec::<u64>::new(), 0_u64)];
    for step in steps {
        all = all
            .into_iter()
            .flat_map(|(kinds, ends, cost)| {
                let begin = step.after.iter().map(|after| ends[*after]).max().unwrap_or(0);
                let quotes = step.quotes.iter().enumerate();
                quotes.filter_map(move |(kind, quote)| {
                    let quote = (*quote)?;
                    let mut kinds = kinds.clone();
                    let mut ends = ends.clone();
                    kinds.push(kind);
                    ends.push(begin + quote.time_ns);
                    Some((kinds, ends, cost + quote.cost.nanos()))
                })
            })
            .collect();
    }
    let placement = |(kinds, ends, cost): (SmallVec<[usize; 4]>, Vec<u64>, u64)| StepPlacement {
        kinds,
        time_ns: ends.into_iter().max().unwrap_or(0),
        cost: Cost::from_nanos(cost),
    };
    all.into_iter().map(placement).collect()
}

proptest! {
    /// The front consists of all placements that no other placement beats.
    #[test]
    fn front_contains_exactly_the_unbeaten_placements(steps in workflow()) {
        let all = all(&steps);
        let Ok(front) = Front::from_steps(&steps) else {
            prop_assert!(all.is_empty());
            return Ok(());
        };
        let beats = |a: &StepPlacement, b: &StepPlacement| {
            a.time_ns <= b.time_ns && a.cost <= b.cost && (a.time_ns, a.cost) != (b.time_ns, b.cost)
        };
        let mut best: Vec<_> = all
            .iter()
            .filter(|placement| !all.iter().any(|other| beats(other, placement)))
            .map(|placement| (placement.time_ns, placement.cost))
            .collect();
        best.sort_unstable();
        best.dedup();
        let found: Vec<_> = front.placements().iter().map(|placement| (placement.time_ns, placement.cost)).collect();
        prop_assert_eq!(found, best);
        for placement in front.placements() {
            prop_assert!(all.contains(placement), "{:?} is none", placement);
        }
    }

    /// Two binary searches find the same range as a linear scan.
    #[test]
    fn within_returns_exactly_the_placements_that_meet_both_limits(steps in workflow(), time_ns in 0_u64..80, cost in 0_u64..80) {
        let Ok(front) = Front::from_steps(&steps) else { return Ok(()) };
        let cost = Cost::from_nanos(cost);
        let keeps: Vec<_> = front.placements().iter().filter(|p| p.time_ns <= time_ns && p.cost <= cost).collect();
        prop_assert_eq!(front.within(time_ns, cost).iter().collect::<Vec<_>>(), keeps);
    }

    /// The choice meets the SLO on the cluster, is the best of the sample, and the sample is as
    /// long as allowed.
    #[test]
    fn choose_returns_the_best_sampled_offer_that_meets_the_slo(
        steps in workflow(),
        limits in (0_u64..80, 0_u64..80),
        waits in prop::collection::vec(prop::option::of(0_u64..40), 1..8),
        sample_len in 1_usize..5,
        choice in prop::sample::select(&[PlacementPreference::Cheapest, PlacementPreference::Fastest, PlacementPreference::Random][..]),
        seed in any::<u64>(),
    ) {
        let Ok(front) = Front::from_steps(&steps) else { return Ok(()) };
        let slo = (limits.0, Cost::from_nanos(limits.1));
        let offer = |placement: &StepPlacement| {
            let at = front.placements().iter().position(|other| other == placement).unwrap();
            let wait_ns = waits[at % waits.len()]?;
            Some(PlacementOffer { finish_after_ns: wait_ns + placement.time_ns, cost: placement.cost, place: at })
        };
        let mut asked = Vec::new();
        let chosen = front.choose(slo, (sample_len, choice, seed), |placement| {
            asked.push(placement.clone());
            offer(placement)
        });
        prop_assert!(asked.len() <= sample_len.max(front.within(slo.0, slo.1).len().min(sample_len)));
        let good: Vec<_> = asked.iter().filter_map(offer).filter(|o| o.finish_after_ns <= slo.0 && o.cost <= slo.1).collect();
        let best = match choice {
            PlacementPreference::Cheapest => good.iter().min_by_key(|o| (o.cost, o.finish_after_ns)),
            PlacementPreference::Fastest => good.iter().min_by_key(|o| (o.finish_after_ns, o.cost)),
            PlacementPreference::Random => good.first(),
        };
        prop_assert_eq!(chosen.as_ref(), best);
    }
}

#[test]
fn front_prices_chains_and_branches_over_two_kinds() {
    let quote = |time_ns, cost| Some(Quote { time_ns, cost: Cost::from_nanos(cost) });
    let on_both =
        |after: &[usize]| FrontStep { after: after.to_vec(), quotes: vec![quote(10, 1), quote(2, 5)] };
    let front = Front::from_steps(&[on_both(&[]), on_both(&[0])]).unwrap();
    let found: Vec<_> = front.placements().iter().map(|p| (p.time_ns, p.cost.nanos())).collect();
    assert_eq!(found, [(4, 10), (12, 6), (20, 2)]);
    let of_branches = Front::from_steps(&[on_both(&[]), on_both(&[]), on_both(&[0, 1])]).unwrap();
    // A fast branch gains nothing if a parallel branch is slow, so that placement is not on the
    // front.
    let found: Vec<_> = of_branches.placements().iter().map(|p| (p.time_ns, p.cost.nanos())).collect();
    assert_eq!(found, [(4, 15), (12, 7), (20, 3)]);
}

#[test]
fn invalid_step_orders_and_unplaceable_steps_are_rejected() {
    let nowhere = FrontStep { after: vec![], quotes: vec![None, None] };
    assert_eq!(Front::from_steps(&[nowhere]), Err(FrontError::Nowhere(0)));
    let itself = FrontStep { after: vec![0], quotes: vec![Some(Quote { time_ns: 1, cost: Cost::ZERO })] };
    assert_eq!(Front::from_steps(&[itself]), Err(FrontError::Order { step: 0, after: 0 }));
    assert_eq!(Front::from_steps(&[]).unwrap().placements().len(), 1, "nothing to do takes no time");
}

/// For long workflows over many kinds, the front is bounded and keeps the fastest and the cheapest
/// placement.
#[test]
fn long_workflows_keep_the_fastest_and_cheapest_placement() {
    let quote = |kind: u64, step: u64| Quote {
        time_ns: 1_000 + 977 * (kind * 31 + step * 17) % 1_009,
        cost: Cost::from_nanos(1_000 + 983 * (kind * 13 + step * 29) % 1_013),
    };
    let step = |index: usize| FrontStep {
        after: index.checked_sub(1).into_iter().collect(),
        quotes: (0..8).map(|kind| Some(quote(kind, index as u64))).collect(),
    };
    let steps: Vec<_> = (0..32).map(step).collect();
    let front = Front::from_steps(&steps).unwrap();
    assert!(front.placements().len() <= BEGINNINGS_MAX);
    let least = |of: fn(&Quote) -> u64| -> u64 {
        steps.iter().map(|step| step.quotes.iter().flatten().map(of).min().unwrap()).sum()
    };
    assert_eq!(front.placements()[0].time_ns, least(|quote| quote.time_ns));
    assert_eq!(front.placements().last().unwrap().cost.nanos(), least(|quote| quote.cost.nanos()));
}
