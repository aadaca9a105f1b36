//! The simulation loop: arrivals and devices on one side, the scheduler on the other.

use super::check::{Checks, Violation};
use super::cluster::{Ends, SimulatedBatching, SimulatedCluster, SimulatedPlacement, SimulatedSchedule};
use super::device::{SimulatedDevice, SimulatedRequest};
use super::groups::SimulatedGroups;
use super::layout::DeviceLayout;
use super::workload::{ModelCosts, Workload};
use crate::{Action, Arrival, DeviceUse, Event, ModelDemand, Policy};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use weir_types::{FunctionId, InvocationId, ModelId, Name, NodeId, Platforms, TenantId, Version};

/// Runs a workload under a policy, which `policy` creates for each group of devices.
///
/// # Errors
/// If the scheduler violates one of its guarantees.
pub fn run(
    workload: &Workload,
    cluster: &SimulatedCluster,
    policy: impl FnMut() -> Box<dyn Policy>,
) -> Result<SimulatedSchedule, Violation> {
    SimulatedWorld::new(workload, cluster, policy).run()
}

/// Simulation events. At one instant, loads end first, then runs, then invocations, then nodes go
/// down and up, then requests arrive. `life` counts a device's outages: an event of an earlier life
/// is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Loaded { device: u32, life: u32, model: u32 },
    Ready { device: u32, life: u32, request: u32 },
    Computed { device: u32, life: u32, batch: u64 },
    Left { device: u32, life: u32, request: u32 },
    Woken { group: u32 },
    Reported,
    Down { node: u32 },
    Up { node: u32 },
}

/// The use of the device by a request that was started.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// When the request is ready to run, apart from its load.
    ready_at_ns: u64,
    /// Time off the device after its run.
    after_ns: u64,
    used: DeviceUse,
}

struct SimulatedWorld<'a> {
    workload: &'a Workload,
    cluster: &'a SimulatedCluster,
    layout: DeviceLayout,
    groups: SimulatedGroups,
    names: Vec<(FunctionId, ModelId)>,
    numbers: BTreeMap<ModelId, u32>,
    devices: Vec<SimulatedDevice>,
    /// Number of outages by device.
    lives: Vec<u32>,
    happenings: BinaryHeap<Reverse<(u64, Happening)>>,
    /// By request.
    uses: Vec<Use>,
    checks: Checks,
    schedule: SimulatedSchedule,
    now_ns: u64,
    /// The most requested model, the number of devices that hold it, and since when.
    top: (u32, u32, u64),
    /// Number of devices that hold a model, by model.
    copies: Vec<u32>,
    actions: Vec<Action>,
    /// The device used last.
    started_last: u32,
}

impl<'a> SimulatedWorld<'a> {
    fn new(
        workload: &'a Workload,
        cluster: &'a SimulatedCluster,
        policy: impl FnMut() -> Box<dyn Policy>,
    ) -> Self {
        let layout = DeviceLayout::new(workload, cluster);
        let groups = SimulatedGroups::new(workload, cluster, &layout, policy);
        let mut happenings = BinaryHeap::new();
        if groups.report_interval_ns().is_some() {
            happenings.push(Reverse((0, Happening::Reported)));
        }
        let end_ns = workload.requests().last().map_or(0, |request| request.arrived_at_ns);
        for (node, at_ns, up_at_ns) in
            cluster.losses.map_or(Vec::new(), |losses| layout.losses(losses, end_ns))
        {
            happenings.push(Reverse((at_ns, Happening::Down { node })));
            happenings.push(Reverse((up_at_ns, Happening::Up { node })));
        }
        let mut counts = vec![0_u32; workload.models().len()];
        let mut tenants = vec![0; workload.models().len()];
        for request in workload.requests() {
            counts[request.model as usize] += 1;
            tenants[request.model as usize] = request.tenant;
        }
        let top = (0_u32..).zip(&counts).max_by_key(|(model, count)| (**count, Reverse(*model)));
        let names: Vec<_> = (0_u32..).zip(tenants).map(|(model, tenant)| names(model, tenant)).collect();
        let numbers = (0..).zip(&names).map(|(number, (_, model))| (model.clone(), number)).collect();
        let (placed, expected_run_ns) =
            (vec![None; workload.requests().len()], vec![0; workload.models().len()]);
        let expected_end_ns = vec![0; placed.len()];
        let schedule =
            SimulatedSchedule { placed, expected_run_ns, expected_end_ns, ..SimulatedSchedule::default() };
        Self {
            workload,
            cluster,
            checks: Checks::new(workload, cluster, &layout, groups.keep_order()),
            layout,
            groups,
            names,
            numbers,
            devices: (0..workload.devices()).map(|_| SimulatedDevice::new(run_slots(cluster))).collect(),
            lives: vec![0; workload.devices() as usize],
            happenings,
            uses: vec![Use::default(); workload.requests().len()],
            schedule,
            now_ns: 0,
            top: (top.map_or(0, |(model, _)| model), 0, 0),
            copies: vec![0; workload.models().len()],
            actions: Vec::new(),
            started_last: 0,
        }
    }

