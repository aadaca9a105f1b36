//! Turns and shares of tenants, with any arrivals, priorities and run times, in virtual time.

use super::tests::{entry, lane_of};
use super::{JobOrder, JobQueue, Lane, PushError, QueueEntry, ThreadInstruction};
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

/// Runs of a device with one thread per entry of `free_at`.
struct Fixture {
    queue: JobQueue<u32>,
    start: Instant,
    /// The run of each thread: its end, its lane, its time.
    running: Vec<Option<(Duration, Lane, Duration)>>,
    /// Run time by tenant.
    run_time: HashMap<String, Duration>,
    order: Vec<u32>,
}

impl Fixture {
    fn new(len_max: usize, threads: usize) -> Self {
        Self {
            queue: JobQueue::new(len_max, threads),
            start: Instant::now(),
            running: vec![None; threads],
            run_time: HashMap::new(),
            order: Vec::new(),
        }
    }

    fn push(&mut self, priority: u32, job: u32, lane: &Lane) -> Result<Option<u32>, PushError> {
        let pushed = self.queue.push(priority, entry(job, lane, None));
        pushed.map(|(_, displaced): (JobOrder, Option<QueueEntry<u32>>)| displaced.map(|entry| entry.job))
    }

    /// Lets all free threads take runs, of the time that `time_of` gives to a job.
    fn take(&mut self, now: Duration, time_of: &dyn Fn(u32) -> Duration) {
        for thread in 0..self.running.len() {
            if self.running[thread].is_some() {
                continue;
            }
            if let ThreadInstruction::Run(taken) = self.queue.take(thread, self.start + now) {
                let job = taken.jobs[0].1.job;
                self.order.push(job);
                self.running[thread] = Some((now + time_of(job), taken.lane, time_of(job)));
            }
        }
    }

    /// Ends the run that ends first; returns when. `None` if nothing runs.
    fn end(&mut self) -> Option<Duration> {
        let ends = |run: &Option<(Duration, Lane, Duration)>| run.as_ref().map(|(end, ..)| *end);
        let thread = (0..self.running.len())
            .filter(|thread| self.running[*thread].is_some())
            .min_by_key(|thread| ends(&self.running[*thread]))?;
        let (end, lane, time) = self.running[thread].take()?;
        self.queue.finish(thread, &lane, Vec::new(), self.start + end);
        *self.run_time.entry(lane.tenant.to_string()).or_default() += time;
        Some(end)
    }

    fn run_all(&mut self, time_of: &dyn Fn(u32) -> Duration) {
        self.take(Duration::ZERO, time_of);
        while let Some(now) = self.end() {
            self.take(now, time_of);
        }
    }
}

#[test]
fn urgent_flood_of_a_tenant_does_not_starve_others() {
    let flood = lane_of("flood", 1, 4);
    let other = lane_of("other", 2, 4);
    let mut stage = Fixture::new(1_000, 1);
    for job in 0..500 {
        assert!(stage.push(1, job, &flood).is_ok());
    }
    for job in 1_000..1_010 {
        assert!(stage.push(1_000, job, &other).is_ok());
    }
    stage.run_all(&|_| MS);
    let last = stage.order.iter().rposition(|job| *job >= 1_000).unwrap();
    assert!(last <= 21, "{last}");
}

#[test]
fn turns_are_by_run_time_and_not_by_number_of_runs() {
    let slow = lane_of("slow", 1, 1);
    let quick = lane_of("quick", 2, 1);
    let mut stage = Fixture::new(1_000, 1);
    for job in 0..10 {
        assert!(stage.push(1, job, &slow).is_ok());
    }
    for job in 1_000..1_200 {
        assert!(stage.push(1, job, &quick).is_ok());
    }
    stage.run_all(&|job| if job < 1_000 { 100 * MS } else { MS });
    let place = stage.order.iter().position(|job| *job == 1_150).unwrap();
    let before = stage.order[..place].iter().filter(|job| **job < 1_000).count();
    assert!(before <= 3, "{before} slow runs before 150 quick ones");
}

#[test]
fn long_run_and_idleness_are_soon_made_up_for() {
    let first = lane_of("first", 1, 1);
    let second = lane_of("second", 2, 1);
    let mut stage = Fixture::new(10_000, 1);
    assert!(stage.push(1, 0, &first).is_ok() && stage.push(1, 1, &first).is_ok());
    for job in 1_000..5_000 {
        assert!(stage.push(1, job, &second).is_ok());
    }
    // A run of a minute keeps its tenant out for a second, and not for a minute.
    stage.run_all(&|job| if job == 0 { 60_000 * MS } else { MS });
    let place = stage.order.iter().position(|job| *job == 1).unwrap();
    assert!((900..=1_100).contains(&place), "{place}");
    // A tenant that was idle takes no more than its turns.
    for job in 10_000..10_100 {
        assert!(stage.push(1, job, &second).is_ok() && stage.push(1, job + 1_000, &first).is_ok());
    }
    stage.order.clear();
    stage.run_all(&|_| MS);
    let of_first = stage.order[..100].iter().filter(|job| **job >= 11_000).count();
    assert!((45..=55).contains(&of_first), "{of_first}");
}

