//! Cost of one call of `handle`: `cargo bench -p weir-scheduler`.
//!
//! A cluster under load: all devices, of the size of the LALB paper's, are busy, with a long queue
//! over many models. Each step ends one run and adds one arrival, so that the queue length is
//! constant. The measurement covers one call with its actions, without carrying them out. Times
//! depend on the machine and its load. Instruction counts do not: `cargo bench -p weir-scheduler --
//! instructions` counts the instructions of each call with valgrind, and shows how they grow with
//! devices and queue. `cargo bench -p weir-scheduler -- slo` counts the cost of admission: all
//! invocations have an SLO of 20 runs, and twice as many arrive as the devices can serve.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails by panicking")]

use std::collections::VecDeque;
use std::process::Command;
use std::time::Instant;
use weir_scheduler::sim::TABLE_I;
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, PolicyKind, PolicyOptions, Scheduler,
    Settings, Slo,
};
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const NODE: NodeId = NodeId(0);
const STEPS: u32 = 20_000;
const RUN_NS: u64 = 1_300_000_000;

struct BenchWorld {
    scheduler: Scheduler,
    names: Vec<(FunctionId, ModelDemand)>,
    running: VecDeque<(InvocationId, DeviceId)>,
    now_ns: u64,
    step_ns: u64,
    next: u64,
    lots: u64,
    /// Durations of single calls.
    samples: Vec<u64>,
    /// Whether valgrind counts.
    counts: bool,
    /// Maximum latency of invocations, if they have an SLO.
    slo_ns: Option<u64>,
}

impl BenchWorld {
    fn new(policy: PolicyKind, devices: u32, queue: u64, models: u32, slo_ns: Option<u64>) -> Self {
        let settings = Settings { queue_len_max: usize::MAX, ..Settings::default() };
        let mut scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let spec = DeviceSpec {
            kind: "gpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: 8_192_000_000,
            slots: 1,
            invocations_max: 1,
            rule: DeviceRule::default(),
        };
        let up = Event::NodeUp { node: NODE, devices: vec![spec; devices as usize] };
        scheduler.handle(0, up, &mut Vec::new());
        let names = (0..models).map(names).collect();
        let (running, samples) = Default::default();
        let step_ns = RUN_NS / u64::from(devices);
        let now_ns = 0;
        let next = 0;
        let lots = 1;
        let counts = false;
        let mut world =
            Self { scheduler, names, running, now_ns, step_ns, next, lots, samples, counts, slo_ns };
        (0..queue + u64::from(devices)).for_each(|_| world.arrive());
        // Warms up until memories are full and rates are known.
        (0..2 * devices).for_each(|_| world.step());
        world.samples.clear();
        world
    }

    fn step(&mut self) {
        self.now_ns += self.step_ns;
        if let Some((invocation, _)) = self.running.pop_front() {
            self.tell(Event::Finished { invocation, used: None });
        }
        // With an SLO, as many invocations are rejected as admitted.
        (0..if self.slo_ns.is_some() { 2 } else { 1 }).for_each(|_| self.arrive());
    }

    fn arrive(&mut self) {
        self.lots = self.lots.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // A few functions are requested often, most of them rarely.
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
            run_times_ns: Vec::new(),
            slo: self.slo_ns.map(|slo_ns| Slo { due_at_ns: self.now_ns + slo_ns, ..Slo::default() }),
            inputs: Vec::new(),
            batch_items_max: 0,
            is_splittable: false,
            steps: Vec::new(),
        }));
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::with_capacity(4);
        let begun = Instant::now();
        if self.counts {
            counted_handle(&mut self.scheduler, self.now_ns, event, &mut actions);
        } else {
            self.scheduler.handle(self.now_ns, event, &mut actions);
        }
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
                let bytes = why.estimate.missing_bytes;
                let load_time_ns = Some(why.estimate.load_time_ns);
                self.tell(Event::Loaded { device, model, bytes, load_time_ns, parts: Vec::new() });
            }
        }
    }
}

/// The function whose instructions valgrind counts, selected by name.
#[inline(never)]
fn counted_handle(scheduler: &mut Scheduler, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
    scheduler.handle(now_ns, event, actions);
}

