//! Messages of all kinds: fixed ones, and strategies for arbitrary ones.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::sync::Arc;
use weir_link::{AnnouncedInvocation, AnnouncedModel, DispatcherCommand, Hello, NodeEvent, StagedModel};
use weir_scheduler::{
    Alternative, Arrival, DeviceKind, DeviceRule, DeviceSpec, DeviceUse, Estimate, InputsOn, LoadByTier,
    MeasuredTransfer, ModelDemand, Part, PartId, PlannedStep, Rejection, Slo, StorageTier, Why,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

fn model_named(tenant: &str, name: &str) -> ModelId {
    ModelId { tenant: TenantId::new(tenant).unwrap(), name: Name::new(name).unwrap(), version: Version(3) }
}

/// An arrival with one model.
pub(crate) fn arrival() -> NodeEvent {
    let ModelId { tenant, name, version } = model_named("acme", "classify");
    let arrival = Arrival {
        invocation: InvocationId(0x1234_5678_9abc),
        function: FunctionId { tenant, name, version },
        models: vec![ModelDemand {
            model: model_named("acme", "digits"),
            bytes: 100_000,
            load_time_ns: Some(7_000_000),
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        }],
        deadline_at_ns: 0,
        priority: 0,
        batch: 1,
        run_time_ns: None,
        run_times_ns: Vec::new(),
        slo: None,
        inputs: Vec::new(),
        batch_items_max: 8,
        is_splittable: false,
        steps: Vec::new(),
    };
    NodeEvent::Arrived { arrival, deadline_in_ns: 30_000_000_000, due_in_ns: None }
}

/// The end of an invocation.
pub(crate) fn finished() -> NodeEvent {
    let used = DeviceUse { device_time_ns: 50_000, run_time_ns: 60_000, batch_items: 2, wait_ns: 1 };
    NodeEvent::Finished { invocation: InvocationId(u64::MAX), used }
}

/// A placement with an alternative.
pub(crate) fn start() -> DispatcherCommand {
    let estimate = Estimate {
        run_time_ns: 50_000,
        load_by_tier: LoadByTier { disk_ns: 9, ..LoadByTier::default() },
        cost: Cost::from_nanos(u64::MAX),
        ..Estimate::default()
    };
    let alternative = Alternative { device: DeviceId { node: NodeId(2), ordinal: 1 }, estimate };
    DispatcherCommand::Start {
        invocation: InvocationId(7),
        node: NodeId(3),
        device: Some(0),
        address: Some("10.0.0.3:9347".into()),
        evict: vec![model_named("acme", "digits")],
        why: Box::new(Why { estimate, alternatives: vec![alternative], queued_ns: 12 }),
    }
}

pub(crate) fn event() -> impl Strategy<Value = NodeEvent> {
    let used = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
        |(device_time_ns, run_time_ns, batch_items, wait_ns)| DeviceUse {
            device_time_ns,
            run_time_ns,
            batch_items,
            wait_ns,
        },
    );
    let id = || any::<u64>().prop_map(InvocationId);
    let device = any::<u32>();
    prop_oneof![
        hello().prop_map(NodeEvent::Hello),
        (vec(announced(), 0..3), any::<bool>())
            .prop_map(|(running, is_last)| NodeEvent::Running { running, is_last }),
        (any_arrival(), any::<u64>(), any::<Option<u64>>()).prop_map(
            |(arrival, deadline_in_ns, due_in_ns)| {
                NodeEvent::Arrived { arrival, deadline_in_ns, due_in_ns }
            }
        ),
        id().prop_map(|invocation| NodeEvent::Started { invocation }),
        (id(), used.clone()).prop_map(|(invocation, used)| NodeEvent::Finished { invocation, used }),
        (id(), used.clone()).prop_map(|(invocation, used)| NodeEvent::Failed { invocation, used }),
        (id(), option::of(used)).prop_map(|(invocation, used)| NodeEvent::Cancelled { invocation, used }),
        id().prop_map(|invocation| NodeEvent::Answered { invocation }),
        id().prop_map(|invocation| NodeEvent::Abandoned { invocation }),
        (device, model(), any::<u64>(), any::<Option<u64>>(), parts()).prop_map(
            |(device, model, bytes, load_time_ns, parts)| NodeEvent::Loaded {
                device,
                model,
                bytes,
                load_time_ns,
                parts,
            }
        ),
        (device, model()).prop_map(|(device, model)| NodeEvent::Evicted { device, model }),
        vec(staged(), 0..3).prop_map(|models| NodeEvent::Staged { models }),
        device.prop_map(|device| NodeEvent::DeviceDown { device }),
        device.prop_map(|device| NodeEvent::DeviceUp { device }),
        (device, any::<u64>())
            .prop_map(|(device, capacity_bytes)| NodeEvent::DeviceResized { device, capacity_bytes }),
        (device, model()).prop_map(|(device, model)| NodeEvent::LoadFailed { device, model }),
        (device, model()).prop_map(|(device, model)| NodeEvent::Released { device, model }),
        Just(NodeEvent::Beat),
        Just(NodeEvent::Leaving),
    ]
}

