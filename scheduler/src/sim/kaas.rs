//! The KaaS thesis, chapter 6: Kernel-as-a-Service with two models. The thesis' timesteps are
//! seconds here.
//!
//! A request dispatched at `t` frees its device at `t` plus its run time and, for the first run of
//! its model there, the cold start. Loaded models stay. "Next available" is a cyclic scan that
//! starts after the device used last. The thesis orders SRTF and MLFQS in advance, with knowledge
//! of the future; [`Foresight`] reproduces that.

use super::workload::{ModelCosts, SimRequest, Workload, WorkloadError};
use super::{Ends, SimulatedCluster, SimulatedPlacement, SimulatedSchedule};
use crate::policy::bucket_of;
use crate::{ExclusiveOptions, Planned, Policy, PolicyKind, PolicyOptions, RoomFinder};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::{BTreeMap, VecDeque};
use weir_types::InvocationId;

/// Cold start and run times of the two models, in timesteps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KaasTimes {
    /// ResNet50: model 0.
    pub resnet: (u64, u64),
    /// BERT: model 1.
    pub bert: (u64, u64),
}

/// Whether SRTF and MLFQS know the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foresight {
    /// As printed: the whole submission is ordered in advance, and its head blocks the rest.
    Printed,
    /// Only waiting requests are ordered, and a request starts whenever a device is free.
    None,
}

impl KaasTimes {
    /// The times that reproduce the paper's traces.
    pub const TRACES: Self = Self { resnet: (4, 2), bert: (10, 8) };
    /// The times in the text.
    pub const PROSE: Self = Self { resnet: (5, 5), bert: (10, 20) };

    /// The example of 6.1: ResNet arrives at 0, 2 and 3, BERT at 1, on two devices.
    ///
    /// # Errors
    /// None for times above 0.
    pub fn example(self) -> Result<Workload, WorkloadError> {
        let arrivals = [(0, 0), (1, 1), (2, 0), (3, 0)];
        let requests = arrivals.map(|(step, model)| request(step * STEP_NS, model));
        Workload::new(self.costs(), requests.to_vec(), 2, CAPACITY_BYTES)
    }

    /// The Poisson process of 6.2: each model has half of the work, and their total load is
    /// `occupancy` of the devices' capacity.
    ///
    /// # Errors
    /// If there are no arrivals.
    pub fn poisson(
        self,
        devices: u32,
        occupancy: f64,
        steps: u32,
        seed: u64,
    ) -> Result<Workload, WorkloadError> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let end_ns = f64::from(steps) * STEP_NS as f64;
        let mut requests = Vec::new();
        for (model, (_, run)) in [(0, self.resnet), (1, self.bert)] {
            let per_ns = 0.5 * occupancy * f64::from(devices) / (run * STEP_NS) as f64;
            let times = super::generate::poisson(&mut rng, per_ns, end_ns);
            requests.extend(times.into_iter().map(|at_ns| request(super::generate::at(at_ns), model)));
        }
        requests.sort_unstable_by_key(|request| (request.arrived_at_ns, request.model));
        Workload::new(self.costs(), requests, devices, CAPACITY_BYTES)
    }

    fn costs(self) -> Vec<ModelCosts> {
        let costs =
            |(cold, run)| ModelCosts { bytes: 1, load_time_ns: cold * STEP_NS, run_time_ns: run * STEP_NS };
        vec![costs(self.resnet), costs(self.bert)]
    }
}

const STEP_NS: u64 = 1_000_000_000;

/// Memory for both models on every device.
const CAPACITY_BYTES: u64 = 2;

fn request(arrived_at_ns: u64, model: u32) -> SimRequest {
    SimRequest { arrived_at_ns, model, tenant: 0 }
}

/// The policies of the chapter, in its order.
pub const KAAS_POLICIES: [PolicyKind; 5] =
    [PolicyKind::RoundRobin, PolicyKind::Balance, PolicyKind::Srtf, PolicyKind::Mlfqs, PolicyKind::Exclusive];

/// The devices of the thesis: one request at a time. All runs that end together free their devices
/// before the next dispatch.
#[must_use]
pub fn kaas_cluster() -> SimulatedCluster {
    SimulatedCluster { ends: Ends::InTurn, ..SimulatedCluster::default() }
}