#[test]
fn full_queue_displaces_the_last_of_the_largest_share() {
    let flood = lane_of("flood", 1, 1);
    let other = lane_of("other", 2, 1);
    let mut stage = Fixture::new(4, 0);
    for job in 0..4 {
        assert!(matches!(stage.push(if job == 1 { 900 } else { 1 }, job, &flood), Ok(None)));
    }
    assert!(matches!(stage.push(1, 4, &flood), Err(PushError::Full)));
    assert!(matches!(stage.push(900, 5, &other), Ok(Some(1))), "the least urgent makes room");
    assert!(matches!(stage.push(900, 6, &other), Ok(Some(3))), "then the newest");
    assert!(matches!(stage.push(900, 7, &other), Err(PushError::Full)), "both have half of the queue");
    assert!(matches!(stage.push(1, 8, &flood), Err(PushError::Full)));
    assert_eq!(stage.queue.len(), 4);
}

/// Tenants of the random tests.
const TENANTS: [&str; 3] = ["a", "b", "c"];

proptest! {
    /// Tenants that always have jobs waiting get equal run times, at all priorities.
    #[test]
    fn backlogged_tenants_have_equal_run_times(
        threads in 1_usize..4,
        jobs in prop::collection::vec((0..3_usize, 1_u32..4, 1_u64..40), 300..400),
    ) {
        let mut stage = Fixture::new(10_000, threads);
        let mut given = [Duration::ZERO; 3];
        for (number, (tenant, priority, ms)) in (0..).zip(&jobs) {
            let lane = lane_of(TENANTS[*tenant], *tenant as u64, threads);
            prop_assert!(stage.push(*priority, number, &lane).is_ok());
            given[*tenant] += MS * u32::try_from(*ms).unwrap();
        }
        let time_of = |job: u32| MS * u32::try_from(jobs[job as usize].2).unwrap();
        stage.take(Duration::ZERO, &time_of);
        while let Some(now) = stage.end() {
            let run_time = |tenant: usize| stage.run_time.get(TENANTS[tenant]).copied().unwrap_or_default();
            let waiting: Vec<_> = (0..3).filter(|tenant| given[*tenant] > run_time(*tenant) + MS * 40 * 5).collect();
            for (a, b) in waiting.iter().zip(waiting.iter().skip(1)) {
                let apart = run_time(*a).abs_diff(run_time(*b));
                prop_assert!(apart <= MS * 40 * 2 * u32::try_from(threads).unwrap(), "{apart:?}");
            }
            stage.take(now, &time_of);
        }
        prop_assert_eq!(stage.order.len(), jobs.len());
    }

    /// Within a tenant, jobs run by priority, then by arrival, and each runs once.
    #[test]
    fn jobs_of_a_tenant_run_by_priority_then_arrival(
        jobs in prop::collection::vec((0..3_usize, 1_u32..4), 1..100),
    ) {
        let mut stage = Fixture::new(10_000, 1);
        for (number, (tenant, priority)) in (0..).zip(&jobs) {
            let lane = lane_of(TENANTS[*tenant], *tenant as u64, 1);
            prop_assert!(stage.push(*priority, number, &lane).is_ok());
        }
        stage.run_all(&|job| MS * (job % 7));
        for tenant in 0..3 {
            let of_tenant = |job: &&u32| jobs[**job as usize].0 == tenant;
            let ran: Vec<_> = stage.order.iter().filter(of_tenant).map(|job| (jobs[*job as usize].1, *job)).collect();
            prop_assert!(ran.is_sorted(), "{ran:?}");
        }
        prop_assert_eq!(stage.order.len(), jobs.len());
    }

    /// The queue stays within its limit, a tenant below its share is never refused, and every job
    /// that was accepted runs or is displaced.
    #[test]
    fn tenants_below_their_share_are_never_refused(
        len_max in 3_usize..20,
        steps in prop::collection::vec((0..3_usize, 1_u32..4, any::<bool>()), 1..300),
    ) {
        let mut stage = Fixture::new(len_max, 0);
        let mut waiting = HashMap::<u32, usize>::new();
        let mut refused = 0;
        for (number, (tenant, priority, _)) in (0..).zip(&steps) {
            let own = waiting.values().filter(|other| *other == tenant).count();
            match stage.push(*priority, number, &lane_of(TENANTS[*tenant], *tenant as u64, 1)) {
                Ok(displaced) => {
                    waiting.insert(number, *tenant);
                    let displaced = displaced.map(|job| waiting.remove(&job));
                    prop_assert!(displaced != Some(Some(*tenant)), "it displaced its own tenant's job");
                }
                Err(_) => {
                    refused += 1;
                    prop_assert!(own + 1 >= len_max / 3, "{own} of {len_max}");
                }
            }
            prop_assert!(stage.queue.len() <= len_max && stage.queue.len() == waiting.len());
        }
        prop_assert!(refused == 0 || stage.queue.len() == len_max);
    }
}
