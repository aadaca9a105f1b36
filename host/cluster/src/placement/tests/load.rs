//! Placements under load, on a paused clock: learned times and shares of devices.
//! The device is simulated: one run at a time, in the order of requests, and a run that has begun
//! ends on the device whatever becomes of its call.

use super::{Fixture, arrival};
use crate::placement::clock::now;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use weir_call::Objective;
use weir_inference::ObservedRun;
use weir_scheduler::{Arrival, Settings, Setup, TenantLimits};
use weir_types::{InvocationId, Name, TenantId};

/// A run slot of the device.
#[derive(Default)]
struct SimulatedSlot {
    is_free: Mutex<()>,
}

/// The true device time of some calls, in nanoseconds.
#[derive(Default)]
struct Tally(AtomicU64);

impl Tally {
    fn device_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a call ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeds,
    Fails,
    /// The client disconnects during the run.
    Disconnects,
}

/// The parts of a call's life.
#[derive(Clone, Copy)]
struct Life {
    before: Duration,
    run: Duration,
    after: Duration,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap()
}

/// Uniform random numbers below `below`.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn arrival_of(tenant: &TenantId, invocation: u64) -> Arrival {
    let mut arrival = arrival(invocation);
    arrival.function.tenant = tenant.clone();
    arrival.function.name = Name::new("f").unwrap();
    arrival
}

impl Fixture {
    /// The run time that the scheduler expects of one more call.
    async fn learned_run_ns(&self, tenant: &TenantId, invocation: u64) -> u64 {
        let arrival = arrival_of(tenant, invocation);
        drop(self.placements.place(arrival, &Objective::default(), now()).await.unwrap());
        let record = self.placements.explanation(tenant, InvocationId(invocation)).unwrap();
        record.why.estimate.run_time_ns
    }
}

/// One call, from its arrival to the end of its run.
async fn call(
    stage: &Fixture,
    slot: &Arc<SimulatedSlot>,
    arrival: Arrival,
    life: Life,
    fate: Fate,
    tally: &Arc<Tally>,
) {
    let invocation = arrival.invocation;
    // At its deadline, a call that waits is rejected.
    let Ok((_, guard)) = stage.placements.place(arrival, &Objective::default(), now()).await else { return };
    sleep(life.before).await;
    let request = stage.placements.recorder(invocation, 0).unwrap().request();
    let slot = slot.clone();
    let tally = tally.clone();
    let (begins, begun) = oneshot::channel();
    let ran = tokio::spawn(async move {
        let _turn = slot.is_free.lock().await;
        request.started();
        let _ = begins.send(());
        sleep(life.run).await;
        tally.0.fetch_add(ns(life.run), Ordering::Relaxed);
        request.ended(&ObservedRun { part_ns: ns(life.run), run_time_ns: ns(life.run), items: 1 });
        request.over();
    });
    match fate {
        Fate::Disconnects => {
            begun.await.unwrap();
            sleep(life.run / 4).await;
            drop(guard);
        }
        Fate::Succeeds | Fate::Fails => {
            ran.await.unwrap();
            sleep(life.after).await;
            guard.ended(fate == Fate::Succeeds);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failures_and_disconnects_at_twice_the_load_keep_learned_times_and_shares_true() {
    const SHARE_MAX: f64 = 0.3;
    const RUN: Duration = ms(20);
    let [capped, free] = ["capped", "free"].map(tenant);
    let limits = TenantLimits { device_share_max: SHARE_MAX, ..TenantLimits::default() };
    let settings = Settings { tenants: [(capped.clone(), limits)].into(), ..Settings::default() };
    let stage = Arc::new(Fixture::new(Setup { settings, ..Setup::default() }));
    let slot = Arc::new(SimulatedSlot::default());
    let tallies = [(); 2].map(|()| Arc::<Tally>::default());
    let mut random = Random(7);
    let started = Instant::now();
    let mut measured_from = [0; 2];
    // Each tenant asks for all of the device.
    for round in 0..3_000_u64 {
        sleep_until(started + RUN * u32::try_from(round).unwrap()).await;
        if round == 1_000 {
            measured_from = [0, 1].map(|at| tallies[at].device_ns());
        }
        for (at, tenant) in [&capped, &free].into_iter().enumerate() {
            let fate = match random.below(10) {
                0 => Fate::Fails,
                1 | 2 => Fate::Disconnects,
                _ => Fate::Succeeds,
            };
            let mut arrival = arrival_of(tenant, 2 * round + at as u64);
            arrival.deadline_at_ns = stage.placements.time_ns(now() + ms(5_000));
            let run = RUN * 3 / 4 + Duration::from_micros(random.below(10_000));
            let life = Life { before: Duration::ZERO, run, after: Duration::ZERO };
            let stage = stage.clone();
            let slot = slot.clone();
            let tally = tallies[at].clone();
            tokio::spawn(async move { call(&stage, &slot, arrival, life, fate, &tally).await });
        }
    }
    let elapsed_ns = ns(RUN * 2_000) as f64;
    let shares = [0, 1].map(|at| (tallies[at].device_ns() - measured_from[at]) as f64 / elapsed_ns);
    assert!((shares[0] - SHARE_MAX).abs() <= 0.05, "{shares:?}");
    assert!(shares[0] + shares[1] > 0.95, "the device has work at all times: {shares:?}");
    sleep(ms(10_000)).await;
    for (at, tenant) in [&capped, &free].into_iter().enumerate() {
        let learned_ns = stage.learned_run_ns(tenant, u64::MAX - at as u64).await;
        let error = learned_ns as f64 / ns(RUN) as f64 - 1.0;
        assert!(error.abs() <= 0.1, "{tenant}: {learned_ns} ns");
    }
}

#[tokio::test(start_paused = true)]
async fn functions_that_use_the_device_for_a_twentieth_of_their_life_fill_it() {
    const LIFE: Duration = ms(200);
    const RUN: Duration = ms(10);
    let stage = Arc::new(Fixture::new(Setup::default()));
    let slot = Arc::new(SimulatedSlot::default());
    let tally = Arc::<Tally>::default();
    let started = Instant::now();
    let warm = started + ms(10_000);
    let end = started + ms(40_000);
    let clients = (0..100_u64).map(|client| {
        let stage = stage.clone();
        let slot = slot.clone();
        let tally = tally.clone();
        tokio::spawn(async move {
            let mut random = Random(client);
            for number in 0.. {
                if Instant::now() >= end {
                    return;
                }
                let before = Duration::from_micros(random.below(190_000));
                let after = LIFE - RUN - before;
                let arrival = arrival_of(&tenant("t"), client * 1_000_000 + number);
                call(&stage, &slot, arrival, Life { before, run: RUN, after }, Fate::Succeeds, &tally).await;
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    sleep_until(warm).await;
    let before_ns = tally.device_ns();
    sleep_until(end).await;
    let busy_ns = tally.device_ns() - before_ns;
    let part = busy_ns as f64 / ns(end - warm) as f64;
    assert!(part >= 0.95, "the device is busy for {part} of the time");
    // Not by granting it to all clients at once: the others wait in the scheduler.
    assert!(stage.placements.state.lock().running.len() < 60);
    futures::future::join_all(clients).await;
}