    fn run(mut self) -> Result<SimulatedSchedule, Violation> {
        let mut arrivals = (0_u32..).zip(self.workload.requests()).peekable();
        loop {
            let arrival_ns = arrivals.peek().map(|(_, request)| request.arrived_at_ns);
            let happening_ns = self.happenings.peek().map(|Reverse((at_ns, _))| *at_ns);
            if let Some(at_ns) =
                happening_ns.filter(|at_ns| arrival_ns.is_none_or(|arrival_ns| *at_ns <= arrival_ns))
            {
                self.now_ns = at_ns;
                if let Some(happening) = self.next_happening() {
                    self.happen(happening)?;
                }
            } else if let Some((number, request)) = arrivals.next() {
                self.now_ns = request.arrived_at_ns;
                self.arrive(number)?;
            } else {
                break;
            }
        }
        let (_, holders, since_ns) = self.top;
        self.schedule.top_held_ns += u128::from(holders) * u128::from(self.now_ns - since_ns);
        self.schedule.elsewhere = self.groups.elsewhere();
        self.checks.end(self.groups.schedulers())?;
        Ok(self.schedule)
    }

    fn next_happening(&mut self) -> Option<Happening> {
        let Reverse((at_ns, first)) = self.happenings.pop()?;
        let (Happening::Computed { .. }, Ends::InTurn) = (first, self.cluster.ends) else {
            return Some(first);
        };
        let mut ends = vec![first];
        while let Some(Reverse((next_ns, Happening::Computed { .. }))) = self.happenings.peek()
            && *next_ns == at_ns
        {
            ends.extend(self.happenings.pop().map(|Reverse((_, next))| next));
        }
        let turn = |happening: &Happening| match happening {
            Happening::Computed { device, .. } => (*device <= self.started_last, *device),
            _ => (false, 0),
        };
        ends.sort_by_key(turn);
        let next = ends.remove(0);
        self.happenings.extend(ends.into_iter().map(|end| Reverse((at_ns, end))));
        Some(next)
    }

