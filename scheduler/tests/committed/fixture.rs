//! Nodes with one device each, and workloads for the simulator.

use weir_scheduler::sim::{
    ModelCosts, SimRequest, SimulatedCluster, SimulatedSchedule, SimulationMetrics, Workload, run,
};
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, DeviceUse, Event, ModelDemand, PolicyKind, PolicyOptions,
    Scheduler, Settings,
};
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
pub(crate) const MIB: u64 = 1 << 20;

/// A scheduler and its nodes, with one device each, as a node with default settings announces it.
pub(crate) struct Fixture {
    pub(crate) scheduler: Scheduler,
    pub(crate) now_ns: u64,
}

/// A start: the invocation, the node, and the estimated load time.
pub(crate) type ObservedStart = (u64, u32, u64);

impl Fixture {
    pub(crate) fn new(policy: PolicyKind, nodes: u32, slots: u32) -> Self {
        let scheduler = Scheduler::with_policy(&Settings::default(), policy.build(&PolicyOptions::default()));
        let mut cluster = Self { scheduler, now_ns: 0 };
        let spec = DeviceSpec {
            kind: "gpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: 1_000 * MIB,
            slots,
            invocations_max: 1_000,
            rule: DeviceRule::CommittedWork,
        };
        for node in (0..nodes).map(NodeId) {
            cluster.tell(Event::NodeUp { node, devices: vec![spec.clone()] });
        }
        cluster
    }

    pub(crate) fn tell(&mut self, event: Event) -> Vec<ObservedStart> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        let starts = actions.into_iter().filter_map(|action| match action {
            Action::Start { invocation, device, why, .. } => {
                Some((invocation.0, device.unwrap().node.0, why.estimate.load_time_ns))
            }
            _ => None,
        });
        starts.collect()
    }

    pub(crate) fn arrive(
        &mut self,
        id: u64,
        (run_time_ns, load_time_ns): (u64, Option<u64>),
    ) -> Vec<ObservedStart> {
        self.tell(Event::Arrived(arrival(id, run_time_ns, load_time_ns)))
    }

    pub(crate) fn loaded(&mut self, node: u32, load_time_ns: u64) -> Vec<ObservedStart> {
        self.tell(Event::Loaded {
            device: device(node),
            model: model(),
            bytes: 100 * MIB,
            load_time_ns: Some(load_time_ns),
            parts: Vec::new(),
        })
    }

    pub(crate) fn started(&mut self, id: u64) -> Vec<ObservedStart> {
        self.tell(Event::Started { invocation: InvocationId(id) })
    }

    pub(crate) fn finish(&mut self, id: u64, used: DeviceUse) -> Vec<ObservedStart> {
        self.tell(Event::Finished { invocation: InvocationId(id), used: Some(used) })
    }
}

pub(crate) fn device(node: u32) -> DeviceId {
    DeviceId { node: NodeId(node), ordinal: 0 }
}

pub(crate) fn model() -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) }
}

pub(crate) fn arrival(id: u64, run_time_ns: u64, load_time_ns: Option<u64>) -> Arrival {
    Arrival {
        invocation: InvocationId(id),
        function: FunctionId {
            tenant: TenantId::default(),
            name: Name::new("f").unwrap(),
            version: Version(1),
        },
        models: vec![ModelDemand {
            model: model(),
            bytes: 100 * MIB,
            load_time_ns,
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        }],
        deadline_at_ns: u64::MAX,
        priority: 0,
        batch: 1,
        run_time_ns: Some(run_time_ns),
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 0,
        is_splittable: false,
        steps: Vec::new(),
    }
}

/// The use of a device by an inference that ran alone and did not wait.
pub(crate) fn alone(run_time_ns: u64) -> DeviceUse {
    DeviceUse { device_time_ns: run_time_ns, run_time_ns, batch_items: 1, wait_ns: 0 }
}

/// One request per `every_ns` for each model, for a minute.
pub(crate) fn workload(devices: u32, every_ns: u64, runs_ns: &[u64], load_time_ns: u64) -> Workload {
    let costs = |run_time_ns: &u64| ModelCosts { bytes: MIB, load_time_ns, run_time_ns: *run_time_ns };
    let models: Vec<_> = runs_ns.iter().map(costs).collect();
    let request = |(number, model)| SimRequest { arrived_at_ns: number * every_ns, model, tenant: model };
    let count = u32::try_from(models.len()).unwrap();
    let numbers = (0..60 * SECOND / every_ns).flat_map(|number| (0..count).map(move |model| (number, model)));
    Workload::new(models, numbers.map(request).collect(), devices, 1_000 * MIB).unwrap()
}

pub(crate) fn simulate(
    workload: &Workload,
    cluster: &SimulatedCluster,
    policy: PolicyKind,
) -> (SimulatedSchedule, SimulationMetrics) {
    let schedule = run(workload, cluster, || policy.build(&PolicyOptions::default())).unwrap();
    let metrics = SimulationMetrics::from_schedule(workload, &schedule);
    (schedule, metrics)
}
