//! Metrics of a schedule, as in the LALB paper.

use super::{SimulatedSchedule, Workload};
use serde::{Deserialize, Serialize};

/// Metrics of a run. Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SimulationMetrics {
    /// Mean latency, from arrival to completion.
    pub avg: f64,
    /// Variance of the latency.
    pub var: f64,
    /// Median latency.
    pub p50: f64,
    /// 99th percentile of the latency.
    pub p99: f64,
    /// Longest latency.
    pub max: f64,
    /// Fraction of the requests whose model was not in memory.
    pub miss: f64,
    /// Fraction of the misses whose model was on another device.
    pub false_miss: f64,
    /// Fraction of the devices' time spent computing.
    pub sm_util: f64,
    /// Number of devices that held the most requested model, averaged over time.
    pub dup_top: f64,
    /// End of the last request.
    pub makespan: f64,
    /// Longest wait, from arrival to start.
    #[serde(default)]
    pub wait_max: f64,
    /// Jain's fairness index over the tenants' mean latencies: 1 if all are equal.
    #[serde(default)]
    pub fairness: f64,
    /// Fraction of the requests that were rejected.
    #[serde(default)]
    pub rejected: f64,
    /// Requests that met their SLO, per second of arrivals.
    #[serde(default)]
    pub goodput: f64,
    /// Fraction of the requests with an SLO that met it.
    #[serde(default)]
    pub slo_met: f64,
    /// Fraction of the requests with an SLO that were rejected.
    #[serde(default)]
    pub slo_rejected: f64,
    /// Fraction of the requests with an SLO that were served and missed it.
    #[serde(default)]
    pub slo_missed: f64,
    /// Fraction of the requests with an SLO that missed it after an admission on trial: even an
    /// idle cluster would have been too late.
    #[serde(default)]
    pub slo_on_trial: f64,
    /// Mean cost of the device time of a served request, by the given prices.
    #[serde(default)]
    pub cost: f64,
}

impl SimulationMetrics {
    /// Measures a schedule of a workload. Times are zero if nothing ran.
    #[must_use]
    pub fn from_schedule(workload: &Workload, schedule: &SimulatedSchedule) -> Self {
        let rows = || {
            let all = workload.requests().iter().zip(&schedule.placed);
            all.filter_map(|(request, placed)| Some((request, placed.as_ref()?)))
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut latencies: Vec<f64> = rows()
            .map(|(request, placed)| seconds(placed.ended_at_ns.saturating_sub(request.arrived_at_ns)))
            .collect();
        let count = latencies.len() as f64;
        let slos = &schedule.slos;
        let of_asked = |count: u32| f64::from(count) / f64::from(slos.asked.max(1));
        if latencies.is_empty() {
            let rejected = f64::from(u8::from(!workload.requests().is_empty()));
            return Self { rejected, slo_rejected: of_asked(slos.rejected), ..Self::default() };
        }
        let avg = latencies.iter().sum::<f64>() / count;
        let var = latencies.iter().map(|latency| (latency - avg).powi(2)).sum::<f64>() / count;
        latencies.sort_unstable_by(f64::total_cmp);
        let makespan = rows().map(|(_, placed)| seconds(placed.ended_at_ns)).fold(0.0, f64::max);
        let misses = rows().filter(|(_, placed)| !placed.hit).count() as f64;
        let arrivals_s = workload.requests().last().map_or(0.0, |last| seconds(last.arrived_at_ns));
        let waits = rows()
            .map(|(request, placed)| seconds(placed.started_at_ns.saturating_sub(request.arrived_at_ns)));
        Self {
            avg,
            var,
            p50: percentile(&latencies, 0.5),
            p99: percentile(&latencies, 0.99),
            max: latencies.last().copied().unwrap_or_default(),
            miss: misses / count,
            false_miss: if misses > 0.0 { f64::from(schedule.false_misses) / misses } else { 0.0 },
            sm_util: seconds(schedule.computed_ns) / (f64::from(workload.devices()) * makespan),
            dup_top: schedule.top_held_ns as f64 / 1e9 / makespan,
            makespan,
            wait_max: waits.fold(0.0, f64::max),
            fairness: fairness(workload, schedule),
            rejected: 1.0 - count / workload.requests().len() as f64,
            goodput: if arrivals_s > 0.0 { f64::from(slos.met) / arrivals_s } else { 0.0 },
            slo_met: of_asked(slos.met),
            slo_rejected: of_asked(slos.rejected),
            slo_missed: of_asked(slos.missed),
            slo_on_trial: of_asked(slos.on_trial),
            cost: schedule.cost.units() / count,
        }
    }

    /// The mean of each metric.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let mean = |get: fn(&Self) -> f64| all.iter().map(get).sum::<f64>() / all.len().max(1) as f64;
        Self {
            avg: mean(|m| m.avg),
            var: mean(|m| m.var),
            p50: mean(|m| m.p50),
            p99: mean(|m| m.p99),
            max: mean(|m| m.max),
            miss: mean(|m| m.miss),
            false_miss: mean(|m| m.false_miss),
            sm_util: mean(|m| m.sm_util),
            dup_top: mean(|m| m.dup_top),
            makespan: mean(|m| m.makespan),
            wait_max: mean(|m| m.wait_max),
            fairness: mean(|m| m.fairness),
            rejected: mean(|m| m.rejected),
            goodput: mean(|m| m.goodput),
            slo_met: mean(|m| m.slo_met),
            slo_rejected: mean(|m| m.slo_rejected),
            slo_missed: mean(|m| m.slo_missed),
            slo_on_trial: mean(|m| m.slo_on_trial),
            cost: mean(|m| m.cost),
        }
    }
}

/// The value that a fraction `part` of the sorted values does not exceed.
pub(super) fn percentile(sorted: &[f64], part: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length")]
    let at = (part * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn fairness(workload: &Workload, schedule: &SimulatedSchedule) -> f64 {
    let mut tenants = std::collections::BTreeMap::<u32, (f64, f64)>::new();
    for (request, placed) in workload.requests().iter().zip(&schedule.placed) {
        let Some(placed) = placed else { continue };
        let (sum, count) = tenants.entry(request.tenant).or_default();
        *sum += placed.ended_at_ns.saturating_sub(request.arrived_at_ns) as f64;
        *count += 1.0;
    }
    let means: Vec<f64> = tenants.values().map(|(sum, count)| sum / count).collect();
    let (sum, squares) =
        means.iter().fold((0.0, 0.0), |(sum, squares), mean| (sum + mean, squares + mean * mean));
    if squares > 0.0 { sum * sum / (means.len() as f64 * squares) } else { 1.0 }
}
