//! Calls of the nodes: as many as possible, or at a rate.

use crate::cluster::{BenchCluster, BenchNode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_call::Objective;
use weir_cluster::{Granted, Placement, Placements};
use weir_inference::ObservedRun;
use weir_scheduler::{Arrival, ModelDemand};
use weir_types::{FunctionId, InvocationId, ModelId, Ordinal, Platforms};

/// The device time that a node reports for a run. No time passes.
const RUN_NS: u64 = 50_000;
/// The time until a call's deadline.
const DEADLINE: Duration = Duration::from_secs(30);
/// The pause between looks at the calls that are due. The open loop counts latency from the time at
/// which a call is due, so the pause is part of it.
const PACE: Duration = Duration::from_micros(50);

/// The numbers of calls, which are unique in the process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The calls of one measurement.
pub(crate) struct Measured {
    /// Times from a call's due time to its placement, sorted.
    latencies_ns: Vec<u64>,
    elsewhere: usize,
    time: Duration,
}

/// The placement of one call.
#[derive(Debug, Clone, Copy)]
struct Placed {
    latency_ns: u64,
    is_elsewhere: bool,
}

impl Measured {
    fn new(placed: Vec<Placed>, time: Duration) -> Self {
        assert!(!placed.is_empty(), "no call was placed");
        let elsewhere = placed.iter().filter(|placed| placed.is_elsewhere).count();
        let mut latencies_ns: Vec<_> = placed.into_iter().map(|placed| placed.latency_ns).collect();
        latencies_ns.sort_unstable();
        Self { latencies_ns, elsewhere, time }
    }

    pub(crate) fn placed(&self) -> usize {
        self.latencies_ns.len()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.placed() as f64 / self.time.as_secs_f64()
    }

    /// The share of the calls that were placed on another node than the one that received them.
    pub(crate) fn elsewhere(&self) -> f64 {
        self.elsewhere as f64 / self.placed() as f64
    }

    pub(crate) fn quantile_ms(&self, q: f64) -> f64 {
        let last = self.placed() - 1;
        self.latencies_ns[(last as f64 * q).round() as usize] as f64 / 1e6
    }
}

/// Runs `callers` calls at a time on each node.
pub(crate) fn closed(cluster: &BenchCluster, callers: u32, time: Duration) -> Measured {
    let is_over = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let caller = |at: usize| {
        let nodes = cluster.nodes.clone();
        let models = cluster.models.clone();
        let is_over = is_over.clone();
        cluster.runtime.spawn(async move {
            let mut placed = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                placed.push(call(&nodes, at, &models, Instant::now()).await);
            }
            placed
        })
    };
    let callers: Vec<_> = (0..callers as usize * cluster.nodes.len())
        .map(|number| caller(number % cluster.nodes.len()))
        .collect();
    std::thread::sleep(time);
    is_over.store(true, Ordering::Relaxed);
    let placed = cluster.runtime.block_on(async {
        let mut placed = Vec::new();
        for caller in callers {
            placed.append(&mut caller.await.unwrap());
        }
        placed
    });
    Measured::new(placed, begun.elapsed())
}

/// Starts `rate` calls per second, at even intervals, whether or not earlier calls are placed.
pub(crate) fn open(cluster: &BenchCluster, rate: f64, time: Duration) -> Measured {
    let count = (rate * time.as_secs_f64()) as u64;
    let placed = Arc::new(Mutex::new(Vec::with_capacity(count as usize)));
    let begun = Instant::now();
    let mut calls = Vec::with_capacity(count as usize);
    for number in 0..count {
        let due = begun + Duration::from_secs_f64(number as f64 / rate);
        while Instant::now() < due {
            std::thread::sleep(PACE);
        }
        let nodes = cluster.nodes.clone();
        let models = cluster.models.clone();
        let placed = placed.clone();
        calls.push(cluster.runtime.spawn(async move {
            let one = call(&nodes, number as usize % nodes.len(), &models, due).await;
            placed.lock().push(one);
        }));
    }
    cluster.runtime.block_on(async {
        for call in calls {
            call.await.unwrap();
        }
    });
    Measured::new(std::mem::take(&mut *placed.lock()), begun.elapsed())
}

/// Places one call of the node at `at`, and reports its run and its end, as the node that it is
/// placed on would.
async fn call(nodes: &[BenchNode], at: usize, models: &[ModelId], due: Instant) -> Placed {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let model = &models[number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % models.len()];
    let placements = &nodes[at].placements;
    let arrival = arrival(InvocationId(number), model, placements);
    let placed = placements.place(arrival.clone(), &Objective::default(), due).await;
    let (placement, guard) = placed.unwrap_or_else(|fault| panic!("a call was not placed: {fault:?}"));
    let latency_ns = u64::try_from(due.elapsed().as_nanos()).unwrap();
    let is_elsewhere = match placement {
        Placement::Local(local) => {
            run(placements, arrival.invocation, local.device);
            false
        }
        Placement::Remote(remote) => {
            let node = nodes.iter().find(|node| *node.address == *remote.address).unwrap();
            let granted = Granted { origin: Some(placements.node()), ..remote.granted.clone() };
            let (_, granted) = node.placements.granted(&granted, arrival.clone());
            run(&node.placements, arrival.invocation, remote.granted.device);
            granted.ended(true);
            drop(granted);
            remote.answered();
            true
        }
    };
    guard.ended(true);
    Placed { latency_ns, is_elsewhere }
}

/// Reports a run on the device of a node.
fn run(placements: &Placements, invocation: InvocationId, device: Option<Ordinal>) {
    let recorder = device.and_then(|device| placements.recorder(invocation, device));
    let request = recorder.expect("the call was placed on a device").request();
    request.started();
    request.ended(&ObservedRun { part_ns: RUN_NS, run_time_ns: RUN_NS, items: 1 });
    request.over();
}

fn arrival(invocation: InvocationId, model: &ModelId, placements: &Placements) -> Arrival {
    let ModelId { tenant, name, version } = model.clone();
    Arrival {
        invocation,
        function: FunctionId { tenant, name, version },
        models: vec![ModelDemand {
            model: model.clone(),
            bytes: 1_000,
            load_time_ns: Some(10_000_000),
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        }],
        deadline_at_ns: placements.time_ns(Instant::now() + DEADLINE),
        priority: 0,
        batch: 1,
        batch_items_max: 1,
        is_splittable: false,
        steps: Vec::new(),
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
    }
}
