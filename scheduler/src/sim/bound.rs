//! A lower bound on the mean latency of a workload under the LALB paper's device rules, whatever
//! the policy knows: not even a policy that knows all arrivals in advance is faster.
//!
//! # Schedules
//!
//! A device serves one request at a time, from start to end. A request whose model is not in the
//! device's memory is a *miss*: it takes a load and a run, and creates a *copy* of the model, which
//! takes memory from the start of the miss until its eviction. Any other request is a *hit*: it
//! takes a run, on a device with a copy. No request starts before its arrival, and no model is
//! loaded without a request.
//!
//! # Argument
//!
//! Every schedule on D devices satisfies, at every time t:
//!
//! 1. At most D requests are in service, since each takes a device.
//! 2. The copies take at most the memory of D devices.
//! 3. For each model, the requests in service are at most as many as the copies: each is in service
//!    on a device with a copy of its own.
//!
//! Prices λ(t), μ(t) and ν(t) by model, all at least 0, charge the violation of these constraints.
//! In a schedule, the total charge is at most 0, so that the latency is at least the latency plus
//! the charge. That sum has a term for each request, and a constant:
//!
//! - A hit from S to E costs its latency, plus ∫ λ + ν from S to E.
//! - A miss from S to E costs the same, plus ∫ w μ - ν over the life of its copy, which begins at S
//!   and does not end before E; w is the model's size as a part of a device's memory.
//! - The constant is -D ∫ λ + μ.
//!
//! With each term replaced by its minimum over all times, and over hit or miss, the sum is a lower
//! bound for any prices: a Lagrangian bound. One more property of schedules is used: the first
//! start of a model is a miss, and no hit of the model starts before that miss has ended. Equal
//! requests may be taken to start in the order of arrival, since an exchange of two of them leaves
//! the sum of latencies unchanged, so the first request of a model is the first miss. The minimum
//! over the model's requests is therefore taken for each time of the first miss, and then over these
//! times.
//!
//! Prices are constant within cells of equal length, and 0 after the last cell. A cost is then
//! piecewise linear in S and concave wherever neither S nor the end of the service crosses from one
//! cell to the next, so that its minimum is at such a crossing or at the arrival. A supergradient
//! ascent finds prices with a good bound; the bound holds whether or not the ascent has converged.
//!
//! The bound does not know which copies share a device. It is therefore lower than the latency of
//! the best schedule, most of all where memory forces models that are requested at the same time
//! onto the same device. [`improve_schedule`](super::improve_schedule) computes a schedule for
//! comparison.

mod ascent;
mod least;
mod prices;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod exhaustive;

use super::Workload;
use least::{LeastCosts, ModelDemand};
use prices::{PriceUse, Prices};

pub use ascent::ASCENT_STEPS;

/// Length of a price cell.
const CELL_S: f64 = 0.5;

/// Duration after the last arrival that has prices.
const TAIL_S: f64 = 40.0;

/// Maximum number of prices of copies, which bounds the memory. Long workloads with many models have
/// longer cells.
const PRICES_MAX: usize = 4_000_000;

/// Margin for rounding errors of sums, relative to the bound.
const ROUNDING: f64 = 1e-9;

/// A lower bound in seconds on the mean latency of `workload` on the LALB paper's devices, found in
/// `steps` steps of the ascent; 0 without requests. More steps give a higher bound.
///
/// The bound is sound only for devices that serve one request at a time and are all alike, as with
/// [`SimulatedCluster::default`](super::SimulatedCluster::default), and if all requests are served.
#[must_use]
pub fn latency_bound(workload: &Workload, steps: u32) -> f64 {
    let problem = Problem::new(workload);
    if problem.requests == 0 {
        return 0.0;
    }
    ascent::climb(&problem, steps) / problem.requests as f64
}

/// A workload in seconds and parts of a device's memory.
struct Problem {
    models: Vec<ModelDemand>,
    devices: f64,
    requests: usize,
    cell_s: f64,
    cells: usize,
}

impl Problem {
    fn new(workload: &Workload) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let capacity_bytes = workload.capacity_bytes().max(1) as f64;
        let mut models: Vec<ModelDemand> = workload
            .models()
            .iter()
            .map(|costs| ModelDemand {
                load_s: seconds(costs.load_time_ns),
                run_s: seconds(costs.run_time_ns),
                memory: costs.bytes as f64 / capacity_bytes,
                arrivals_s: Vec::new(),
            })
            .collect();
        for request in workload.requests() {
            models[request.model as usize].arrivals_s.push(seconds(request.arrived_at_ns));
        }
        models.retain(|model| !model.arrivals_s.is_empty());
        let last_s = workload.requests().last().map_or(0.0, |last| seconds(last.arrived_at_ns));
        let end_s = last_s + TAIL_S;
        let cells_max = (PRICES_MAX / models.len().max(1)).max(1);
        let cell_s = CELL_S.max(end_s / cells_max as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most PRICES_MAX")]
        let cells = (end_s / cell_s).ceil() as usize;
        let devices = f64::from(workload.devices());
        Self { models, devices, requests: workload.requests().len(), cell_s, cells }
    }

    /// The bound on the sum of latencies for these prices. `used` receives the use of each
    /// constraint by the choices that attain the minima.
    fn bound_s(&self, prices: &Prices, used: &mut PriceUse, costs: &mut LeastCosts) -> f64 {
        used.clear();
        let mut sum_s = 0.0;
        for (at, model) in self.models.iter().enumerate() {
            costs.price(model, prices, at);
            sum_s += costs.least_s(model, |service| used.add(at, model.memory, service));
        }
        let bound_s = sum_s - self.devices * prices.charged_s();
        bound_s - ROUNDING * (sum_s + self.devices * prices.charged_s())
    }
}
