//! Simulation of the queue and its batching in virtual time, compared with fixed batch sizes:
//! random arrivals, and run times from a curve.

use super::{JobQueue, Lane, LaneSlots, QueueEntry, ThreadInstruction};
use crate::batching::{BatchRules, Batcher, Fit, SuccessfulRun};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_types::{Batching, BatchingMode, ElementType, Port, Profile, Signature, TenantId};

/// Requests of one simulation, and the number of warm-up requests at its start.
const REQUESTS: usize = 3_000;
const WARM_UP: usize = 800;

/// Time of a run by number of items, in milliseconds.
type CurveFn = fn(u32) -> f64;

/// A fixed cost and a small cost per item, as on a GPU.
const SHARED: CurveFn = |items| 2.0 + 0.25 * f64::from(items);
/// Declared for powers of two, as in a fake model.
const STEPS: CurveFn = |items| 2.0 + 0.25 * f64::from(items.next_power_of_two());
/// Batching saves a little.
const LITTLE: CurveFn = |items| 1.0 + 5.0 * f64::from(items);
/// Only multiples of eight pay.
const EIGHTS: CurveFn = |items| if items == 1 { 2.0 } else { 9.5 * f64::from(items.div_ceil(8)) };
/// Batching saves nothing, as on many processors.
const EACH: CurveFn = |items| 5.0 * f64::from(items);
/// Items cost more in larger batches.
const DEARER: CurveFn = |items| 5.0 * f64::from(items).powf(1.1);

/// Results of one simulation.
#[derive(Debug, Clone, Copy)]
struct SimulatedReport {
    /// Requests in time, per second.
    per_second: f64,
    /// Latency of all requests; late requests count as never answered.
    p99_ms: f64,
    mean_ms: f64,
}

/// Arrival times of the requests, in milliseconds.
fn arrivals(per_second: f64, seed: u64) -> Vec<f64> {
    // SplitMix64.
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut at = 0.0;
    let mut arrival = || {
        at += -(1.0 - next()).ln() * 1e3 / per_second;
        at
    };
    (0..REQUESTS).map(|_| arrival()).collect()
}

fn report(arrivals: &[f64], ended: &[Option<f64>], deadline_ms: f64) -> SimulatedReport {
    let mut latencies: Vec<f64> = arrivals
        .iter()
        .zip(ended)
        .skip(WARM_UP)
        .map(|(arrived, ended)| ended.map_or(f64::INFINITY, |at| at - arrived))
        .map(|latency| if latency <= deadline_ms { latency } else { f64::INFINITY })
        .collect();
    latencies.sort_by(f64::total_cmp);
    let in_time = latencies.iter().filter(|latency| latency.is_finite()).count();
    let spent_ms = arrivals[arrivals.len() - 1] - arrivals[WARM_UP];
    SimulatedReport {
        per_second: in_time as f64 * 1e3 / spent_ms,
        p99_ms: latencies[latencies.len() * 99 / 100],
        mean_ms: latencies.iter().filter(|latency| latency.is_finite()).sum::<f64>() / in_time.max(1) as f64,
    }
}

fn lane(slots: usize, mode: BatchingMode) -> Lane {
    let port = |name: &str| Port { name: name.into(), datatype: ElementType::Fp32, shape: vec![None] };
    let signature = Signature { inputs: vec![port("x")], outputs: vec![port("y")] };
    let rules = BatchRules::for_signature(&signature, &Batching { mode, ..Batching::default() }).unwrap();
    let batcher = rules.map(|rules| Arc::new(Batcher::new(rules, Profile::default())));
    Lane { number: 0, tenant: TenantId::default(), slots: LaneSlots::new(slots), batcher }
}

