//! The same policy without indexes: every waiting invocation is costed separately at every event,
//! and everything is counted by exhaustive search. Its decisions must be the same.

use super::costs::CostInputs;
use super::queues::LinePosition;
use super::{Claims, FinishFirst, PASSES_MAX, Passes, Reach, Verdict, YIELD_LOADS};
use crate::estimate::round_ns;
use crate::{
    Action, Arrival, DeviceKey, DeviceRule, DeviceSpec, Event, InputsOn, LeastLoss, ModelDemand, Part,
    PartId, PlacementDecision, PlacementRequest, Policy, RoomFinder, Scheduler, Settings, TenantLimits, View,
};
use proptest::prelude::*;
use std::cell::OnceCell;
use weir_types::{
    DeviceId, FunctionId, InvocationId, ModelId, Name, NodeId, Platform, Platforms, TenantId, Version,
};

struct BruteForce {
    placer: RoomFinder,
    /// Waiting requests, in order.
    waiting: Vec<(LinePosition, PlacementRequest)>,
    arrivals: u64,
    /// The remaining turns of this round, each with a flag that is set if its invocation has
    /// yielded.
    turns: Option<Vec<(LinePosition, LinePosition, bool)>>,
    claims: Claims,
    passes: Passes,
}

const EVERYTHING: Reach =
    Reach { heads: usize::MAX, free: usize::MAX, busy: usize::MAX, holders: usize::MAX };

/// The delay of the request's place relative to the most urgent priority.
fn lag_ns(request: &PlacementRequest) -> u64 {
    2_000_000_000 - 2_000_000_000_u64.checked_div(u64::from(request.priority)).unwrap_or(0)
}

fn are_alike(a: &PlacementRequest, b: &PlacementRequest) -> bool {
    let models =
        |request: &PlacementRequest| request.models.iter().map(|demand| demand.model).collect::<Vec<_>>();
    (a.tenant, a.function, lag_ns(a), models(a), &a.inputs)
        == (b.tenant, b.function, lag_ns(b), models(b), &b.inputs)
}

impl BruteForce {
    fn new() -> Self {
        let (waiting, arrivals, turns, claims, passes) = Default::default();
        Self { placer: RoomFinder::new(Box::new(LeastLoss)), waiting, arrivals, turns, claims, passes }
    }

    /// The places of the requests like `request`, in order.
    fn queue(&self, request: &PlacementRequest) -> Vec<LinePosition> {
        let alike = self.waiting.iter().filter(|(_, other)| are_alike(other, request));
        alike.map(|(order, _)| *order).collect()
    }

    fn first_of_each_queue(&self) -> Vec<(LinePosition, LinePosition, bool)> {
        let is_first =
            |(order, request): &&(LinePosition, PlacementRequest)| self.queue(request).first() == Some(order);
        self.waiting.iter().filter(is_first).map(|(order, _)| (*order, *order, false)).collect()
    }

    fn verdict(&self, now_ns: u64, view: &View, order: LinePosition, request: &PlacementRequest) -> Verdict {
        let alike = self.waiting.iter().find(|(_, other)| are_alike(other, request));
        let costs = CostInputs {
            now_ns,
            view,
            placer: &self.placer,
            before: &|model, place| {
                let needs =
                    |request: &PlacementRequest| request.models.iter().any(|demand| demand.model == model);
                self.waiting.iter().filter(|(order, other)| *order < place && needs(other)).count()
            },
            claims: &self.claims,
            reach: EVERYTHING,
            news_only: false,
            request,
            waited_ns: now_ns - alike.map_or(now_ns, |(_, first)| first.arrived_at_ns),
            quickest_ns: view.quickest_run_time_ns(request),
            load: OnceCell::new(),
        };
        Verdict::from_best(costs.best(order), &costs)
    }

    fn first_behind_that_would_not_wait(
        &self,
        now_ns: u64,
        view: &View,
        order: LinePosition,
    ) -> Option<LinePosition> {
        let (_, request) = self.waiting.iter().find(|(other, _)| *other == order)?;
        let behind = self.waiting.iter().filter(|(other, _)| *other > order);
        let mut alike = behind.filter(|(_, other)| are_alike(other, request));
        let waits = |(order, request): &&(LinePosition, PlacementRequest)| {
            matches!(self.verdict(now_ns, view, *order, request), Verdict::WaitForHolder)
        };
        alike.find(|other| !waits(other)).map(|(order, _)| *order)
    }

