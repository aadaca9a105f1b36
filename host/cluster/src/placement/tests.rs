//! Placements without a cluster: ends of calls, and their use of the device.

mod ends;

use super::state::{Placement, Placer};
use super::{PlacementConfig, PlacementGuard, Placements};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use weir_call::Objective;
use weir_inference::RunObserver;
use weir_scheduler::{Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, Setup};
use weir_telemetry::Metrics;
use weir_types::{FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version};

const NODE: NodeId = NodeId(1);

/// The placements of a single node whose scheduler's events are recorded.
struct Stage {
    placements: Arc<Placements>,
    _folder: TempDir,
}

impl Stage {
    /// A node with one device of one run slot.
    fn new(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device = DeviceSpec {
            kind: "cpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: 1_000,
            slots: 1,
            invocations_max: 1_000,
            rule: DeviceRule::CommittedWork,
        };
        let placements = Placements::start(PlacementConfig {
            node: NODE,
            address: None,
            devices: vec![device],
            unasked_max: 1,
            scheduler: setup,
            record: Some(folder.path().join("record")),
            metrics: Metrics::new(),
        });
        Self { placements, _folder: folder }
    }

    /// Places a call that uses a model.
    async fn place(&self, invocation: u64) -> PlacementGuard {
        let objective = Objective::default();
        let placed = self.placements.place(arrival(invocation), &objective, Instant::now());
        let (placement, guard) = placed.await.unwrap();
        assert!(matches!(placement, Placement::Local(local) if local.device == Some(0)));
        guard
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
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
    }
}
