//! Tenant isolation under every policy.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use weir_scheduler::{
    Action, Arrival, DeviceRule, DeviceSpec, Event, ModelDemand, Part, PartId, PolicyKind, PolicyOptions,
    Scheduler, Settings, TenantLimits,
};
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

const NODE: NodeId = NodeId(0);
const RUN_NS: u64 = 1_000_000_000;
const LOAD_NS: u64 = 2_000_000_000;

/// Devices that run one invocation at a time, loads of known duration, and counts of starts by
/// tenant.
struct Fixture {
    scheduler: Scheduler,
    now_ns: u64,
    next: u64,
    /// Running invocations by their end and id, with their devices.
    running: BTreeMap<(u64, u64), DeviceId>,
    invocations: BTreeMap<u64, (TenantId, ModelId)>,
    starts: BTreeMap<String, u64>,
    running_max: BTreeMap<String, u32>,
    /// Parts shared by all models.
    parts: Vec<Part>,
    loads: u64,
}

impl Fixture {
    fn new(policy: PolicyKind, devices: usize, limits: &[(&str, TenantLimits)]) -> Self {
        let tenants = limits.iter().map(|(name, limits)| (tenant(name), limits.clone())).collect();
        let settings = Settings { tenants, queue_len_max: usize::MAX, ..Settings::default() };
        let mut scheduler = Scheduler::with_policy(&settings, policy.build(&PolicyOptions::default()));
        let spec = DeviceSpec {
            kind: "gpu".into(),
            platform: Platform::Cpu,
            capacity_bytes: 10,
            slots: 1,
            invocations_max: 1,
            rule: DeviceRule::default(),
        };
        let devices = vec![spec; devices];
        scheduler.handle(0, Event::NodeUp { node: NODE, devices }, &mut Vec::new());
        let (running, invocations, starts, running_max, parts) = Default::default();
        Self { scheduler, now_ns: 0, next: 0, running, invocations, starts, running_max, parts, loads: 0 }
    }

    /// An arrival for a function with one model of 5 bytes; a device holds two.
    fn arrive(&mut self, who: &str, model: u64) {
        let id = self.next;
        let tenant = tenant(who);
        self.next += 1;
        let name = Name::new(&format!("m{model}")).unwrap();
        let function = FunctionId { tenant: tenant.clone(), name: name.clone(), version: Version(1) };
        let model = ModelId { tenant: tenant.clone(), name, version: Version(1) };
        self.invocations.insert(id, (tenant, model.clone()));
        self.tell(Event::Arrived(Arrival {
            invocation: InvocationId(id),
            function,
            models: vec![ModelDemand {
                model,
                bytes: 5,
                load_time_ns: Some(LOAD_NS),
                runs_on: Platforms::ALL,
                parts: self.parts.clone(),
            }],
            deadline_at_ns: u64::MAX,
            priority: 0,
            batch: 1,
            run_time_ns: Some(RUN_NS),
            run_times_ns: Vec::new(),
            slo: None,
            inputs: Vec::new(),
            batch_items_max: 0,
            is_splittable: false,
            steps: Vec::new(),
        }));
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ns, event, &mut actions);
        for action in actions {
            let Action::Start { invocation, device, evict, why, .. } = action else { continue };
            let (device, (tenant, model)) = (device.unwrap(), self.invocations[&invocation.0].clone());
            let who = tenant.as_str().to_owned();
            *self.starts.entry(who.clone()).or_default() += 1;
            let most = self.running_max.entry(who).or_default();
            *most = self.scheduler.view().tenants().running(&tenant).max(*most);
            self.running.insert((self.now_ns + why.estimate.load_time_ns + RUN_NS, invocation.0), device);
            for model in evict {
                self.tell(Event::Evicted { device, model });
            }
            if why.estimate.missing_bytes > 0 {
                self.loads += 1;
                self.tell(Event::Loaded {
                    device,
                    model,
                    bytes: 5,
                    load_time_ns: Some(LOAD_NS),
                    parts: self.parts.clone(),
                });
            }
        }
    }

    /// Runs until this time, or until nothing runs.
    fn run_until(&mut self, until_ns: u64) {
        while let Some(((at_ns, id), _)) =
            self.running.first_key_value().filter(|((at_ns, _), _)| *at_ns <= until_ns)
        {
            let at_ns = *at_ns;
            let id = *id;
            self.running.remove(&(at_ns, id));
            self.now_ns = at_ns;
            self.tell(Event::Finished { invocation: InvocationId(id), used: None });
        }
        self.now_ns = until_ns;
        self.tell(Event::Woken);
    }

    fn starts(&self, who: &str) -> u64 {
        self.starts.get(who).copied().unwrap_or_default()
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// One tenant fills the queue with calls of a model that is in memory everywhere. Another tenant
/// occasionally needs a model that has to be loaded.
#[test]
fn flood_with_high_locality_does_not_starve_other_tenants() {
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 4, &[]);
        (0..400).for_each(|_| cluster.arrive("flood", 0));
        cluster.run_until(20 * RUN_NS);
        let before = cluster.starts("flood");
        assert!(before > 40, "{policy}: devices are not kept busy: {before}");
        (0..8).for_each(|_| cluster.arrive("quiet", 1));
        cluster.run_until(50 * RUN_NS);
        assert_eq!(cluster.starts("quiet"), 8, "{policy}: still waiting behind the flood");
        assert!(cluster.starts("flood") > before + 40, "{policy}: the flood stands still");
    }
}