fn names(index: u32) -> (FunctionId, ModelDemand) {
    let (mb, load_ms, _) = TABLE_I[index as usize % TABLE_I.len()];
    let tenant = TenantId::new(&format!("tenant-{}", index % 8)).unwrap();
    let name = Name::new(&format!("m{index}")).unwrap();
    let function = FunctionId { tenant: tenant.clone(), name: name.clone(), version: Version(1) };
    let model = ModelId { tenant, name, version: Version(1) };
    (
        function,
        ModelDemand {
            model,
            bytes: mb * 1_000_000,
            load_time_ns: Some(load_ms * 1_000_000),
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        },
    )
}

/// Devices and waiting requests. All policies are measured with the first entry.
const SIZES: [(u32, u64); 7] = [
    (1_000, 10_000),
    (10, 10_000),
    (100, 10_000),
    (10_000, 10_000),
    (1_000, 100),
    (1_000, 1_000),
    (1_000, 100_000),
];

/// The same for instruction counts, measured for all policies.
const COUNTED: [(u32, u64); 4] = [(100, 1_000), (100, 10_000), (1_000, 1_000), (1_000, 10_000)];

const MODELS: u32 = 2_000;

/// Devices and models for the instruction counts of admission.
const ADMITTED: [(u32, u32); 4] = [(1, 3), (10, 30), (100, 300), (1_000, 2_000)];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    let only: Option<PolicyKind> = words.iter().find_map(|name| name.parse().ok());
    let policies = || PolicyKind::ALL.into_iter().filter(|policy| only.is_none_or(|only| only == *policy));
    if let [count, policy, devices, waiting, models] = &words[..]
        && let Some(slo_ns) =
            [("count", None), ("count-slo", Some(20 * RUN_NS))].iter().find(|(name, _)| name == count)
    {
        let devices = devices.parse().unwrap();
        let waiting = waiting.parse().unwrap();
        return count_calls(policy.parse().unwrap(), (devices, waiting, models.parse().unwrap()), slo_ns.1);
    }
    if has("slo") {
        println!("| devices | models | instructions |\n|---|---|---|");
        for (devices, models) in ADMITTED {
            let each =
                instructions("count-slo", PolicyKind::default(), (devices, 6 * u64::from(devices), models));
            println!("| {devices} | {models} | {each} |");
        }
        return;
    }
    if has("instructions") {
        println!("| policy | devices | waiting | models | instructions |\n|---|---|---|---|---|");
        for policy in policies() {
            for (devices, waiting) in COUNTED {
                let each = instructions("count", policy, (devices, waiting, MODELS));
                println!("| {policy} | {devices} | {waiting} | {MODELS} | {each} |");
            }
        }
        return;
    }
    println!(
        "| policy | devices | waiting | models | p50 µs | p99 µs | mean µs |\n|---|---|---|---|---|---|---|"
    );
    policies().for_each(|policy| row(policy, SIZES[0].0, SIZES[0].1, MODELS));
    for (devices, waiting) in SIZES.into_iter().skip(1).filter(|_| !has("one")) {
        row(only.unwrap_or_default(), devices, waiting, MODELS);
    }
}

/// Mean instructions per call, counted by valgrind.
fn instructions(what: &str, policy: PolicyKind, (devices, waiting, models): (u32, u64, u32)) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=*counted_handle*",
    ]);
    valgrind.arg(std::env::current_exe().unwrap()).arg(what);
    valgrind.args([policy.to_string(), devices.to_string(), waiting.to_string(), models.to_string()]);
    let output = valgrind.output().unwrap_or_else(|error| panic!("valgrind is needed to count: {error}"));
    let (calls, told) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let collected = told.lines().find_map(|line| line.split("Collected :").nth(1));
    let collected: u64 = collected.unwrap_or_else(|| panic!("{told}")).trim().parse().unwrap();
    collected / calls.trim().parse::<u64>().unwrap()
}

/// The program that valgrind runs: counts some steps, and prints the number of calls.
fn count_calls(policy: PolicyKind, (devices, waiting, models): (u32, u64, u32), slo_ns: Option<u64>) {
    let mut world = BenchWorld::new(policy, devices, waiting, models, slo_ns);
    world.counts = true;
    (0..if slo_ns.is_some() { STEPS / 100 } else { STEPS / 20 }).for_each(|_| world.step());
    println!("{}", world.samples.len());
}

fn row(policy: PolicyKind, devices: u32, waiting: u64, models: u32) {
    let mut world = BenchWorld::new(policy, devices, waiting, models, None);
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
