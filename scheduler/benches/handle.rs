//! What one [`Scheduler::handle`] costs: `cargo bench -p weir-scheduler`.

use std::hint::black_box;
use std::time::Instant;
use weir_scheduler::{Arrival, DeviceSpec, Event, ModelDemand, Scheduler, Settings};
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, TenantId, Version};

const CALLS: u64 = 1_000_000;

fn main() {
    let name = |text: &str| Name::new(text).unwrap_or_else(|error| unreachable!("{error}"));
    let function = FunctionId { tenant: TenantId::default(), name: name("hello"), version: Version(1) };
    let model = ModelId { tenant: TenantId::default(), name: name("digits"), version: Version(1) };
    let demand = ModelDemand { model: model.clone(), bytes: 1_000, load_time_ns: None };
    for (what, models) in [("without models", vec![]), ("with a resident model", vec![demand])] {
        let mut scheduler = Scheduler::new(Settings::default());
        let mut actions = Vec::new();
        let spec =
            DeviceSpec { kind: "cpu".into(), capacity_bytes: 1 << 30, slots: 2, invocations_max: 1_000 };
        scheduler.handle(0, Event::NodeUp { node: NodeId(0), devices: vec![spec] }, &mut actions);
        let device = DeviceId { node: NodeId(0), ordinal: 0 };
        let loaded = Event::Loaded { device, model: model.clone(), bytes: 1_000, load_time_ns: Some(1) };
        scheduler.handle(0, loaded, &mut actions);
        // Some others run meanwhile.
        let arrive = |scheduler: &mut Scheduler, actions: &mut Vec<_>, now_ns: u64, id: u64| {
            let invocation = InvocationId(id);
            let (function, models) = (function.clone(), models.clone());
            let arrival = Arrival { invocation, function, models, deadline_at_ns: u64::MAX, priority: 0 };
            scheduler.handle(now_ns, Event::Arrived(arrival), actions);
        };
        (0..100).for_each(|id| arrive(&mut scheduler, &mut actions, 1, id));
        let started = Instant::now();
        for id in 100..CALLS + 100 {
            actions.clear();
            arrive(&mut scheduler, &mut actions, id, id);
            scheduler.handle(id, Event::Finished { invocation: InvocationId(id - 100) }, &mut actions);
            black_box(&actions);
        }
        #[expect(clippy::cast_precision_loss, reason = "a million calls take far less than 2^52 ns")]
        let each_ns = started.elapsed().as_nanos() as f64 / CALLS as f64;
        println!("{what}: arrival and end together {each_ns:.0} ns");
    }
}