/// Nothing interrupts a run, so a tenant with occasional calls waits for the one that runs, and not
/// for those that wait before it.
#[test]
fn tenant_with_less_device_time_starts_next_if_its_model_is_loaded() {
    let mut cluster = Fixture::new(PolicyKind::FinishFirst, 1, &[]);
    cluster.arrive("quiet", 1);
    cluster.arrive("flood", 0);
    cluster.run_until(10 * RUN_NS);
    assert_eq!((cluster.starts("quiet"), cluster.starts("flood")), (1, 1));
    (0..20).for_each(|_| cluster.arrive("flood", 0));
    for call in 2..6 {
        cluster.run_until((call * 4 + 2) * RUN_NS + RUN_NS / 2);
        cluster.arrive("quiet", 1);
        assert_eq!(cluster.starts("quiet"), call - 1, "a run was interrupted");
        cluster.run_until((call * 4 + 3) * RUN_NS + RUN_NS / 2);
        assert_eq!(cluster.starts("quiet"), call, "it waits behind the flood");
    }
}

#[test]
fn device_time_is_shared_by_weight_while_both_tenants_wait() {
    let heavy = TenantLimits { weight: 3, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        // Both models fit in memory.
        let mut cluster = Fixture::new(policy, 4, &[("heavy", heavy.clone())]);
        for _ in 0..600 {
            cluster.arrive("heavy", 0);
            cluster.arrive("light", 0);
        }
        cluster.run_until(100 * RUN_NS);
        let ratio = cluster.starts("heavy") as f64 / cluster.starts("light") as f64;
        // `exclusive` shares devices by model, so caps hold but weights do not.
        let expected = if policy == PolicyKind::Exclusive { 0.9..4.0 } else { 2.5..3.5 };
        assert!(expected.contains(&ratio), "{policy}: {ratio}");
    }
}

#[test]
fn running_max_limits_concurrent_invocations() {
    let few = TenantLimits { running_max: 2, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 4, &[("few", few.clone())]);
        (0..20).for_each(|id| cluster.arrive("few", id % 3));
        cluster.run_until(1_000 * RUN_NS);
        assert_eq!((cluster.starts("few"), cluster.running_max["few"]), (20, 2), "{policy}");
    }
}

#[test]
fn device_share_max_caps_device_time_and_wakes_waiting_tenants() {
    let slow = TenantLimits { device_share_max: 0.1, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 2, &[("slow", slow.clone())]);
        (0..200).for_each(|_| cluster.arrive("slow", 0));
        // Woken every second, in place of the driver's wake-ups.
        (1..=200).for_each(|second| cluster.run_until(second * RUN_NS));
        // A tenth of two devices over 200 seconds is 40 runs; the saved-up share and loads explain
        // the difference.
        let starts = cluster.starts("slow");
        assert!((30..=50).contains(&starts), "{policy}: {starts}");
    }
}

#[test]
fn resident_bytes_max_limits_a_tenants_models() {
    let small = TenantLimits { resident_bytes_max: 5, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 1, &[("small", small.clone())]);
        for id in 0..6 {
            cluster.arrive("small", id % 2);
            let bytes = cluster.scheduler.view().tenants().resident_bytes(&tenant("small"));
            assert!(bytes <= 5, "{policy}: {bytes}");
            cluster.run_until((id + 1) * 10 * RUN_NS);
        }
        assert_eq!(cluster.starts("small"), 6, "{policy}: what is over the cap waits for ever");
    }
}

/// Regression test: each variant was charged separately, so that a cap with room for all variants
/// kept only one in memory.
#[test]
fn shared_parts_count_once_against_the_memory_limit() {
    let small = TenantLimits { resident_bytes_max: 7, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 1, &[("small", small.clone())]);
        cluster.parts = vec![Part { id: PartId(1), bytes: 4 }];
        for id in 0..12 {
            cluster.arrive("small", id % 3);
            let bytes = cluster.scheduler.view().tenants().resident_bytes(&tenant("small"));
            assert!(bytes <= 7, "{policy}: {bytes}");
            cluster.run_until((id + 1) * 10 * RUN_NS);
        }
        assert_eq!((cluster.starts("small"), cluster.loads), (12, 3), "{policy}");
        assert_eq!(cluster.scheduler.view().tenants().resident_bytes(&tenant("small")), 7, "{policy}");
        // Another variant exceeds the cap, so exactly one variant is evicted.
        cluster.arrive("small", 3);
        assert_eq!(cluster.loads, 4, "{policy}");
        assert_eq!(cluster.scheduler.view().tenants().resident_bytes(&tenant("small")), 7, "{policy}");
    }
}

#[test]
fn capped_call_without_models_starts_when_another_ends() {
    let capped = TenantLimits { running_max: 1, ..TenantLimits::default() };
    for policy in PolicyKind::ALL {
        let mut cluster = Fixture::new(policy, 1, &[("acme", capped.clone())]);
        let mut tell = |event| {
            let mut actions = Vec::new();
            cluster.scheduler.handle(0, event, &mut actions);
            let started = actions.into_iter().filter_map(|action| match action {
                Action::Start { invocation, .. } => Some(invocation.0),
                _ => None,
            });
            started.collect::<Vec<_>>()
        };
        let arrival = |id| {
            let function =
                FunctionId { tenant: tenant("acme"), name: Name::new("f").unwrap(), version: Version(1) };
            Event::Arrived(Arrival {
                invocation: InvocationId(id),
                function,
                models: Vec::new(),
                deadline_at_ns: u64::MAX,
                priority: 0,
                batch: 1,
                run_time_ns: None,
                run_times_ns: Vec::new(),
                slo: None,
                inputs: Vec::new(),
                batch_items_max: 0,
                is_splittable: false,
                steps: Vec::new(),
            })
        };
        assert_eq!([tell(arrival(1)), tell(arrival(2))], [vec![1], vec![]], "{policy:?}");
        assert_eq!(tell(Event::Finished { invocation: InvocationId(1), used: None }), [2], "{policy:?}");
    }
}
