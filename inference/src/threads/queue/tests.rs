use super::*;
use crate::batching::{BatchRules, Batcher, Fit};
use std::sync::LazyLock;
use weir_types::{Batching, BatchingMode, ElementType, Port, Profile, Signature};

pub(super) fn entry(job: u32, lane: &Lane, deadline: Option<Instant>) -> QueueEntry<u32> {
    let lane = lane.clone();
    let arrived = Instant::now();
    QueueEntry { lane, arrived, deadline, interrupt: Arc::default(), fit: None, job }
}

pub(super) fn lane_of(tenant: &str, number: u64, slots: usize) -> Lane {
    let tenant = TenantId::new(tenant).unwrap();
    Lane { number, tenant, slots: LaneSlots::new(slots), batcher: None }
}

static WIDE: LazyLock<Lane> = LazyLock::new(|| lane_of("default", 0, 64));
static NARROW: LazyLock<Lane> = LazyLock::new(|| lane_of("default", 1, 1));

fn take(queue: &mut JobQueue<u32>, thread: usize) -> Option<QueueEntry<u32>> {
    match queue.take(thread, Instant::now()) {
        ThreadInstruction::Run(taken) => taken.jobs.into_iter().next().map(|(_, entry)| entry),
        ThreadInstruction::Wait(_) => None,
    }
}

fn drain(queue: &mut JobQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| {
        let entry = take(queue, 0)?;
        queue.finish(0, &entry.lane, Vec::new(), Instant::now());
        Some(entry.job)
    })
    .collect()
}

#[test]
fn jobs_run_by_priority_then_arrival() {
    let mut queue = JobQueue::new(100, 1);
    for (job, priority) in [(1, 100), (2, 1), (3, 100), (4, 7), (5, 1)] {
        assert!(queue.push(priority, entry(job, &WIDE, None)).is_ok());
    }
    assert_eq!(drain(&mut queue), [2, 5, 4, 1, 3]);
}

#[test]
fn busy_lane_does_not_block_others_and_keeps_its_order() {
    let mut queue = JobQueue::new(100, 3);
    for (job, lane) in [(1, &NARROW), (2, &NARROW), (3, &NARROW), (4, &WIDE)] {
        assert!(queue.push(100, entry(job, lane, None)).is_ok());
    }
    assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(1));
    assert_eq!(take(&mut queue, 1).map(|e| e.job), Some(4));
    assert_eq!(take(&mut queue, 2).map(|e| e.job), None);
    queue.finish(0, &NARROW, Vec::new(), Instant::now());
    assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(2));
    queue.finish(0, &NARROW, Vec::new(), Instant::now());
    assert_eq!(take(&mut queue, 0).map(|e| e.job), Some(3));
    queue.finish(0, &NARROW, Vec::new(), Instant::now());
    queue.finish(1, &WIDE, Vec::new(), Instant::now());
    assert!(queue.lanes.is_empty(), "lanes without jobs are forgotten");
}

#[test]
fn queue_limit_counts_waiting_jobs_and_removal_makes_room() {
    let mut queue = JobQueue::new(2, 1);
    assert!(queue.push(1, entry(0, &NARROW, None)).is_ok());
    assert!(take(&mut queue, 0).is_some());
    let (ready, _) = queue.push(1, entry(1, &NARROW, None)).ok().unwrap();
    assert!(queue.push(1, entry(2, &NARROW, None)).is_ok());
    assert!(matches!(queue.push(1, entry(3, &NARROW, None)), Err(PushError::Full)));
    // Jobs of a busy lane count and can be removed as well.
    assert!(take(&mut queue, 0).is_none());
    assert_eq!(queue.remove(ready, 1).map(|e| e.job), Some(1));
    assert!(queue.remove(ready, 1).is_none());
    assert_eq!(queue.len(), 1);
    assert!(queue.push(1, entry(4, &NARROW, None)).is_ok());
}

