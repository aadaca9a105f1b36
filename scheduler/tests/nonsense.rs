//! Invalid events: any event, in any order, at any time.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use proptest::prelude::*;
use weir_scheduler::{
    Arrival, DeviceRule, DeviceSpec, DeviceUse, Event, InputsOn, MeasuredTransfer, ModelDemand, Part, PartId,
    PlacementPreference, PlannedStep, PolicyKind, PolicyOptions, Recorder, Settings, Setup, Slo, SloSettings,
    StorageTier, TenantLimits, VictimKind, replay,
};
use weir_types::{
    Cost, DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const QUEUE_LEN_MAX: usize = 3;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), Just(1 << 48), Just((1 << 63) - 1), any::<u64>()]
}

fn invocation() -> impl Strategy<Value = InvocationId> {
    (0_u64..6).prop_map(InvocationId)
}

fn device() -> impl Strategy<Value = DeviceId> {
    (0_u32..3, prop_oneof![0_u32..3, Just(u32::MAX)])
        .prop_map(|(node, ordinal)| DeviceId { node: NodeId(node), ordinal })
}

fn model() -> impl Strategy<Value = ModelId> {
    (0_u8..4, tenant()).prop_map(|(index, tenant)| {
        let name = Name::new(&format!("m{index}")).unwrap();
        ModelId { tenant, name, version: Version(1) }
    })
}

fn tenant() -> impl Strategy<Value = TenantId> {
    (0_u8..2).prop_map(|index| TenantId::new(&format!("t{index}")).unwrap())
}

/// Parts that exceed the supported number, are duplicated with several sizes, or are larger than
/// their model.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (0_u64..4, number()).prop_map(|(id, bytes)| Part { id: PartId(id), bytes });
    prop::collection::vec(part, 0..20)
}

/// Invalid and extreme limits.
fn limits() -> impl Strategy<Value = TenantLimits> {
    let share = prop_oneof![Just(f64::NAN), Just(-1.0), Just(0.0), Just(0.5), Just(f64::INFINITY)];
    (0_u32..3, 0_u32..3, share, number()).prop_map(
        |(weight, running_max, device_share_max, resident_bytes_max)| TenantLimits {
            weight,
            running_max,
            device_share_max,
            resident_bytes_max,
            ..TenantLimits::default()
        },
    )
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let runs_on = || prop::sample::subsequence(Platform::ALL.to_vec(), 0..4).prop_map(Platforms::from);
    let demand = (model(), number(), prop::option::of(number()), runs_on(), parts()).prop_map(
        |(model, bytes, load_time_ns, runs_on, parts)| ModelDemand {
            model,
            bytes,
            load_time_ns,
            runs_on,
            parts,
        },
    );
    let slo = (number(), number())
        .prop_map(|(due_at_ns, cost)| Slo { due_at_ns, cost_max: Cost::from_nanos(cost) });
    let inputs = (0_u32..3, number()).prop_map(|(node, bytes)| InputsOn { node: NodeId(node), bytes });
    let inputs = prop::collection::vec(inputs, 0..3);
    let batch = (prop_oneof![0_u32..5, any::<u32>()], prop_oneof![0_u32..5, any::<u32>()]);
    let step = (invocation(), prop::collection::vec(0_u32..3, 0..3), number());
    let steps = prop::collection::vec(step, 0..4);
    let run = (batch, prop::option::of(number()), prop::option::of(slo), inputs, steps);
    (invocation(), tenant(), prop::collection::vec(demand, 0..4), number(), any::<u32>(), run).prop_map(
        |(
            invocation,
            tenant,
            models,
            deadline_at_ns,
            priority,
            ((batch, batch_items_max), run_time_ns, slo, inputs, steps),
        )| {
            let name = Name::new("f").unwrap();
            let function = FunctionId { tenant, name, version: Version(1) };
            let run_times_ns =
                run_time_ns.map(|run_time_ns| ("fake".into(), run_time_ns)).into_iter().collect();
            let step =
                |(at, (invocation, after, time_ns)): (usize, (InvocationId, Vec<u32>, u64))| PlannedStep {
                    invocation,
                    function: function.clone(),
                    models: models.get(at).cloned().into_iter().collect(),
                    after,
                    batch,
                    run_times_ns: vec![("cpu".into(), time_ns)],
                };
            let steps = steps.into_iter().enumerate().map(step).collect();
            Arrival {
                invocation,
                function,
                models,
                deadline_at_ns,
                priority,
                batch,
                run_time_ns,
                run_times_ns,
                slo,
                inputs,
                batch_items_max,
                is_splittable: false,
                steps,
            }
        },
    )
}

fn slo_settings() -> impl Strategy<Value = SloSettings> {
    let part = || prop_oneof![Just(f64::NAN), Just(-1.0), Just(0.0), Just(0.5), Just(f64::INFINITY)];
    let choice = prop::sample::select(
        &[PlacementPreference::Cheapest, PlacementPreference::Fastest, PlacementPreference::Random][..],
    );
    (any::<bool>(), choice, 0_usize..3, part(), number().prop_map(Cost::from_nanos)).prop_map(
        |(admission, choice, sample_len, margin, price)| SloSettings {
            admission,
            choice,
            sample_len,
            margin,
            prices: [("cpu".into(), price)].into(),
        },
    )
}

