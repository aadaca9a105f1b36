//! Invalid events: any event, in any order, at any time.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use proptest::prelude::*;
use weir_scheduler::{
    Arrival, Choice, DeviceSpec, Event, InputsOn, ModelDemand, Part, PartId, PolicyKind, PolicyOptions,
    Recorder, Settings, Setup, Slo, SloSettings, TenantLimits, Tier, VictimKind, replay,
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
    let run = (any::<u32>(), prop::option::of(number()), prop::option::of(slo), inputs);
    (invocation(), tenant(), prop::collection::vec(demand, 0..4), number(), any::<u32>(), run).prop_map(
        |(invocation, tenant, models, deadline_at_ns, priority, (batch, run_time_ns, slo, inputs))| {
            let name = Name::new("f").unwrap();
            let function = FunctionId { tenant, name, version: Version(1) };
            let run_times_ns =
                run_time_ns.map(|run_time_ns| ("fake".into(), run_time_ns)).into_iter().collect();
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
            }
        },
    )
}

fn slo_settings() -> impl Strategy<Value = SloSettings> {
    let part = || prop_oneof![Just(f64::NAN), Just(-1.0), Just(0.0), Just(0.5), Just(f64::INFINITY)];
    let choice = prop::sample::select(&[Choice::Cheapest, Choice::Fastest, Choice::Random][..]);
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
    (platform, number(), 0_u32..3, 0_u32..4).prop_map(|(platform, capacity_bytes, slots, invocations_max)| {
        let kind = platform.as_str().into();
        DeviceSpec { kind, platform, capacity_bytes, slots, invocations_max }
    })
}

fn event() -> impl Strategy<Value = Event> {
    let node = || (0_u32..3).prop_map(NodeId);
    prop_oneof![
        6 => arrival().prop_map(Event::Arrived),
        1 => invocation().prop_map(|invocation| Event::Started { invocation }),
        2 => invocation().prop_map(|invocation| Event::Finished { invocation }),
        1 => invocation().prop_map(|invocation| Event::Failed { invocation }),
        1 => invocation().prop_map(|invocation| Event::Cancelled { invocation }),
        4 => (device(), model(), number(), prop::option::of(number()), parts()).prop_map(
            |(device, model, bytes, load_time_ns, parts)| Event::Loaded { device, model, bytes, load_time_ns, parts },
        ),
        2 => (device(), model()).prop_map(|(device, model)| Event::Evicted { device, model }),
        1 => (node(), model(), prop::collection::vec((tier(), number()), 0..6))
            .prop_map(|(node, model, bytes)| Event::Staged { node, model, bytes }),
        2 => (node(), prop::collection::vec(spec(), 0..3)).prop_map(|(node, devices)| Event::NodeUp { node, devices }),
        1 => node().prop_map(|node| Event::NodeDown { node }),
        1 => device().prop_map(|device| Event::DeviceDown { device }),
        1 => device().prop_map(|device| Event::DeviceUp { device }),
        1 => (device(), number())
            .prop_map(|(device, capacity_bytes)| Event::DeviceResized { device, capacity_bytes }),
        1 => Just(Event::Woken),
    ]
}

fn tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(&Tier::ALL[..])
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
        events in prop::collection::vec((number(), event()), 1..120),
    ) {
        let settings = Settings {
            queue_len_max: QUEUE_LEN_MAX,
            tenant_default: limits.unwrap_or_default(),
            slo,
            ..Settings::default()
        };
        let options = PolicyOptions { victims: Some(victims), ..PolicyOptions::default() };
        let setup = Setup { policy, options, settings };
        let (mut scheduler, mut recorder) = (setup.build(), Recorder::new(&setup, usize::MAX));
        let (mut actions, calls) = (Vec::new(), events.len() as u64);
        for (now_ns, event) in events {
            recorder.handle(&mut scheduler, now_ns, event, &mut actions);
            let tenants = scheduler.view().tenants();
            let is_empty = scheduler.view().devices().next().is_none();
            prop_assert!(!is_empty || ["t0", "t1"].iter().all(|name| tenants.resident_bytes(&TenantId::new(name).unwrap()) == 0));
            prop_assert!(scheduler.waiting() <= QUEUE_LEN_MAX);
            prop_assert!(scheduler.view().devices().all(|(_, device)| device.evictable_bytes() <= device.held_bytes()));
        }
        let replayed = replay(&recorder.take_lines()[..]).unwrap();
        prop_assert_eq!((replayed.calls, replayed.actions), (calls, actions.len() as u64));
    }
}