/// A policy as in the thesis. `seed` determines the random draws; devices are partitioned evenly,
/// without stealing.
#[must_use]
pub fn kaas_policy(
    kind: PolicyKind,
    workload: &Workload,
    foresight: Foresight,
    seed: u64,
) -> Box<dyn Policy> {
    let planned = |order| Box::new(Planned::new(RoomFinder::default(), order));
    match (kind, foresight) {
        (PolicyKind::Srtf, Foresight::Printed) => planned(shortest_first(workload)),
        (PolicyKind::Mlfqs, Foresight::Printed) => planned(by_lot(workload, seed)),
        _ => {
            let models_expected = u32::try_from(workload.models().len()).ok();
            let exclusive = ExclusiveOptions { stealing: false, models_expected };
            kind.build(&PolicyOptions { exclusive, seed, ..PolicyOptions::default() })
        }
    }
}

/// The first seed whose draws reproduce the printed order of the example: all of ResNet before
/// BERT.
#[must_use]
pub fn kaas_printed_lots(workload: &Workload) -> u64 {
    let is_printed = |seed: &u64| by_lot(workload, *seed) == shortest_first(workload);
    (0..1_000).find(is_printed).unwrap_or_default()
}

fn shortest_first(workload: &Workload) -> Vec<InvocationId> {
    let mut order: Vec<_> = (0_u64..).zip(workload.requests()).collect();
    order.sort_by_key(|(number, request)| (workload.models()[request.model as usize].run_time_ns, *number));
    order.into_iter().map(|(number, _)| InvocationId(number)).collect()
}

fn by_lot(workload: &Workload, seed: u64) -> Vec<InvocationId> {
    let mut buckets = BTreeMap::<u32, VecDeque<InvocationId>>::new();
    for (number, request) in (0..).zip(workload.requests()) {
        let bucket = bucket_of(workload.models()[request.model as usize].run_time_ns);
        buckets.entry(bucket).or_default().push_back(InvocationId(number));
    }
    let mut lots = Pcg64::seed_from_u64(seed);
    let mut order = Vec::new();
    while !buckets.is_empty() {
        let drawn = lots.random_range(0..buckets.len());
        order.extend(buckets.values_mut().nth(drawn).and_then(VecDeque::pop_front));
        buckets.retain(|_, bucket| !bucket.is_empty());
    }
    order
}

/// The numbers that the thesis prints for a run, in timesteps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KaasReport {
    /// When the last device was freed.
    pub total: f64,
    /// Requests that were the first run of their model on their device.
    pub cold_starts: usize,
    /// Average time in the queue.
    pub wait: f64,
    /// Average time in the queue, by model.
    pub wait_by_model: [f64; 2],
    /// Dispatches in order: arrival, model, time, device (from 1).
    pub dispatches: Vec<(f64, u32, f64, u32)>,
}

impl KaasReport {
    /// Computes the report of a schedule.
    #[must_use]
    pub fn from_schedule(workload: &Workload, schedule: &SimulatedSchedule) -> Self {
        let steps = |ns: u64| ns as f64 / STEP_NS as f64;
        let all: Vec<(&SimRequest, &SimulatedPlacement)> = workload
            .requests()
            .iter()
            .zip(&schedule.placed)
            .filter_map(|(request, placed)| Some((request, placed.as_ref()?)))
            .collect();
        let wait = |of: Option<u32>| {
            let of = all.iter().filter(|(request, _)| of.is_none_or(|model| request.model == model));
            let waits: Vec<_> =
                of.map(|(request, placed)| steps(placed.started_at_ns - request.arrived_at_ns)).collect();
            waits.iter().sum::<f64>() / waits.len().max(1) as f64
        };
        let row = |(request, placed): &(&SimRequest, &SimulatedPlacement)| {
            (steps(request.arrived_at_ns), request.model, steps(placed.started_at_ns), placed.device + 1)
        };
        let mut dispatches: Vec<_> = all.iter().map(row).collect();
        dispatches.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.total_cmp(&b.0)));
        Self {
            total: all.iter().map(|(_, placed)| steps(placed.ended_at_ns)).fold(0.0, f64::max),
            cold_starts: all.iter().filter(|(_, placed)| !placed.hit).count(),
            wait: wait(None),
            wait_by_model: [wait(Some(0)), wait(Some(1))],
            dispatches,
        }
    }
}