fn spec() -> impl Strategy<Value = DeviceSpec> {
    let platform = prop::sample::select(&Platform::ALL[..]);
    let rule = prop::sample::select(&DeviceRule::ALL[..]);
    (platform, number(), 0_u32..3, 0_u32..4, rule).prop_map(
        |(platform, capacity_bytes, slots, invocations_max, rule)| {
            let kind = platform.as_str().into();
            DeviceSpec { kind, platform, capacity_bytes, slots, invocations_max, rule }
        },
    )
}

fn used() -> impl Strategy<Value = Option<DeviceUse>> {
    let used = (number(), number(), any::<u32>(), number()).prop_map(
        |(device_time_ns, run_time_ns, batch_items, wait_ns)| DeviceUse {
            device_time_ns,
            run_time_ns,
            batch_items,
            wait_ns,
        },
    );
    prop::option::of(used)
}

fn event() -> impl Strategy<Value = Event> {
    let node = || (0_u32..3).prop_map(NodeId);
    prop_oneof![
        6 => arrival().prop_map(Event::Arrived),
        1 => (arrival(), node(), prop::option::of(0_u32..3))
            .prop_map(|(arrival, node, device)| Event::Running { arrival, node, device }),
        1 => invocation().prop_map(|invocation| Event::Started { invocation }),
        2 => (invocation(), used()).prop_map(|(invocation, used)| Event::Finished { invocation, used }),
        1 => (invocation(), used()).prop_map(|(invocation, used)| Event::Failed { invocation, used }),
        1 => (invocation(), used()).prop_map(|(invocation, used)| Event::Cancelled { invocation, used }),
        4 => (device(), model(), number(), prop::option::of(number()), parts()).prop_map(
            |(device, model, bytes, load_time_ns, parts)| Event::Loaded { device, model, bytes, load_time_ns, parts },
        ),
        2 => (device(), model()).prop_map(|(device, model)| Event::Evicted { device, model }),
        1 => (node(), model(), prop::collection::vec((tier(), number()), 0..6), prop::option::of(transfer()))
            .prop_map(|(node, model, bytes, moved)| Event::Staged { node, model, bytes, moved }),
        1 => (node(), tier()).prop_map(|(node, tier)| Event::Origin { node, tier }),
        2 => (node(), prop::collection::vec(spec(), 0..3)).prop_map(|(node, devices)| Event::NodeUp { node, devices }),
        1 => node().prop_map(|node| Event::NodeDown { node }),
        1 => device().prop_map(|device| Event::DeviceDown { device }),
        1 => device().prop_map(|device| Event::DeviceUp { device }),
        1 => (device(), number())
            .prop_map(|(device, capacity_bytes)| Event::DeviceResized { device, capacity_bytes }),
        1 => Just(Event::Woken),
        1 => Just(Event::Paused),
        2 => Just(Event::Resumed),
    ]
}

fn transfer() -> impl Strategy<Value = MeasuredTransfer> {
    (tier(), number(), number()).prop_map(|(from, bytes, time_ns)| MeasuredTransfer { from, bytes, time_ns })
}

fn tier() -> impl Strategy<Value = StorageTier> {
    prop::sample::select(&StorageTier::ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    /// A record of these events replays to the same actions.
    #[test]
    fn arbitrary_events_never_break_the_scheduler(
        policy in prop::sample::select(&PolicyKind::ALL[..]),
        victims in prop::sample::select(&[VictimKind::LeastRecentlyUsed, VictimKind::LeastLoss][..]),
        limits in prop::option::of(limits()),
        slo in slo_settings(),
        commit_ahead_ms in prop_oneof![0_u32..20, Just(u32::MAX)],
        events in prop::collection::vec((number(), event()), 1..120),
    ) {
        let settings = Settings {
            queue_len_max: QUEUE_LEN_MAX,
            tenant_default: limits.unwrap_or_default(),
            slo,
            commit_ahead_ms,
            ..Settings::default()
        };
        let options = PolicyOptions { victims: Some(victims), ..PolicyOptions::default() };
        let setup = Setup { policy, options, settings };
        let mut scheduler = setup.build();
        let mut recorder = Recorder::new(&setup, usize::MAX);
        let mut actions = Vec::new();
        let calls = events.len() as u64;
        for (now_ns, event) in events {
            recorder.handle(&mut scheduler, now_ns, event, &mut actions);
            let tenants = scheduler.view().tenants();
            let is_empty = scheduler.view().devices().next().is_none();
            prop_assert!(!is_empty || ["t0", "t1"].iter().all(|name| tenants.resident_bytes(&TenantId::new(name).unwrap()) == 0));
            prop_assert!(scheduler.waiting() <= QUEUE_LEN_MAX);
            for (_, device) in scheduler.view().devices() {
                let committed_ns = (device.committed_ns(), device.committed_load_ns());
                prop_assert!(device.running() > 0 || committed_ns == (0, 0), "{committed_ns:?} of nothing");
            }
            prop_assert!(scheduler.view().devices().all(|(_, device)| device.evictable_bytes() <= device.held_bytes()));
        }
        let replayed = replay(&recorder.take_lines()[..]).unwrap();
        prop_assert_eq!((replayed.calls, replayed.actions), (calls, actions.len() as u64));
    }
}
