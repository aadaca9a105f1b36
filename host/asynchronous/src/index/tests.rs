use super::*;
use proptest::prelude::*;

const ME: ClaimOwner = ClaimOwner(1);
const OTHER: ClaimOwner = ClaimOwner(2);

fn id(number: u64) -> AsyncId {
    AsyncId::new(0, number.into())
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn entry(of: &str, step: NextStep, at_ms: u64) -> IndexEntry {
    IndexEntry {
        tenant: tenant(of),
        step,
        at_ms,
        bytes: 10,
        blobs: vec![ContentHash::from_content(&at_ms.to_le_bytes())],
    }
}

/// Returns the invocation to work on next; none if no work is due.
fn next(index: &mut InvocationIndex, now_ms: u64) -> Option<AsyncId> {
    match index.next(now_ms, 100, 100) {
        LoopAction::Work(work) => Some(work.id),
        LoopAction::WaitUntil(_) | LoopAction::Wait => None,
    }
}

#[test]
fn tenants_take_turns_in_due_order() {
    let mut index = InvocationIndex::new(ME);
    for number in 1..=4 {
        index.put(id(number), entry("many", NextStep::Run, number));
    }
    index.put(id(9), entry("few", NextStep::Run, 9));
    assert!(matches!(index.next(0, 100, 100), LoopAction::WaitUntil(1)));
    let order: Vec<_> = std::iter::from_fn(|| next(&mut index, 10)).collect();
    assert_eq!(order, [1, 9, 2, 3, 4].map(id));
    index.done(id(9), 0);
    index.done(id(1), 20);
    assert_eq!(next(&mut index, 10), Some(id(9)), "the tenant with the least being worked on");
    assert!(matches!(index.next(10, 100, 100), LoopAction::WaitUntil(20)), "the other was put off");
    assert!(matches!(index.next(20, 4, 100), LoopAction::Wait), "there are four already");
    assert_eq!(next(&mut index, 20), Some(id(1)));
}

#[test]
fn tenant_limit_leaves_room_for_other_tenants() {
    let mut index = InvocationIndex::new(ME);
    (1..=3).for_each(|number| index.put(id(number), entry("many", NextStep::Run, number)));
    index.put(id(9), entry("few", NextStep::Run, 50));
    let next = |index: &mut InvocationIndex, now_ms| match index.next(now_ms, 4, 2) {
        LoopAction::Work(work) => Some(work.id),
        LoopAction::WaitUntil(_) | LoopAction::Wait => None,
    };
    let order: Vec<_> = std::iter::from_fn(|| next(&mut index, 10)).collect();
    assert_eq!(order, [1, 2].map(id));
    assert!(
        matches!(index.next(10, 4, 2), LoopAction::WaitUntil(50)),
        "what the tenant may not have is not waited for"
    );
    assert_eq!(next(&mut index, 50), Some(id(9)));
}

#[test]
fn invocations_claimed_elsewhere_wait_for_the_claim_to_end() {
    let mut index = InvocationIndex::new(ME);
    index.put(id(1), entry("t", NextStep::Run, 0));
    index.claim(id(1), OTHER);
    assert_eq!(next(&mut index, 10), None);
    index.unclaim(id(1), 15);
    assert_eq!(next(&mut index, 10), None, "nodes do not all begin at once");
    let LoopAction::Work(work) = index.next(15, 100, 100) else { panic!("it is due") };
    assert!(!work.is_claimed);
    index.claim(id(1), ME);
    assert!(!work.cancelled.is_cancelled());
    index.claim(id(1), OTHER);
    assert!(work.cancelled.is_cancelled(), "another was first");
}

#[test]
fn obsolete_work_is_cancelled() {
    for change in [InvocationIndex::remove, |index: &mut InvocationIndex, id| {
        index.put(id, entry("t", NextStep::Forget, 5));
    }] {
        let mut index = InvocationIndex::new(ME);
        index.put(id(1), entry("t", NextStep::Run, 0));
        let LoopAction::Work(work) = index.next(0, 1, 1) else { panic!("it is due") };
        index.put(id(1), entry("t", NextStep::Run, 3));
        assert!(!work.cancelled.is_cancelled(), "it is still to be run");
        change(&mut index, id(1));
        assert!(work.cancelled.is_cancelled());
        index.done(id(1), 0);
        assert_eq!(next(&mut index, 100), None);
    }
}

#[test]
fn queue_limits_count_invocations_being_accepted() {
    let mut index = InvocationIndex::new(ME);
    let accept = |index: &mut InvocationIndex, of: &str| index.accept(&tenant(of), 3, 2);
    index.put(id(1), entry("a", NextStep::Run, 0));
    index.claim(id(1), ME);
    assert_eq!(accept(&mut index, "a"), Ok(()));
    assert_eq!(accept(&mut index, "a"), Err(QueueLimit::Tenant));
    assert_eq!(accept(&mut index, "b"), Ok(()));
    assert_eq!(accept(&mut index, "c"), Err(QueueLimit::Node));
    index.accepted(&tenant("b"));
    assert_eq!(accept(&mut index, "c"), Ok(()));
    index.accepted(&tenant("a"));
    index.accepted(&tenant("c"));
    index.remove(id(1));
    assert_eq!(index.tenants.len(), 0, "nothing is left of tenants without invocations");
}

#[test]
fn expired_and_excess_invocations_are_forgotten_oldest_first() {
    let kept = RetentionLimits { retention_ms: 100, tenant_kept_max: 3, tenant_bytes_max: 1_000 };
    let mut index = InvocationIndex::new(ME);
    for at_ms in 1..=3 {
        index.put(id(at_ms), entry("t", NextStep::Forget, at_ms));
    }
    index.put(id(9), entry("t", NextStep::Run, 0));
    let forgotten = |index: &InvocationIndex, now_ms, kept: &RetentionLimits| -> Vec<AsyncId> {
        index.to_forget(now_ms, kept).into_iter().map(|(_, id)| id).collect()
    };
    assert_eq!(forgotten(&index, 100, &kept), []);
    assert_eq!(forgotten(&index, 102, &kept), [1, 2].map(id));
    assert_eq!(forgotten(&index, 0, &RetentionLimits { tenant_kept_max: 1, ..kept }), [1, 2].map(id));
    // Four invocations of 10 bytes each; the unfinished one cannot be deleted.
    assert_eq!(forgotten(&index, 0, &RetentionLimits { tenant_bytes_max: 29, ..kept }), [1, 2].map(id));
    assert_eq!(forgotten(&index, 0, &RetentionLimits { tenant_bytes_max: 0, ..kept }), [1, 2, 3].map(id));
}

#[derive(Debug, Clone)]
enum Step2 {
    Put(u64, bool, u64),
    Remove(u64),
    Claim(u64, bool),
    Unclaim(u64),
    Next(u64),
    Done(u64),
    Reload,
}

fn steps() -> impl Strategy<Value = Vec<Step2>> {
    let number = 0_u64..6;
    let one = prop_oneof![
        (number.clone(), any::<bool>(), 0_u64..20).prop_map(|(id, live, at)| Step2::Put(id, live, at)),
        number.clone().prop_map(Step2::Remove),
        (number.clone(), any::<bool>()).prop_map(|(id, own)| Step2::Claim(id, own)),
        number.clone().prop_map(Step2::Unclaim),
        (0_u64..30).prop_map(Step2::Next),
        number.prop_map(Step2::Done),
        Just(Step2::Reload),
    ];
    proptest::collection::vec(one, 0..60)
}

proptest! {
    /// For any order of events and work, the counters match the known records, and no invocation is
    /// worked on twice.
    #[test]
    fn counters_match_the_records_after_random_events(steps in steps()) {
        let mut index = InvocationIndex::new(ME);
        let mut entries: BTreeMap<AsyncId, IndexEntry> = BTreeMap::new();
        let mut claims: BTreeMap<AsyncId, ClaimOwner> = BTreeMap::new();
        let mut working = HashSet::new();
        for step in steps {
            match step {
                Step2::Put(number, is_live, at_ms) => {
                    let of = if number % 2 == 0 { "even" } else { "odd" };
                    let entry = entry(of, if is_live { NextStep::Run } else { NextStep::Forget }, at_ms);
                    entries.insert(id(number), entry.clone());
                    index.put(id(number), entry);
                }
                Step2::Remove(number) => {
                    entries.remove(&id(number));
                    index.remove(id(number));
                }
                Step2::Claim(number, is_own) => {
                    let owner = if is_own { ME } else { OTHER };
                    claims.insert(id(number), owner);
                    index.claim(id(number), owner);
                }
                Step2::Unclaim(number) => {
                    claims.remove(&id(number));
                    index.unclaim(id(number), 0);
                }
                Step2::Next(now_ms) => {
                    if let LoopAction::Work(work) = index.next(now_ms, 4, 3) {
                        prop_assert!(working.insert(work.id), "{:?} is worked on twice", work.id);
                        prop_assert!(entries[&work.id].step == NextStep::Run && entries[&work.id].at_ms <= now_ms);
                        prop_assert!(claims.get(&work.id) != Some(&OTHER));
                        prop_assert!(working.len() <= 4);
                        prop_assert!(index.tenants.values().all(|tenant| tenant.working <= 3));
                    }
                }
                Step2::Done(number) => {
                    if working.remove(&id(number)) {
                        index.done(id(number), 0);
                    }
                }
                Step2::Reload => index.load(entries.clone(), claims.clone()),
            }
            let live = entries.values().filter(|entry| entry.step == NextStep::Run).count();
            prop_assert_eq!(index.len(), (live, working.len()));
            let of = |name: &str| entries.values().filter(|entry| entry.tenant.as_str() == name).count();
            for name in ["even", "odd"] {
                let counted = index.tenants.get(&tenant(name));
                let ended = counted.map_or(0, |tenant| tenant.ended.len());
                prop_assert_eq!(counted.map_or(0, |tenant| tenant.live) + ended, of(name));
                prop_assert_eq!(counted.map_or(0, |tenant| tenant.live_bytes + tenant.ended_bytes), 10 * of(name) as u64);
            }
        }
    }
}
