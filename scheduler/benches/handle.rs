//! What one `handle` costs: `cargo bench -p weir-scheduler`.
//!
//! A cluster under load: devices of the size of seed 000's, all busy, a long queue over many models. Each step ends one run and lets one
//! invocation arrive, so that the queue stays as long as it is. What is timed is one call with its actions, the carrying out of which is
//! not. Times are of this machine; how they grow with devices and queue is the same on others.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::VecDeque;
use std::time::Instant;
use weir_scheduler::sim::TABLE_I;
use weir_scheduler::{
    Action, Arrival, DeviceSpec, Event, ModelDemand, PolicyKind, PolicyOptions, Scheduler, Settings,
};
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, TenantId, Version};

const NODE: NodeId = NodeId(0);
const STEPS: u32 = 20_000;
const RUN_NS: u64 = 1_300_000_000;

struct World {
    scheduler: Scheduler,
    names: Vec<(FunctionId, ModelDemand)>,
    running: VecDeque<(InvocationId, DeviceId)>,
    now_ns: u64,
    step_ns: u64,
    next: u64,
    lots: u64,
    /// What single calls took.
    samples: Vec<u64>,
}

impl World {
    fn new(policy: PolicyKind, devices: u32, queue: u64, models: u32) -> Self {
        let settings = Settings { queue_len_max: usize::MAX, ..Settings::default() };
        let mut scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let spec =
            DeviceSpec { kind: "gpu".into(), capacity_bytes: 8_192_000_000, slots: 1, invocations_max: 1 };
        let up = Event::NodeUp { node: NODE, devices: vec![spec; devices as usize] };
        scheduler.handle(0, up, &mut Vec::new());
        let names = (0..models).map(names).collect();
        let (running, samples) = Default::default();
        let step_ns = RUN_NS / u64::from(devices);
        let mut world = Self { scheduler, names, running, now_ns: 0, step_ns, next: 0, lots: 1, samples };
        (0..queue + u64::from(devices)).for_each(|_| world.arrive());
        // Until memories are full and rates are known.
        (0..2 * devices).for_each(|_| world.step());
        world.samples.clear();
        world
    }

    fn step(&mut self) {
        self.now_ns += self.step_ns;
        if let Some((invocation, _)) = self.running.pop_front() {
            self.tell(Event::Finished { invocation });
        }
        self.arrive();
    }

    fn arrive(&mut self) {
        self.lots = self.lots.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Few are asked for often, most of them rarely.
        let lot = (self.lots >> 40) as f64 / (1_u64 << 24) as f64;
        let (function, demand) = self.names[(lot * lot * self.names.len() as f64) as usize].clone();
        let invocation = InvocationId(self.next);
        self.next += 1;
        self.tell(Event::Arrived(Arrival {
            invocation,
            function,
            models: vec![demand],
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: Some(RUN_NS),
        }));
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::with_capacity(4);
        let begun = Instant::now();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        self.samples.push(u64::try_from(begun.elapsed().as_nanos()).unwrap());
        for action in actions {
            let Action::Start { invocation, device: Some(device), evict, why, .. } = action else { continue };
            self.running.push_back((invocation, device));
            for model in evict {
                self.tell(Event::Evicted { device, model });
            }
            if why.estimate.missing_bytes > 0 {
                let view = self.scheduler.view();
                let held = view.device(view.device_key(device).unwrap()).unwrap().held();
                let model = held.map(|model| view.model_id(model).clone()).find(|model| {
                    let index: usize = model.name.as_str()[1..].parse().unwrap();
                    self.names[index].1.bytes == why.estimate.missing_bytes
                });
                let Some(model) = model else { continue };
                let (bytes, load_time_ns) = (why.estimate.missing_bytes, Some(why.estimate.load_time_ns));
                self.tell(Event::Loaded { device, model, bytes, load_time_ns });
            }
        }
    }
}

fn names(index: u32) -> (FunctionId, ModelDemand) {
    let (mb, load_ms, _) = TABLE_I[index as usize % TABLE_I.len()];
    let tenant = TenantId::new(&format!("tenant-{}", index % 8)).unwrap();
    let name = Name::new(&format!("m{index}")).unwrap();
    let function = FunctionId { tenant: tenant.clone(), name: name.clone(), version: Version(1) };
    let model = ModelId { tenant, name, version: Version(1) };
    (function, ModelDemand { model, bytes: mb * 1_000_000, load_time_ns: Some(load_ms * 1_000_000) })
}

fn main() {
    println!(
        "| policy | devices | waiting | models | p50 µs | p99 µs | mean µs |\n|---|---|---|---|---|---|---|"
    );
    let only: Option<PolicyKind> = std::env::args().skip(1).find_map(|name| name.parse().ok());
    for policy in PolicyKind::ALL.into_iter().filter(|policy| only.is_none_or(|only| only == *policy)) {
        row(policy, 1_000, 10_000, 2_000);
    }
    if std::env::args().any(|name| name == "one") {
        return;
    }
    for (devices, waiting) in
        [(10, 10_000), (100, 10_000), (10_000, 10_000), (1_000, 100), (1_000, 1_000), (1_000, 100_000)]
    {
        row(only.unwrap_or_default(), devices, waiting, 2_000);
    }
}

fn row(policy: PolicyKind, devices: u32, waiting: u64, models: u32) {
    let mut world = World::new(policy, devices, waiting, models);
    (0..STEPS).for_each(|_| world.step());
    let samples = &mut world.samples;
    samples.sort_unstable();
    let us = |ns: u64| ns as f64 / 1e3;
    let part = |part: usize| us(samples[samples.len() * part / 100]);
    let mean = us(samples.iter().sum::<u64>() / samples.len() as u64);
    println!(
        "| {policy} | {devices} | {waiting} | {models} | {:.2} | {:.2} | {mean:.2} |",
        part(50),
        part(99)
    );
}