    fn arrive(&mut self, number: u32) -> Result<(), Violation> {
        let request = &self.workload.requests()[number as usize];
        let costs = self.costs(request.model);
        let told = self.cluster.tells_costs;
        let (function, model) = &self.names[request.model as usize];
        let demand = ModelDemand {
            model: model.clone(),
            bytes: costs.bytes,
            load_time_ns: told.then_some(costs.load_time_ns),
            runs_on: Platforms::ALL,
            parts: Vec::new(),
        };
        let slo = self.cluster.slo.and_then(|rule| rule.slo(number, self.now_ns, costs.run_time_ns));
        self.schedule.slos.asked += u32::from(slo.is_some());
        self.checks.arrived(number, request.tenant, slo);
        let group = self.groups.route(self.now_ns, number, request.model, &costs);
        let arrival = Arrival {
            invocation: InvocationId(u64::from(number)),
            function: function.clone(),
            models: vec![demand],
            deadline_at_ns: self.cluster.deadline_ns.map_or(u64::MAX, |after_ns| self.now_ns + after_ns),
            priority: 0,
            batch: 1,
            run_time_ns: told.then_some(costs.run_time_ns),
            run_times_ns: Vec::new(),
            slo,
            inputs: Vec::new(),
            batch_items_max: if self.cluster.counts_work() { self.cluster.batching.batch_max } else { 0 },
            is_splittable: false,
            steps: Vec::new(),
        };
        self.tell(group, Event::Arrived(arrival))
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Woken { group } => self.tell(group, Event::Woken),
            Happening::Reported => {
                self.report();
                Ok(())
            }
            Happening::Loaded { device, life, .. }
            | Happening::Ready { device, life, .. }
            | Happening::Computed { device, life, .. }
            | Happening::Left { device, life, .. }
                if life != self.lives[device as usize] =>
            {
                Ok(())
            }
            Happening::Down { node } => self.lose(node),
            Happening::Up { node } => self.tell(self.groups.of_node(node), self.layout.up(node)),
            Happening::Loaded { device, model, .. } => {
                let costs = self.layout.costs(device, self.costs(model));
                let id = self.layout.id(device);
                let loaded = Event::Loaded {
                    device: id,
                    model: self.names[model as usize].1.clone(),
                    bytes: costs.bytes,
                    load_time_ns: Some(costs.load_time_ns),
                    parts: Vec::new(),
                };
                self.tell(self.groups.of_node(id.node.0), loaded)
            }
            Happening::Ready { device, request, .. } => {
                let job = self.job(request);
                self.devices[device as usize].ready(job);
                self.compute(device)
            }
            Happening::Computed { device, batch, .. } => {
                let done = self.devices[device as usize].computed(batch);
                let leaves = |job: &&SimulatedRequest| self.uses[job.request as usize].after_ns == 0;
                let ends: Vec<SimulatedRequest> = done.iter().filter(leaves).copied().collect();
                ends.iter().for_each(|job| self.devices[device as usize].release(*job));
                for job in &done {
                    let after_ns = self.uses[job.request as usize].after_ns;
                    if after_ns > 0 {
                        let left = Happening::Left {
                            device,
                            life: self.lives[device as usize],
                            request: job.request,
                        };
                        self.happenings.push(Reverse((self.now_ns + after_ns, left)));
                    }
                }
                self.compute(device)?;
                ends.into_iter().try_for_each(|job| self.end(device, job))
            }
            Happening::Left { device, request, .. } => {
                let job = self.job(request);
                self.devices[device as usize].release(job);
                self.end(device, job)
            }
        }
    }

    /// Ends a request whose grant was released.
    fn end(&mut self, device: u32, job: SimulatedRequest) -> Result<(), Violation> {
        if let Some(placed) = &mut self.schedule.placed[job.request as usize] {
            placed.ended_at_ns = self.now_ns;
            let kind = self.layout.kind_name(device);
            let taken_ns = self.now_ns - placed.started_at_ns;
            let cost = self.cluster.settings.slo.price(&kind).of_time(taken_ns);
            self.schedule.cost = self.schedule.cost.saturating_add(cost);
            self.checks.kept(job.request, self.now_ns, cost, &mut self.schedule.slos)?;
        }
        self.checks.ended(job.request, device)?;
        let invocation = InvocationId(u64::from(job.request));
        let used = self.uses[job.request as usize].used;
        let tenant = self.workload.requests()[job.request as usize].tenant;
        *self.schedule.device_time_ns.entry(tenant).or_default() += used.device_time_ns;
        let used = self.cluster.counts_work().then_some(used);
        let is_fault = self.cluster.fault(job.request).is_some();
        self.schedule.failed += u32::from(is_fault);
        let ended = match is_fault {
            false => Event::Finished { invocation, used },
            true if SimulatedCluster::is_cancelled(job.request) => Event::Cancelled { invocation, used },
            true => Event::Failed { invocation, used },
        };
        self.tell(self.group_of(device), ended)
    }

    /// Takes a node down, with the contents of its memory and its running requests.
    fn lose(&mut self, node: u32) -> Result<(), Violation> {
        for device in self.layout.devices_of(node) {
            self.lives[device as usize] += 1;
            let gone = std::mem::replace(
                &mut self.devices[device as usize],
                SimulatedDevice::new(run_slots(self.cluster)),
            );
            gone.models().for_each(|model| self.copy(model, -1));
            for request in self.checks.lose(device) {
                self.schedule.placed[request as usize] = None;
            }
        }
        self.tell(self.groups.of_node(node), Event::NodeDown { node: NodeId(node) })?;
        self.checks.lost()
    }

    /// Reports the work of all groups to the router, and again after an interval while the workload
    /// lasts.
    fn report(&mut self) {
        self.groups.report(self.now_ns);
        let end_ns = self.workload.requests().last().map_or(0, |request| request.arrived_at_ns);
        let next_ns = self.groups.report_interval_ns().map(|interval_ns| self.now_ns + interval_ns);
        if let Some(next_ns) = next_ns.filter(|next_ns| *next_ns <= end_ns) {
            self.happenings.push(Reverse((next_ns, Happening::Reported)));
        }
    }

    fn tell(&mut self, group: u32, event: Event) -> Result<(), Violation> {
        let mut actions = std::mem::take(&mut self.actions);
        self.schedule.decisions += 1;
        self.groups.scheduler(group).handle(self.now_ns, event, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(group, action)?;
        }
        self.actions = actions;
        self.checks.step(self.groups.scheduler(group))
    }

    fn carry_out(&mut self, group: u32, action: Action) -> Result<(), Violation> {
        match action {
            Action::WakeAt(at_ns) => {
                if at_ns != u64::MAX {
                    self.happenings.push(Reverse((at_ns.max(self.now_ns), Happening::Woken { group })));
                }
                Ok(())
            }
            // Workloads require no models, and name no steps.
            Action::Reserved { .. } | Action::Load { .. } | Action::Release { .. } => Ok(()),
            Action::Reject { invocation, why, .. } => {
                let has_slo = self.checks.rejected(invocation, tenant_of(self.workload), why)?;
                self.schedule.slos.rejected += u32::from(has_slo);
                Ok(())
            }
            Action::Start { invocation, device, evict, why, .. } => {
                let (request, device) = {
                    let tenant_of = tenant_of(self.workload);
                    let number = device.and_then(|device| self.layout.number(device));
                    self.checks.started(invocation, tenant_of, (device, number), &why, self.now_ns)?
                };
                let model = self.workload.requests()[request as usize].model;
                self.schedule.expected_run_ns[model as usize] = why.estimate.run_time_ns;
                let after_ns = why.estimate.finish_after_ns();
                self.schedule.expected_end_ns[request as usize] = self.now_ns.saturating_add(after_ns);
                for victim in evict {
                    let victim = self.numbers.get(&victim).copied().unwrap_or(u32::MAX);
                    self.checks.evicts(device, victim, &self.devices[device as usize])?;
                    self.evict(device, victim)?;
                }
                self.start(request, device, model)
            }
        }
    }

    fn start(&mut self, request: u32, device: u32, model: u32) -> Result<(), Violation> {
        let costs = self.layout.costs(device, self.costs(model));
        let now_ns = self.now_ns;
        self.started_last = device;
        let started =
            self.devices[device as usize].start(now_ns, SimulatedRequest { request, model }, &costs);
        self.checks.fits(device, &self.devices[device as usize])?;
        if !started.hit {
            self.schedule.false_misses += u32::from(self.copies[model as usize] > 0);
            self.copy(model, 1);
        }
        let placed =
            SimulatedPlacement { device, started_at_ns: now_ns, ended_at_ns: now_ns, hit: started.hit };
        self.schedule.placed[request as usize] = Some(placed);
        let life = self.lives[device as usize];
        if !started.hit {
            self.happenings.push(Reverse((started.ready_at_ns, Happening::Loaded { device, life, model })));
        }
        let (off_device_ns, hand_over_ns) = match self.cluster.counts_work() {
            true => (self.workload.off_device_ns()[model as usize], self.cluster.hand_over_ns),
            false => (0, 0),
        };
        let (before_ns, after_ns) = SimulatedCluster::split_ns(request, off_device_ns);
        let ready_at_ns = now_ns + hand_over_ns + before_ns;
        self.uses[request as usize] = Use { ready_at_ns, after_ns, used: DeviceUse::default() };
        let ready = Happening::Ready { device, life, request };
        self.happenings.push(Reverse((started.ready_at_ns.max(ready_at_ns), ready)));
        Ok(())
    }

    fn evict(&mut self, device: u32, model: u32) -> Result<(), Violation> {
        let costs = self.costs(model);
        if self.devices[device as usize].evict(model, &costs) {
            self.copy(model, -1);
            self.evicted_later(device, model)?;
        }
        Ok(())
    }

    /// Reports the eviction to the scheduler between two decisions, never during one.
    fn evicted_later(&mut self, device: u32, model: u32) -> Result<(), Violation> {
        let mut actions = Vec::new();
        let event =
            Event::Evicted { device: self.layout.id(device), model: self.names[model as usize].1.clone() };
        let group = self.group_of(device);
        self.groups.scheduler(group).handle(self.now_ns, event, &mut actions);
        self.checks.silent(&actions)
    }

    /// Starts the batches for which there are idle run slots.
    fn compute(&mut self, device: u32) -> Result<(), Violation> {
        let SimulatedBatching { batch_max, marginal } = self.cluster.batching;
        let mut started = Vec::new();
        while let Some((batch, jobs)) = self.devices[device as usize].compute(batch_max.max(1) as usize) {
            let Some(first) = jobs.first().copied() else { break };
            let count = jobs.len();
            let run_ns = self.layout.costs(device, self.workload.models()[first.model as usize]).run_time_ns;
            let mut run_ns = self.cluster.jittered_ns(first.request, run_ns as f64);
            if let Some(part) = self.cluster.fault(first.request).filter(|_| count == 1) {
                run_ns *= part;
            }
            let length_ns = crate::estimate::round_ns(run_ns * (1.0 + marginal * (count - 1) as f64)).max(1);
            for job in jobs {
                let Use { ready_at_ns, used, .. } = &mut self.uses[job.request as usize];
                *used = DeviceUse {
                    device_time_ns: length_ns / count as u64,
                    run_time_ns: length_ns,
                    batch_items: u32::try_from(count).unwrap_or(u32::MAX),
                    wait_ns: self.now_ns.saturating_sub(*ready_at_ns),
                };
                started.push(job.request);
            }
            self.schedule.computed_ns += length_ns;
            let computed = Happening::Computed { device, life: self.lives[device as usize], batch };
            self.happenings.push(Reverse((self.now_ns + length_ns, computed)));
        }
        // The papers' devices report no starts.
        started.retain(|_| self.cluster.counts_work());
        let group = self.group_of(device);
        let event = |request| Event::Started { invocation: InvocationId(u64::from(request)) };
        started.into_iter().try_for_each(|request| self.tell(group, event(request)))
    }

    fn group_of(&self, device: u32) -> u32 {
        self.groups.of_node(self.layout.id(device).node.0)
    }

    /// Changes the number of devices that hold a model.
    fn copy(&mut self, model: u32, change: i32) {
        let copies = &mut self.copies[model as usize];
        *copies = copies.saturating_add_signed(change);
        let (top, holders, since_ns) = self.top;
        if model == top {
            self.schedule.top_held_ns += u128::from(holders) * u128::from(self.now_ns - since_ns);
            self.top = (top, *copies, self.now_ns);
        }
    }

    fn job(&self, request: u32) -> SimulatedRequest {
        SimulatedRequest { request, model: self.workload.requests()[request as usize].model }
    }

    fn costs(&self, model: u32) -> ModelCosts {
        self.workload.models()[model as usize]
    }
}

/// The papers' devices run one batch at a time, whatever the number of invocations.
fn run_slots(cluster: &SimulatedCluster) -> u32 {
    if cluster.counts_work() { cluster.slots } else { 1 }
}

fn tenant_of(workload: &Workload) -> impl Fn(u32) -> u32 {
    |request| workload.requests()[request as usize].tenant
}

fn names(model: u32, tenant: u32) -> (FunctionId, ModelId) {
    let name = |text: String| Name::new(&text).unwrap_or_else(|error| unreachable!("{text}: {error}"));
    let tenant = TenantId::new(&format!("tenant-{tenant}")).unwrap_or_default();
    let function =
        FunctionId { tenant: tenant.clone(), name: name(format!("f{model}")), version: Version(1) };
    (function, ModelId { tenant, name: name(format!("m{model}")), version: Version(1) })
}