#[test]
fn expire_removes_waiting_jobs_and_returns_overdue_runs() {
    let start = Instant::now();
    let after = |ms| Some(start + Duration::from_millis(ms));
    let mut queue = JobQueue::new(100, 1);
    assert!(queue.push(1, entry(1, &WIDE, after(10))).is_ok());
    let running = take(&mut queue, 0).unwrap();
    for (job, deadline) in [(2, after(20)), (3, after(5)), (4, None)] {
        assert!(queue.push(1, entry(job, &WIDE, deadline)).is_ok());
    }
    assert_eq!(queue.next_deadline(), after(5));
    let (expired, overdue) = queue.expire(start + Duration::from_millis(12));
    assert_eq!(expired.iter().map(|e| e.job).collect::<Vec<_>>(), [3]);
    assert!(overdue.len() == 1 && Arc::ptr_eq(&overdue[0], &running.interrupt));
    // A run is returned once; the next check is due at the next deadline.
    assert_eq!(queue.next_deadline(), after(20));
    assert_eq!(queue.len(), 2);
}

/// A lane of a model for which a run of many items takes no longer than a run of one.
fn flat(number: u64, slots: usize, batching: &Batching) -> Lane {
    let port = |name: &str| Port { name: name.into(), datatype: ElementType::Fp32, shape: vec![None] };
    let signature = Signature { inputs: vec![port("x")], outputs: vec![port("y")] };
    let batching = Batching { mode: BatchingMode::On, ..batching.clone() };
    let rules = BatchRules::for_signature(&signature, &batching).unwrap().unwrap();
    Lane { batcher: Some(batcher(rules, |_| 1_000_000)), ..lane_of("default", number, slots) }
}

/// A batcher whose profile has these run times by number of items.
fn batcher(rules: BatchRules, time_ns: impl Fn(u64) -> u64) -> Arc<Batcher> {
    let mut profile = Profile::default();
    for items in [1, 2, 4, 8, 16, 32] {
        let time = profile.run_time_ns.entry(items).or_default();
        (0..2).for_each(|_| time.add(time_ns(u64::from(items))));
    }
    Arc::new(Batcher::new(rules, profile))
}

fn fitting(job: u32, lane: &Lane, class: u32) -> QueueEntry<u32> {
    let fit = Some(Fit { class: [class].into(), items: 1, bytes: 4 });
    QueueEntry { fit, ..entry(job, lane, None) }
}

fn jobs(next: ThreadInstruction<u32>) -> Vec<u32> {
    match next {
        ThreadInstruction::Run(taken) => taken.jobs.into_iter().map(|(_, entry)| entry.job).collect(),
        ThreadInstruction::Wait(_) => Vec::new(),
    }
}

#[test]
fn same_class_jobs_batch_and_spread_over_free_slots() {
    let lane = flat(7, 2, &Batching::default());
    let mut queue = JobQueue::new(100, 2);
    for job in 0..9 {
        assert!(queue.push(100, fitting(job, &lane, u32::from(job == 4))).is_ok());
    }
    let now = Instant::now();
    assert_eq!(jobs(queue.take(0, now)), [0, 1, 2, 3]);
    assert_eq!(jobs(queue.take(1, now)), [4], "of another class, and next in line");
    assert_eq!(queue.len(), 4);
    queue.finish(0, &lane, Vec::new(), Instant::now());
    assert_eq!(jobs(queue.take(0, now)), [5, 6, 7, 8]);
}

#[test]
fn models_run_by_arrival_of_first_job_despite_backlog() {
    let flooded = flat(7, 1, &Batching::default());
    let other = flat(8, 1, &Batching::default());
    let mut queue = JobQueue::new(1_000, 1);
    for job in 0..64 {
        assert!(queue.push(100, fitting(job, &flooded, 0)).is_ok());
    }
    assert!(queue.push(100, fitting(1_000, &other, 0)).is_ok());
    for job in 64..500 {
        assert!(queue.push(100, fitting(job, &flooded, 0)).is_ok());
    }
    let now = Instant::now();
    let mut runs = Vec::new();
    while let ThreadInstruction::Run(taken) = queue.take(0, now) {
        queue.finish(0, &taken.lane, Vec::new(), Instant::now());
        runs.push(taken.jobs.iter().map(|(_, entry)| entry.job).collect::<Vec<_>>());
    }
    let place = runs.iter().position(|run| run == &[1_000]).unwrap();
    assert_eq!(place, 2, "those that came before it are two batches, and no other goes first");
    assert!(runs.iter().all(|run| run.iter().all(|job| *job < 1_000) || run.len() == 1));
    assert_eq!(runs.iter().flatten().count(), 501);
}