    /// Whether the invocation at `order` starts before `request`, because its tenant is behind.
    fn is_before(
        &self,
        view: &View,
        device: DeviceKey,
        order: LinePosition,
        request: &PlacementRequest,
    ) -> bool {
        let device = view.device(device).unwrap();
        let tenants = view.tenants();
        self.waiting.iter().filter(|(other, _)| *other == order).any(|(_, other)| {
            tenants.is_behind(other.tenant, request.tenant)
                && tenants.may_start(other.tenant)
                && other.models.iter().all(|demand| device.holds(demand.model))
        })
    }

    fn yield_ns(view: &View, device: DeviceKey, request: &PlacementRequest) -> u64 {
        let device = view.device(device).unwrap();
        let missing: Vec<_> = request.models.iter().filter(|demand| !device.holds(demand.model)).collect();
        let load_ns: u64 = missing.iter().map(|demand| view.load_time_ns(device, demand)).sum();
        let waiting = missing.iter().map(|demand| view.model(demand.model).waiting()).max().unwrap_or(1);
        round_ns(YIELD_LOADS * load_ns as f64 / f64::from(waiting.max(1)))
    }
}

impl Policy for BruteForce {
    fn name(&self) -> &'static str {
        "brute-force"
    }

    fn arrived(&mut self, request: PlacementRequest, _view: &View) {
        self.waiting.push(((request.arrived_at_ns + lag_ns(&request), self.arrivals), request));
        self.waiting.sort_by_key(|(order, _)| *order);
        self.arrivals += 1;
    }

    fn begin(&mut self, _now_ns: u64, _view: &View) {
        (self.turns, self.claims) = Default::default();
    }

    fn next(&mut self, now_ns: u64, view: &View) -> Option<PlacementDecision> {
        view.open().next()?;
        let mut turns = self.turns.take().unwrap_or_else(|| self.first_of_each_queue());
        let mut placement = None;
        while let Some(at) = (0..turns.len()).min_by_key(|at| turns[*at]) {
            let (_, order, has_yielded) = turns.remove(at);
            let Some(at) = self.waiting.iter().position(|(other, _)| *other == order) else { continue };
            let request = &self.waiting[at].1;
            if !view.tenants().may_start(request.tenant) {
                continue;
            }
            let invocation = request.invocation;
            match self.verdict(now_ns, view, order, request) {
                Verdict::Start(device) => {
                    let yield_ns = Self::yield_ns(view, device, request);
                    let is_spent =
                        self.passes.invocation == Some(invocation) && self.passes.count >= PASSES_MAX;
                    if yield_ns > 0 && !has_yielded && !is_spent {
                        turns.push(((order.0 + yield_ns, order.1), order, true));
                        continue;
                    }
                    let after =
                        turns.iter().filter(|(_, other, _)| self.is_before(view, device, *other, request));
                    if let Some((turn, ..)) = after.max().filter(|_| !is_spent) {
                        turns.push(((turn.0, turn.1 + 1), order, true));
                        continue;
                    }
                    let behind = self.queue(request).into_iter().find(|other| *other > order);
                    turns.extend(behind.map(|behind| (behind, behind, false)));
                    self.passes.started(invocation);
                    placement = self.placer.place(now_ns, view, device, self.waiting.remove(at).1).ok();
                    break;
                }
                Verdict::WaitForHolder => {
                    let next = self.first_behind_that_would_not_wait(now_ns, view, order);
                    turns.extend(next.map(|next| (next, next, false)));
                }
                Verdict::WaitForCap | Verdict::WaitForDevice => {}
                Verdict::WaitToLoad(device, work_ns) => self.claims.push((device, work_ns)),
                Verdict::NoRoom if self.passes.is_kept_out(invocation) => turns.clear(),
                Verdict::NoRoom => {}
            }
        }
        self.turns = Some(turns);
        placement
    }

    fn remove(&mut self, invocation: InvocationId, _view: &View) -> Option<PlacementRequest> {
        self.passes.gone(invocation);
        let at = self.waiting.iter().position(|(_, request)| request.invocation == invocation)?;
        Some(self.waiting.remove(at).1)
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Bytes and load times by model.
const MODELS: [(u64, u64); 6] =
    [(4, 3_000_000_000), (5, 900_000_000), (3, 2_000_000_000), (6, 4_000_000_000), (1, 50), (2, 700_000_000)];

/// Shared parts by model, as (id, bytes).
const PARTS: [&[(u64, u64)]; 6] = [&[(1, 3)], &[(1, 3)], &[(2, 2)], &[(1, 3), (2, 2)], &[], &[]];

#[derive(Debug, Clone)]
enum SearchStep {
    Arrive {
        models: Vec<usize>,
        tenant: u8,
        priority: u32,
        deadline_ns: u64,
        /// The node and the number of bytes.
        inputs: Option<(u32, u64)>,
    },
    Pass {
        ns: u64,
    },
    /// The end of the running invocation at index `which`.
    End {
        which: usize,
        failed: bool,
    },
    Cancel {
        which: usize,
    },
    Down {
        node: u32,
    },
    Up {
        node: u32,
        capacities: Vec<u64>,
        slots: u32,
    },
}

fn step() -> impl Strategy<Value = SearchStep> {
    // Few kinds of requests, so that queues get long and the limits on heads are not reached.
    let models = prop_oneof![
        8 => (0..MODELS.len()).prop_map(|model| vec![model]),
        1 => Just(vec![0, 4]),
        1 => Just(vec![]),
    ];
    let deadline_ns = prop_oneof![4 => Just(u64::MAX), 1 => 1_u64..20_000_000_000];
    let capacities = prop::collection::vec(6_u64..14, 1..3);
    // Mostly none, else inputs that take between a run time and a load time to move.
    let inputs =
        prop::option::weighted(0.3, (0_u32..3, prop::sample::select(vec![0, 1_000_000_000, 4_000_000_000])));
    prop_oneof![
        12 => (models, 0_u8..2, prop::sample::select(vec![0, 0, 0, 2]), deadline_ns, inputs)
            .prop_map(|(models, tenant, priority, deadline_ns, inputs)| SearchStep::Arrive { models, tenant, priority, deadline_ns, inputs }),
        8 => (0_u64..3_000_000_000).prop_map(|ns| SearchStep::Pass { ns }),
        8 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(which, failed)| SearchStep::End { which, failed }),
        1 => any::<usize>().prop_map(|which| SearchStep::Cancel { which }),
        1 => (0_u32..2).prop_map(|node| SearchStep::Down { node }),
        1 => (0_u32..2, capacities, 1_u32..3).prop_map(|(node, capacities, slots)| SearchStep::Up { node, capacities, slots }),
    ]
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn arrival(
    id: u64,
    models: &[usize],
    (tenant, priority): (u8, u32),
    deadline_at_ns: u64,
    inputs: Option<(u32, u64)>,
) -> Event {
    let tenant = TenantId::new(&format!("t{tenant}")).unwrap();
    let model = |index: &usize| ModelDemand {
        runs_on: Platforms::ALL,
        model: ModelId { tenant: tenant.clone(), name: name(&format!("m{index}")), version: Version(1) },
        bytes: MODELS[*index].0,
        load_time_ns: Some(MODELS[*index].1),
        parts: PARTS[*index].iter().map(|(id, bytes)| Part { id: PartId(*id), bytes: *bytes }).collect(),
    };
    let function = format!("f{}", models.iter().map(ToString::to_string).collect::<String>());
    let function = FunctionId { tenant: tenant.clone(), name: name(&function), version: Version(1) };
    let models = models.iter().map(model).collect();
    Event::Arrived(Arrival {
        invocation: InvocationId(id),
        function,
        models,
        deadline_at_ns,
        priority,
        batch: 1,
        run_time_ns: Some(1_300_000_000),
        run_times_ns: Vec::new(),
        slo: None,
        inputs: inputs.map(|(node, bytes)| InputsOn { node: NodeId(node), bytes }).into_iter().collect(),
        batch_items_max: 4,
        is_splittable: false,
        steps: Vec::new(),
    })
}

fn up(node: u32, capacities: &[u64], slots: u32) -> Event {
    let device = |capacity_bytes: &u64| DeviceSpec {
        platform: Platform::Cpu,
        kind: if capacity_bytes.is_multiple_of(2) { "even".into() } else { "odd".into() },
        capacity_bytes: *capacity_bytes,
        slots,
        invocations_max: slots,
        rule: DeviceRule::ALL[node as usize % 2],
    };
    Event::NodeUp { node: NodeId(node), devices: capacities.iter().map(device).collect() }
}

/// A load by a running invocation: the device, the model with its size, and the duration.
type RunningLoad = (DeviceId, ModelId, (u64, Vec<Part>), u64);

/// Both schedulers, and the cluster that carries out their actions.
struct Pair {
    fast: Scheduler,
    slow: Scheduler,
    now_ns: u64,
    running: Vec<(InvocationId, NodeId, Vec<RunningLoad>)>,
    arrivals: std::collections::BTreeMap<InvocationId, Arrival>,
    starts: usize,
}

impl Pair {
    fn new(limits: TenantLimits) -> Self {
        let settings = Settings { tenant_default: limits, ..Settings::default() };
        let fast = FinishFirst::new(RoomFinder::new(Box::new(LeastLoss)));
        let mut pair = Self {
            fast: Scheduler::with_policy(&settings, Box::new(fast)),
            slow: Scheduler::with_policy(&settings, Box::new(BruteForce::new())),
            now_ns: 0,
            running: Vec::new(),
            arrivals: std::collections::BTreeMap::new(),
            starts: 0,
        };
        pair.tell(up(0, &[9, 8], 1)).unwrap();
        pair
    }

    fn take(&mut self, id: u64, step: SearchStep) -> Result<(), TestCaseError> {
        match step {
            SearchStep::Arrive { models, tenant, priority, deadline_ns, inputs } => {
                let deadline_at_ns = self.now_ns.saturating_add(deadline_ns);
                let event = arrival(id, &models, (tenant, priority), deadline_at_ns, inputs);
                if let Event::Arrived(arrival) = &event {
                    self.arrivals.insert(arrival.invocation, arrival.clone());
                }
                self.tell(event)
            }
            SearchStep::Pass { ns } => {
                self.now_ns += ns;
                self.tell(Event::Woken)
            }
            SearchStep::End { which, failed } if !self.running.is_empty() => {
                let (invocation, _, loads) = self.running.remove(which % self.running.len());
                for (device, model, (bytes, parts), load_time_ns) in loads {
                    let load_time_ns = Some(load_time_ns);
                    self.tell(Event::Loaded { device, model, bytes, load_time_ns, parts })?;
                }
                let used = None;
                let over = match failed {
                    true => Event::Failed { invocation, used },
                    false => Event::Finished { invocation, used },
                };
                self.tell(over)
            }
            SearchStep::Cancel { which } if !self.arrivals.is_empty() => {
                let at = which % self.arrivals.len();
                let invocation = *self.arrivals.keys().nth(at).unwrap();
                self.running.retain(|(running, ..)| *running != invocation);
                self.tell(Event::Cancelled { invocation, used: None })
            }
            SearchStep::Down { node } => {
                self.running.retain(|(_, on, _)| *on != NodeId(node));
                self.tell(Event::NodeDown { node: NodeId(node) })
            }
            SearchStep::Up { node, capacities, slots } => {
                self.running.retain(|(_, on, _)| *on != NodeId(node));
                self.tell(up(node, &capacities, slots))
            }
            SearchStep::End { .. } | SearchStep::Cancel { .. } => Ok(()),
        }
    }

    fn tell(&mut self, event: Event) -> Result<(), TestCaseError> {
        let mut fast = Vec::new();
        let mut slow = Vec::new();
        self.fast.handle(self.now_ns, event.clone(), &mut fast);
        self.slow.handle(self.now_ns, event, &mut slow);
        prop_assert_eq!(&fast, &slow);
        for action in fast {
            let Action::Start { invocation, node, device, evict, .. } = action else { continue };
            self.starts += 1;
            let mut loads = Vec::new();
            if let Some(device) = device {
                for model in evict {
                    self.tell(Event::Evicted { device, model })?;
                }
                let demands = self.arrivals[&invocation].models.clone();
                let kept = |demand: ModelDemand| {
                    (
                        device,
                        demand.model,
                        (demand.bytes, demand.parts),
                        demand.load_time_ns.unwrap_or_default(),
                    )
                };
                loads.extend(demands.into_iter().map(kept));
            }
            self.running.push((invocation, node, loads));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(768) })]

    /// Costing only the heads of queues, binary search and incremental counts change no action.
    #[test]
    fn finish_first_decides_as_brute_force(
        steps in prop::collection::vec(step(), 1..150),
        running_max in prop::sample::select(vec![u32::MAX, 2]),
    ) {
        let mut pair = Pair::new(TenantLimits { running_max, ..TenantLimits::default() });
        for (id, step) in (0..).zip(steps) {
            pair.take(id, step)?;
        }
    }
}
