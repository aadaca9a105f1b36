use super::*;
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;

fn report(slots: u32, waiting_ns: u64) -> GroupReport {
    GroupReport {
        backlog: Backlog { devices: slots, slots, committed_ns: 0, waiting_ns, waiting: 0 },
        demands: Vec::new(),
    }
}

fn router(groups: u32, slots: u32) -> GroupRouter {
    let mut router = GroupRouter::default();
    (0..groups).for_each(|group| router.report(GroupId(group), report(slots, 0)));
    router
}

fn call(family: u64, number: u64) -> RoutedCall {
    let family = FamilyKey::new("tenant", &format!("model-{family}"));
    RoutedCall { family, number, run_time_ns: SECOND_NS, load_time_ns: 3 * SECOND_NS }
}

fn homes(router: &mut GroupRouter, families: u64) -> Vec<GroupId> {
    (0..families).map(|family| router.home(call(family, 0).family).unwrap()).collect()
}

#[test]
fn routers_agree_regardless_of_the_order_of_reports() {
    let mut backwards = GroupRouter::default();
    (0..20).rev().for_each(|group| backwards.report(GroupId(group), report(10, 0)));
    assert_eq!(homes(&mut router(20, 10), 500), homes(&mut backwards, 500));
}

#[test]
fn family_keys_are_equal_on_all_platforms_and_separate_tenant_and_name() {
    assert_eq!(FamilyKey::new("default", "digits"), FamilyKey(0xf28c_9e07_1554_707d));
    assert_ne!(FamilyKey::new("a", "bc"), FamilyKey::new("ab", "c"));
}

#[test]
fn lost_group_moves_only_its_own_families() {
    let mut all = router(20, 10);
    let before = homes(&mut all, 1_000);
    all.remove(GroupId(7));
    for (before, after) in before.iter().zip(homes(&mut all, 1_000)) {
        assert!(*before == after || *before == GroupId(7), "{before:?} became {after:?}");
        assert_ne!(after, GroupId(7));
    }
}

#[test]
fn larger_groups_are_home_to_more_families() {
    let mut router = router(2, 10);
    router.report(GroupId(1), report(30, 0));
    let of_large = homes(&mut router, 10_000).iter().filter(|group| **group == GroupId(1)).count();
    assert!((7_200..7_800).contains(&of_large), "{of_large} of 10,000");
}

#[test]
fn family_overflows_once_its_group_is_a_load_behind_the_average() {
    let mut router = router(4, 1);
    let order = router.family(call(0, 0).family).order.clone();
    // Each call adds a second of work to its group, and a load takes three seconds.
    let mut route = |now_ns, number| router.route(now_ns, &call(0, number)).unwrap();
    let routed: Vec<_> = (0..6).map(|number| route(0, number)).collect();
    assert_eq!(routed[..5], [order[0]; 5]);
    assert_eq!(routed[5], order[1]);
    // Until the overflow ends, both groups share the calls.
    assert!((6..10).all(|number| route(OVERFLOW_NS - 1, number) == order[1]));
}

#[test]
fn overflow_ends() {
    let mut router = router(2, 1);
    let [home, other] = router.family(call(0, 0).family).order[..] else { unreachable!() };
    router.report(home, report(1, 10 * SECOND_NS));
    assert_eq!(router.route(0, &call(0, 0)), Some(other));
    [home, other].iter().for_each(|group| router.report(*group, report(1, 0)));
    router.report(home, report(1, 2 * SECOND_NS));
    assert_eq!(router.route(OVERFLOW_NS - 1, &call(0, 1)), Some(other), "it is less busy");
    router.report(other, report(1, 0));
    assert_eq!(router.route(OVERFLOW_NS, &call(0, 2)), Some(home), "a load takes longer");
}

#[test]
fn reports_replace_work_that_was_sent() {
    let mut router = router(2, 1);
    let home = router.home(call(0, 0).family).unwrap();
    for number in 0..100 {
        assert_eq!(router.route(0, &call(0, number)), Some(home), "call {number}");
        router.report(home, report(1, 0));
    }
}

#[test]
fn popular_family_uses_as_many_groups_as_its_demand_needs() {
    let mut router = router(10, 100);
    let family = call(0, 0).family;
    assert_eq!(router.width(family), 1);
    let home = router.home(family).unwrap();
    let demands = vec![(family, 35.0)];
    router.report(home, GroupReport { demands, ..report(100, 0) });
    assert_eq!(router.width(family), 4);
    let used: std::collections::BTreeSet<_> =
        (0..1_000).map(|number| router.route(0, &call(0, number)).unwrap()).collect();
    assert_eq!(used, router.family(family).order[..4].iter().copied().collect());
    // The demand has ended.
    router.report(home, report(100, 0));
    assert_eq!(router.width(family), 1);
}

#[test]
fn groups_without_devices_get_no_calls() {
    assert_eq!(GroupRouter::default().route(0, &call(0, 0)), None);
    let mut router = router(3, 10);
    router.report(GroupId(0), report(0, 0));
    assert!((0..300).all(|family| router.route(0, &call(family, family)) != Some(GroupId(0))));
    (1..3).for_each(|group| router.report(GroupId(group), report(0, 0)));
    assert_eq!(router.route(0, &call(0, 0)), None);
}

proptest! {
    #[test]
    fn candidates_are_distinct_ranks_within_the_width(width in 1_usize..50, number: u64) {
        let [first, second] = candidates(width, number).unwrap();
        prop_assert!(first < width && second < width);
        prop_assert!(first != second || width == 1);
    }

    #[test]
    fn demand_and_run_slots_return_to_zero(steps in prop::collection::vec((0_u32..8, 0_u32..100, 0.0..50.0_f64), 1..60)) {
        let mut router = GroupRouter::default();
        for (number, (group, slots, demand)) in steps.iter().enumerate() {
            if number % 5 == 4 {
                router.remove(GroupId(*group));
            } else {
                let demands = vec![(call(u64::from(*group % 3), 0).family, *demand)];
                router.report(GroupId(*group), GroupReport { demands, ..report(*slots, 0) });
            }
            let slots: u64 = router.groups.values().map(|group| u64::from(group.report.backlog.slots)).sum();
            prop_assert_eq!(router.slots, slots);
            router.route(0, &call(1, number as u64));
        }
        (0..8).for_each(|group| router.remove(GroupId(group)));
        prop_assert_eq!((router.slots, router.work_ns), (0, 0));
        prop_assert!(router.demands.is_empty(), "{:?}", router.demands);
    }
}