/// Weir's queue, which initially has no measurements of the curve.
fn adaptive(
    curve: CurveFn,
    per_second: f64,
    deadline_ms: f64,
    slots: usize,
    mode: BatchingMode,
) -> SimulatedReport {
    let arrivals = arrivals(per_second, 7);
    let start = Instant::now();
    let instant = |at_ms: f64| start + Duration::from_secs_f64(at_ms / 1e3);
    let lane = lane(slots, mode);
    let mut queue = JobQueue::new(1 << 20, slots);
    let mut running: Vec<Option<(f64, f64, Vec<usize>)>> = vec![None; slots];
    let mut ended = vec![None; arrivals.len()];
    let mut next = 0;
    loop {
        let first_end = running.iter().flatten().map(|(_, end, _)| *end).fold(f64::INFINITY, f64::min);
        let arrival = arrivals.get(next).copied().unwrap_or(f64::INFINITY);
        let now = first_end.min(arrival);
        if now.is_infinite() {
            break;
        }
        drop(queue.expire(instant(now)));
        if arrival <= first_end {
            let fit = lane.batcher.as_ref().map(|_| Fit { class: [].into(), items: 1, bytes: 4 });
            let arrived = instant(now);
            let deadline = Some(instant(now + deadline_ms));
            let entry = QueueEntry {
                lane: lane.clone(),
                arrived,
                deadline,
                interrupt: Arc::default(),
                fit,
                job: next,
            };
            assert!(queue.push(100, entry).is_ok());
            next += 1;
        }
        for (thread, slot) in running.iter_mut().enumerate() {
            if let Some((began, _, members)) = slot.take_if(|(_, end, _)| *end <= now) {
                queue.finish(thread, &lane, Vec::new(), instant(now));
                for member in &members {
                    ended[*member] = Some(now);
                }
                if let Some(batcher) = &lane.batcher {
                    let time = Duration::from_secs_f64((now - began) / 1e3);
                    batcher.ran(&SuccessfulRun { class: &[], items: vec![1; members.len()], time });
                }
            }
        }
        for (thread, slot) in running.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            let ThreadInstruction::Run(taken) = queue.take(thread, instant(now)) else { continue };
            let members: Vec<usize> = taken.jobs.iter().map(|(_, entry)| entry.job).collect();
            *slot = Some((now, now + curve(members.len() as u32), members));
        }
    }
    report(&arrivals, &ended, deadline_ms)
}

/// Batches of `size`: full batches only (`is_whole`), or as many requests as wait, up to `size`. A
/// partial batch starts when it must.
fn fixed(curve: CurveFn, per_second: f64, deadline_ms: f64, size: u32, is_whole: bool) -> SimulatedReport {
    let arrivals = arrivals(per_second, 7);
    let mut ended = vec![None; arrivals.len()];
    let mut next = 0;
    let mut free_at = 0.0_f64;
    let mut waiting: VecDeque<usize> = VecDeque::new();
    while next < arrivals.len() || !waiting.is_empty() {
        let mut now = free_at.max(waiting.front().map_or_else(|| arrivals[next], |first| arrivals[*first]));
        let mut take = |until: f64, waiting: &mut VecDeque<usize>| {
            while next < arrivals.len() && arrivals[next] <= until {
                waiting.push_back(next);
                next += 1;
            }
            arrivals.get(next).copied()
        };
        let mut coming = take(now, &mut waiting);
        while is_whole && waiting.len() < size as usize {
            let Some(first) = waiting.front() else { break };
            let must_begin = arrivals[*first] + deadline_ms - curve(size);
            match coming.filter(|at| *at <= must_begin) {
                Some(at) => {
                    now = now.max(at);
                    coming = take(now, &mut waiting);
                }
                None => {
                    now = now.max(must_begin);
                    break;
                }
            }
        }
        waiting.retain(|one| arrivals[*one] + deadline_ms > now);
        let members: Vec<usize> = waiting.drain(..waiting.len().min(size as usize)).collect();
        if members.is_empty() {
            free_at = now;
            continue;
        }
        free_at = now + curve(members.len() as u32);
        members.into_iter().for_each(|member| ended[member] = Some(free_at));
    }
    report(&arrivals, &ended, deadline_ms)
}