pub(crate) fn command() -> impl Strategy<Value = DispatcherCommand> {
    let id = || any::<u64>().prop_map(InvocationId);
    let evict = || vec(model(), 0..3);
    let alternatives = || {
        let device = any::<(u32, u32)>().prop_map(|(node, ordinal)| DeviceId { node: NodeId(node), ordinal });
        vec((device, estimate()).prop_map(|(device, estimate)| Alternative { device, estimate }), 0..4)
    };
    let why = (estimate(), alternatives(), any::<u64>())
        .prop_map(|(estimate, alternatives, queued_ns)| Why { estimate, alternatives, queued_ns });
    let place = (any::<u32>(), any::<Option<u32>>(), option::of(text()));
    let rejection = prop::sample::select(vec![
        Rejection::QueueFull,
        Rejection::NoCapacity,
        Rejection::Deadline,
        Rejection::Slo,
        Rejection::NodeLost,
        Rejection::NoDevice,
    ]);
    prop_oneof![
        id().prop_map(|invocation| DispatcherCommand::Reserved { invocation }),
        (id(), place, evict(), why).prop_map(|(invocation, (node, device, address), evict, why)| {
            DispatcherCommand::Start {
                invocation,
                node: NodeId(node),
                device,
                address,
                evict,
                why: Box::new(why),
            }
        }),
        (id(), rejection, estimate(), alternatives()).prop_map(
            |(invocation, why, estimate, alternatives)| {
                DispatcherCommand::Reject { invocation, why, estimate, alternatives }
            }
        ),
        (any::<u32>(), evict()).prop_map(|(device, evict)| DispatcherCommand::MayEvict { device, evict }),
        (any::<u32>(), model(), evict()).prop_map(|(device, model, evict)| DispatcherCommand::Load {
            device,
            model,
            evict
        }),
        (any::<u32>(), model()).prop_map(|(device, model)| DispatcherCommand::Release { device, model }),
        id().prop_map(|invocation| DispatcherCommand::Abandoned { invocation }),
        Just(DispatcherCommand::Beat),
    ]
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-zé0-9:.]{0,20}".prop_map(Into::into)
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z][a-z0-9_-]{0,3}".prop_map(|name| Name::new(&name).unwrap())
}

fn model() -> impl Strategy<Value = ModelId> {
    (name(), name(), any::<u32>()).prop_map(|(tenant, name, version)| ModelId {
        tenant: tenant.into(),
        name,
        version: Version(version),
    })
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    vec(any::<(u64, u64)>().prop_map(|(id, bytes)| Part { id: PartId(id), bytes }), 0..3)
}

fn tier() -> impl Strategy<Value = StorageTier> {
    prop::sample::select(StorageTier::ALL.to_vec())
}

fn staged() -> impl Strategy<Value = StagedModel> {
    let moved = (tier(), any::<u64>(), any::<u64>()).prop_map(|(from, bytes, time_ns)| MeasuredTransfer {
        from,
        bytes,
        time_ns,
    });
    (model(), vec((tier(), any::<u64>()), 0..4), option::of(moved))
        .prop_map(|(model, bytes, moved)| StagedModel { model, bytes, moved })
}

fn announced() -> impl Strategy<Value = AnnouncedInvocation> {
    (any_arrival(), any::<u64>(), any::<Option<u32>>(), any::<Option<u32>>()).prop_map(
        |(arrival, deadline_in_ns, device, origin)| AnnouncedInvocation {
            arrival,
            deadline_in_ns,
            device,
            origin: origin.map(NodeId),
        },
    )
}