#[test]
fn batches_are_short_while_another_tenant_uses_the_device() {
    let rules = flat(7, 1, &Batching::default()).batcher.unwrap().rules().clone();
    // Four items take 4 ms, and eight take 6 ms.
    let batcher = batcher(rules, |items| 2_000_000 + items * 500_000);
    let lane = Lane { batcher: Some(batcher), ..lane_of("first", 7, 1) };
    let other = lane_of("second", 8, 1);
    let mut queue = JobQueue::new(100, 1);
    let start = Instant::now();
    let mut run_at = |after_ms: u64, of_other: bool| {
        let now = start + Duration::from_millis(after_ms);
        for job in 0..8 {
            assert!(queue.push(100, QueueEntry { arrived: now, ..fitting(job, &lane, 0) }).is_ok());
        }
        if of_other {
            assert!(queue.push(100, QueueEntry { arrived: now, ..entry(9, &other, None) }).is_ok());
        }
        let mut runs = Vec::new();
        while let ThreadInstruction::Run(taken) = queue.take(0, now) {
            queue.finish(0, &taken.lane, Vec::new(), now);
            runs.push((taken.lane.number, taken.jobs.len()));
        }
        runs
    };
    assert_eq!(run_at(0, false), [(7, 8)]);
    let shared = run_at(1, true);
    assert!(shared.contains(&(8, 1)) && shared.iter().all(|(_, jobs)| *jobs <= 4), "{shared:?}");
    assert_eq!(run_at(900, false), [(7, 4), (7, 4)], "the other tenant's job was a moment ago");
    assert_eq!(run_at(1_100, false), [(7, 8)]);
}

#[test]
fn jobs_of_failed_batch_are_requeued_to_run_alone() {
    let lane = flat(7, 1, &Batching::default());
    let mut queue = JobQueue::new(3, 1);
    for job in 0..3 {
        assert!(queue.push(100, fitting(job, &lane, 0)).is_ok());
    }
    let now = Instant::now();
    let ThreadInstruction::Run(taken) = queue.take(0, now) else { panic!("nothing was taken") };
    assert_eq!(taken.jobs.len(), 3);
    let keys: Vec<JobOrder> = taken.jobs.iter().map(|(key, _)| *key).collect();
    queue.finish(0, &lane, taken.jobs, Instant::now());
    assert_eq!(queue.remove(keys[1], 7).map(|entry| entry.job), Some(1), "it cannot be withdrawn");
    assert_eq!(drain(&mut queue), [0, 2]);
    assert!(queue.lanes.is_empty() && queue.tenants.lanes_len() == 0);
}

#[test]
fn queue_delay_applies_only_to_its_model_while_device_is_busy() {
    let lane = flat(7, 2, &Batching { queue_delay_us_max: 500, ..Batching::default() });
    let mut queue = JobQueue::new(100, 2);
    assert!(queue.push(100, fitting(0, &lane, 0)).is_ok());
    let now = Instant::now();
    assert_eq!(jobs(queue.take(0, now)), [0], "nothing runs");
    assert!(queue.push(100, QueueEntry { arrived: now, ..fitting(1, &lane, 0) }).is_ok());
    let ThreadInstruction::Wait(Some(until)) = queue.take(1, now) else { panic!("it was not held back") };
    assert!(until > now && until <= now + Duration::from_micros(500), "{:?}", until - now);
    assert!(queue.push(100, entry(2, &NARROW, None)).is_ok());
    assert_eq!(jobs(queue.take(1, now)), [2], "another model was held back with it");
    queue.finish(1, &NARROW, Vec::new(), Instant::now());
    assert_eq!(jobs(queue.take(1, until)), [1], "its time was up");
    assert!(queue.push(100, QueueEntry { arrived: now, ..fitting(3, &lane, 0) }).is_ok());
    queue.finish(0, &lane, Vec::new(), Instant::now());
    queue.finish(1, &lane, Vec::new(), Instant::now());
    assert_eq!(jobs(queue.take(0, now)), [3], "the device is idle");
}