/// The highest rate at which 99 of 100 requests are in time.
fn sustained(deadline_ms: f64, run: impl Fn(f64) -> SimulatedReport) -> f64 {
    let rate = |step: i32| 20.0 * 1.01_f64.powi(step);
    // A rate is sustained if a higher rate is.
    let mut sustained = 0;
    let mut failing = 700;
    while failing - sustained > 1 {
        let middle = (sustained + failing) / 2;
        if run(rate(middle)).p99_ms <= deadline_ms { sustained = middle } else { failing = middle }
    }
    rate(sustained)
}

fn best_fixed(curve: CurveFn, deadline_ms: f64) -> f64 {
    let ways = [1, 2, 4, 8, 16, 32].into_iter().flat_map(|size| [(size, true), (size, false)]);
    let sustained = ways.map(|(size, is_whole)| {
        sustained(deadline_ms, |rate| fixed(curve, rate, deadline_ms, size, is_whole))
    });
    sustained.fold(0.0, f64::max)
}

#[test]
fn adaptive_batching_matches_best_fixed_batch_size() {
    for (name, curve, deadline_ms) in [
        ("shared", SHARED, 25.0),
        ("shared", SHARED, 250.0),
        ("steps", STEPS, 25.0),
        ("little", LITTLE, 250.0),
        ("eights", EIGHTS, 60.0),
        ("each", EACH, 60.0),
        ("dearer", DEARER, 60.0),
    ] as [(&str, CurveFn, f64); 7]
    {
        let best = best_fixed(curve, deadline_ms);
        let own = sustained(deadline_ms, |rate| adaptive(curve, rate, deadline_ms, 1, BatchingMode::On));
        println!("{name}, {deadline_ms} ms: best fixed {best:.0}/s, adaptive {own:.0}/s, {:.3}", own / best);
        assert!(
            own >= 0.95 * best,
            "{name}, {deadline_ms} ms: {own:.0}/s, and {best:.0}/s with a fixed batch"
        );
    }
}

#[test]
fn overload_does_not_shrink_batches() {
    for (name, curve) in [("shared", SHARED), ("steps", STEPS)] {
        for deadline_ms in [25.0, 60.0] {
            let best = best_fixed(curve, deadline_ms);
            for overload in [1.2, 2.0, 10.0] {
                let own = adaptive(curve, best * overload, deadline_ms, 1, BatchingMode::On);
                println!("{name}, {deadline_ms} ms, {overload} times: {own:?} of {best:.0}/s");
                assert!(
                    own.per_second >= 0.9 * best,
                    "{name}, {deadline_ms} ms, {overload} times: {own:?} of {best:.0}/s"
                );
            }
        }
    }
}

#[test]
fn probing_costs_little_where_batches_save_nothing() {
    for (name, curve) in [("each", EACH), ("dearer", DEARER)] {
        for slots in [1, 2] {
            for load in [0.5, 0.9, 1.5] {
                let rate = load * slots as f64 * 1e3 / curve(1);
                let own = adaptive(curve, rate, 10_000.0, slots, BatchingMode::On);
                let without = adaptive(curve, rate, 10_000.0, slots, BatchingMode::Off);
                println!("{name}, {slots} slots, {load}: {own:?}, without {without:?}");
                let is_near =
                    own.per_second >= 0.97 * without.per_second && own.mean_ms <= 1.03 * without.mean_ms;
                assert!(is_near, "{name}, {load}: {own:?}, {without:?}");
            }
        }
    }
}

#[test]
fn low_load_adds_no_waiting() {
    for slots in [1, 2] {
        let rate = 0.02 * 1e3 / SHARED(1);
        let own = adaptive(SHARED, rate, 60.0, slots, BatchingMode::On);
        let without = adaptive(SHARED, rate, 60.0, slots, BatchingMode::Off);
        assert!(own.mean_ms <= without.mean_ms * 1.01, "{own:?}, {without:?}");
    }
}