fn hello() -> impl Strategy<Value = Hello> {
    let platforms = prop::sample::select(Platform::ALL.to_vec());
    let rules = prop::sample::select(DeviceRule::ALL.to_vec());
    let device = (text(), platforms, any::<(u64, u32, u32)>(), rules).prop_map(
        |(kind, platform, (capacity_bytes, slots, invocations_max), rule)| DeviceSpec {
            kind: DeviceKind(kind),
            platform,
            capacity_bytes,
            slots,
            invocations_max,
            rule,
        },
    );
    let resident = (any::<u32>(), model(), any::<u64>(), parts())
        .prop_map(|(device, model, bytes, parts)| AnnouncedModel { device, model, bytes, parts });
    let lists = (vec(device, 0..3), vec(resident, 0..3), vec(staged(), 0..3), vec(any::<u32>(), 0..3));
    (any::<u32>(), text(), lists, tier(), vec(announced(), 0..2), any::<bool>()).prop_map(
        |(node, address, (devices, resident, staged, down), origin, running, has_more)| Hello {
            node: NodeId(node),
            address,
            devices,
            resident,
            origin,
            staged,
            down,
            running,
            has_more,
        },
    )
}

fn any_arrival() -> impl Strategy<Value = Arrival> {
    let slo =
        any::<(u64, u64)>().prop_map(|(due_at_ns, cost)| Slo { due_at_ns, cost_max: Cost::from_nanos(cost) });
    let inputs = any::<(u32, u64)>().prop_map(|(node, bytes)| InputsOn { node: NodeId(node), bytes });
    let lists = (vec(demand(), 0..3), run_times_ns(), vec(inputs, 0..2), vec(step(), 0..3));
    let numbers = any::<(u64, u64, u32, u32, u32, Option<u64>)>();
    (model(), lists, numbers, option::of(slo)).prop_map(
        |(function, (models, run_times_ns, inputs, steps), numbers, slo)| Arrival {
            invocation: InvocationId(numbers.0),
            function: FunctionId { tenant: function.tenant, name: function.name, version: function.version },
            models,
            deadline_at_ns: numbers.1,
            priority: numbers.2,
            batch: numbers.3,
            run_time_ns: numbers.5,
            run_times_ns,
            slo,
            inputs,
            batch_items_max: numbers.4,
            is_splittable: numbers.2 % 2 == 1,
            steps,
        },
    )
}

fn demand() -> impl Strategy<Value = ModelDemand> {
    (model(), any::<u64>(), any::<Option<u64>>(), 0_usize..=3, parts()).prop_map(
        |(model, bytes, load_time_ns, platforms, parts)| ModelDemand {
            model,
            bytes,
            load_time_ns,
            runs_on: Platform::ALL.into_iter().take(platforms).collect(),
            parts,
        },
    )
}

fn run_times_ns() -> impl Strategy<Value = Vec<(DeviceKind, u64)>> {
    vec((text().prop_map(DeviceKind), any::<u64>()), 0..2)
}

fn step() -> impl Strategy<Value = PlannedStep> {
    let models = vec(demand(), 0..2);
    (any::<u64>(), model(), models, vec(any::<u32>(), 0..3), any::<u32>(), run_times_ns()).prop_map(
        |(invocation, function, models, after, batch, run_times_ns)| PlannedStep {
            invocation: InvocationId(invocation),
            function: FunctionId { tenant: function.tenant, name: function.name, version: function.version },
            models,
            after,
            batch,
            run_times_ns,
        },
    )
}

fn estimate() -> impl Strategy<Value = Estimate> {
    any::<([u64; 6], [u64; 4], u64)>().prop_map(|(times, tiers, cost)| Estimate {
        wait_ns: times[0],
        load_time_ns: times[1],
        move_time_ns: times[2],
        run_time_ns: times[3],
        off_device_ns: times[4],
        missing_bytes: times[5],
        load_by_tier: LoadByTier {
            sibling_ns: tiers[0],
            memory_ns: tiers[1],
            disk_ns: tiers[2],
            object_store_ns: tiers[3],
        },
        cost: Cost::from_nanos(cost),
    })
}
