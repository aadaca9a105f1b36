//! Placements without a network: ends of calls and their use of the device, on a single node and on
//! the dispatcher of a cluster.

mod ends;
mod forwarded;
mod load;
mod required;
mod taking_over;

use super::clock::now;
use super::driver::LinkId;
use super::state::{Placement, Placer, RemotePlacement};
use super::{HealthChange, PlacementConfig, PlacementGuard, Placements};
use crate::wire::{AnnouncedInvocation, DispatcherCommand, Hello};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_call::Objective;
use weir_inference::{Health, RunObserver};
use weir_scheduler::{Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, Setup, StorageTier};
use weir_telemetry::Metrics;
use weir_types::{FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version};

const NODE: NodeId = NodeId(1);

/// The placements of a node whose scheduler's events are recorded.
struct Fixture {
    placements: Arc<Placements>,
    metrics: Arc<Metrics>,
    _folder: TempDir,
}

impl Fixture {
    /// A node with one device of one run slot.
    fn new(setup: Setup) -> Self {
        Self::with_devices(setup, vec![device()])
    }

    fn with_devices(setup: Setup, devices: Vec<DeviceSpec>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new();
        let placements = Placements::start(PlacementConfig {
            node: NODE,
            address: Some("one:1".to_owned()),
            devices,
            origin: StorageTier::Disk,
            unasked_max: 1,
            scheduler: setup,
            record: Some(folder.path().join("record")),
            metrics: metrics.clone(),
        });
        Self { placements, metrics, _folder: folder }
    }

    /// Places a call that uses a model.
    async fn place(&self, invocation: u64) -> PlacementGuard {
        let objective = Objective::default();
        let placed = self.placements.place(arrival(invocation), &objective, now());
        let (placement, guard) = placed.await.unwrap();
        assert!(matches!(placement, Placement::Local(local) if local.device == Some(0)));
        guard
    }

    /// Places a call that uses a model, on another node.
    async fn place_remotely(&self, invocation: u64) -> (RemotePlacement, PlacementGuard) {
        let objective = Objective::default();
        let placed = self.placements.place(arrival(invocation), &objective, now());
        match placed.await.unwrap() {
            (Placement::Remote(remote), guard) => (remote, guard),
            (Placement::Local(local), _) => panic!("{local:?}"),
        }
    }

    /// Takes this node's device away, so that calls are placed on other nodes.
    fn lose_device(&self) {
        let lost = watch::Sender::new(Health::Lost("a test".into()));
        assert_eq!(self.placements.note_health(0, &lost.subscribe()), Some(HealthChange::Lost));
    }

    /// Adds a node with one device, where `running` runs.
    fn join(&self, node: NodeId, running: Vec<AnnouncedInvocation>) -> TestRequester {
        self.join_with(node, vec![device()], running)
    }

    /// Adds a node that only receives calls.
    fn join_without_device(&self, node: NodeId) -> TestRequester {
        self.join_with(node, Vec::new(), Vec::new())
    }

    fn join_with(
        &self,
        node: NodeId,
        devices: Vec<DeviceSpec>,
        running: Vec<AnnouncedInvocation>,
    ) -> TestRequester {
        let (commands, received) = mpsc::channel(100);
        let (resident, staged, down) = Default::default();
        let origin = StorageTier::Disk;
        let address = format!("node:{}", node.0).into();
        let hello =
            Hello { node, address, devices, resident, origin, staged, down, running, has_more: false };
        let link = self.placements.join(hello, commands, CancellationToken::new()).unwrap();
        TestRequester { node, link, received }
    }

    /// Begins a request of a call on its device.
    fn request(&self, invocation: u64) -> Arc<dyn RunObserver> {
        self.placements.recorder(InvocationId(invocation), 0).unwrap().request()
    }

    /// The ends that the scheduler has learnt of since the last call.
    fn ends(&self) -> Vec<Event> {
        let events = self.events().into_iter();
        let is_end = |event: &Event| {
            matches!(event, Event::Finished { .. } | Event::Failed { .. } | Event::Cancelled { .. })
        };
        events.filter(is_end).collect()
    }

    fn events(&self) -> Vec<Event> {
        let lines = match &mut self.placements.state.lock().placer {
            Placer::Own(driver) => driver.take_lines(),
            Placer::Dispatcher(_) => panic!("the node has no scheduler"),
        };
        let lines = std::str::from_utf8(&lines).unwrap().lines();
        let events = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let events = events.filter_map(|mut line| line.get_mut("event").map(serde_json::Value::take));
        events.map(|event| serde_json::from_value(event).unwrap()).collect()
    }
}

/// A node that requests placements from the stage.
struct TestRequester {
    node: NodeId,
    link: LinkId,
    received: mpsc::Receiver<DispatcherCommand>,
}

impl TestRequester {
    /// The commands received since the last call.
    fn commands(&mut self) -> Vec<DispatcherCommand> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

fn device() -> DeviceSpec {
    DeviceSpec {
        kind: "cpu".into(),
        platform: Platform::Cpu,
        capacity_bytes: 1_000,
        slots: 1,
        invocations_max: 1_000,
        rule: DeviceRule::CommittedWork,
    }
}

fn model() -> ModelId {
    ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) }
}

fn arrival(invocation: u64) -> Arrival {
    let demand = ModelDemand {
        model: model(),
        bytes: 100,
        load_time_ns: None,
        runs_on: Platforms::ALL,
        parts: Vec::new(),
    };
    let ModelId { tenant, name, .. } = model();
    Arrival {
        invocation: InvocationId(invocation),
        function: FunctionId { tenant, name, version: Version(0) },
        models: vec![demand],
        deadline_at_ns: u64::MAX,
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
