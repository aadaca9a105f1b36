//! Where invocations run: asks for a placement, waits for the answer, and keeps what this node's device may give up.
//!
//! Placements come from a scheduler: this node's own, or that of the cluster's dispatcher. The scheduler is a pure state machine behind one
//! lock, held for no longer than one `handle`; most invocations are placed by the very call that announces them, the others wait for a
//! later event to start them. A node that loses its dispatcher places what it has by itself, on its own devices, until there is another:
//! what waits is announced again, and nothing is lost.

mod asking;
mod books;
mod dispatching;
mod driver;
mod placed;
mod record;
mod state;
mod wake;

pub(crate) use asking::Link;
pub(crate) use driver::LinkId;
pub(crate) use placed::{Placed, Spot};
pub(crate) use state::{Away, Place};

use super::{Inference, Invocation, WorkflowCall};
use crate::cluster::wire::{Granted, Hello, News, Resident};
use crate::devices::Ordinal;
use crate::instance::Fault;
use crate::models::{Expected, Models};
use crate::objective::Objective;
use crate::workflows::{Catalog, ExpectedRun};
use books::{Books, Come};
use driver::Driver;
use placed::By;
use record::Record;
use state::{Elsewhere, Placer, Refusal, State, Waiting};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use weir_inference::Health;
use weir_scheduler::{Action, Arrival, DeviceSpec, Event, ModelDemand, Rejection, Setup, Slo};
use weir_types::{Cost, FunctionId, InvocationId, ModelId, NodeId, TenantId, Version, WorkflowId};

/// Asks for placements.
pub(crate) struct Placements {
    node: NodeId,
    address: Option<String>,
    devices: Vec<DeviceSpec>,
    scheduler: Setup,
    state: Mutex<State>,
    /// Writes down what the scheduler does.
    record: Option<Record>,
    /// Calls without models under way that were placed here without asking, and how many there may be.
    unasked: AtomicUsize,
    unasked_max: usize,
    /// Told whenever a grant on one of this node's devices is over, or more may be evicted.
    freed: Notify,
    /// The scheduler's time counts from here.
    epoch: Instant,
    /// When the scheduler wants to be woken, in its time.
    wake_at_ns: watch::Sender<Option<u64>>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// What a node needs to be placed on.
pub(crate) struct PlacementConfig {
    /// What the cluster calls this node.
    pub(crate) node: NodeId,
    /// Where the other nodes of the cluster reach this one; none if it is by itself.
    pub(crate) address: Option<String>,
    /// Its devices, by ordinal.
    pub(crate) devices: Vec<DeviceSpec>,
    /// Calls without models that run here at once without asking where they should. Those of a tenant with caps do ask.
    pub(crate) unasked_max: usize,
    /// What this node's own scheduler is made of.
    pub(crate) scheduler: Setup,
    /// Where to write down what it does, if anywhere.
    pub(crate) record: Option<PathBuf>,
}

/// What came of telling the scheduler of an invocation.
enum Placing {
    Done(Result<Place, Refusal>),
    Waits(oneshot::Receiver<Result<Place, Refusal>>),
}

impl Placements {
    /// Begin with nothing running.
    pub(crate) fn start(config: PlacementConfig) -> Arc<Self> {
        let PlacementConfig { node, address, devices, unasked_max, scheduler, record } = config;
        let books = Books::new(devices.len());
        let state = State {
            placer: Placer::Own(Box::new(Driver::new(
                0,
                hello(node, &address, &devices, &books),
                &scheduler,
                record.is_some(),
            ))),
            waiting: HashMap::new(),
            away: HashMap::new(),
            books,
        };
        let placements = Arc::new(Self {
            node,
            address,
            devices,
            scheduler,
            state: Mutex::new(state),
            record: record.map(Record::new),
            unasked: AtomicUsize::new(0),
            unasked_max,
            freed: Notify::new(),
            epoch: Instant::now(),
            wake_at_ns: watch::Sender::new(None),
            tasks: Mutex::default(),
        });
        let weak = Arc::downgrade(&placements);
        let mut tasks = vec![tokio::spawn(wake::wake(weak.clone(), placements.wake_at_ns.subscribe()))];
        if placements.record.is_some() {
            tasks.push(tokio::spawn(record::keep(weak)));
        }
        *placements.tasks.lock().unwrap_or_else(PoisonError::into_inner) =
            tasks.into_iter().map(AbortOnDropHandle::new).collect();
        placements
    }

    /// What the cluster calls this node.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Wait for a placement. Dropping the future, or the placement, tells the scheduler that the invocation is over.
    pub(crate) async fn place(
        self: &Arc<Self>,
        invocation: &Invocation,
        catalog: &Catalog,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &invocation.granted {
            return Ok(self.granted(invocation.id, granted));
        }
        let demands = catalog.granted(&invocation.deployment);
        if demands.is_empty() && self.take_unasked(&invocation.deployment.id.tenant) {
            return Ok((Place::Here(None), self.placed(invocation.id, By::Nobody)));
        }
        let objective = Objective::from(&*invocation.deployment.manifest);
        let arrival = Arrival {
            invocation: invocation.id,
            function: invocation.deployment.id.clone(),
            models: demands,
            deadline_at_ns: self.time_ns(invocation.deadline),
            priority: invocation.priority,
            batch: 1,
            run_time_ns: None,
            run_times_ns: Vec::new(),
            slo: self.slo(&objective, invocation.arrived),
            inputs: invocation.inputs.clone(),
        };
        self.settle(arrival, &objective, invocation.arrived).await
    }

    /// The same for an inference of a model by itself.
    pub(crate) async fn place_inference(
        self: &Arc<Self>,
        inference: &Inference,
        batch: u32,
        models: &Models,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &inference.granted {
            return Ok(self.granted(inference.id, granted));
        }
        let ModelId { tenant, name, .. } = inference.entry.source.id().clone();
        let objective = Objective::from(&inference.entry.record.manifest);
        // What was measured before the node was started last: looked up only where somebody is turned away by it.
        let known =
            if objective.is_none() { Expected::default() } else { models.expected(&inference.entry, batch) };
        let arrival = Arrival {
            invocation: inference.id,
            // The scheduler learns run times by function: a model by itself is one of version 0, which no function has.
            function: FunctionId { tenant, name, version: Version(0) },
            models: vec![ModelDemand { load_time_ns: known.load_time_ns, ..inference.entry.demand() }],
            deadline_at_ns: self.time_ns(inference.deadline),
            priority: inference.priority,
            batch,
            run_time_ns: None,
            run_times_ns: known.run_times_ns,
            slo: self.slo(&objective, inference.arrived),
            inputs: inference.inputs.clone(),
        };
        self.settle(arrival, &objective, inference.arrived).await
    }

    /// The same for a model that is to be measured: one call, however many runs it makes, with nothing to keep to.
    pub(crate) async fn place_measuring(
        self: &Arc<Self>,
        inference: &Inference,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &inference.granted {
            return Ok(self.granted(inference.id, granted));
        }
        let ModelId { tenant, name, .. } = inference.entry.source.id().clone();
        let arrival = Arrival {
            invocation: inference.id,
            // How long it takes is no run time of the model's, nor of a function's: none has this version.
            function: FunctionId { tenant, name, version: Version(u32::MAX) },
            models: vec![inference.entry.demand()],
            deadline_at_ns: self.time_ns(inference.deadline),
            priority: inference.priority,
            batch: 1,
            run_time_ns: None,
            run_times_ns: Vec::new(),
            slo: None,
            inputs: Vec::new(),
        };
        self.settle(arrival, &Objective::default(), inference.arrived).await
    }

    /// The same for a workflow, which needs all the models of its steps.
    pub(crate) async fn place_workflow(
        self: &Arc<Self>,
        call: &WorkflowCall,
        batch: u32,
        catalog: &Catalog,
    ) -> Result<(Place, Placed), Fault> {
        if let Some(granted) = &call.granted {
            return Ok(self.granted(call.id, granted));
        }
        let objective = Objective::from(&call.workflow.record);
        // As for a model: looked up only where somebody is turned away by it.
        let ExpectedRun { models, run_times_ns } = if objective.is_none() {
            ExpectedRun { models: catalog.demands(&call.workflow), run_times_ns: Vec::new() }
        } else {
            catalog.expected(&call.workflow, batch)
        };
        let WorkflowId { tenant, name, version } = call.workflow.id.clone();
        let arrival = Arrival {
            invocation: call.id,
            // No function has the name of a workflow.
            function: FunctionId { tenant, name, version },
            models,
            deadline_at_ns: self.time_ns(call.deadline),
            priority: call.priority,
            batch,
            run_time_ns: None,
            run_times_ns,
            slo: self.slo(&objective, call.arrived),
            inputs: call.inputs.clone(),
        };
        self.settle(arrival, &objective, call.arrived).await
    }

    /// In the scheduler's time.
    fn slo(&self, objective: &Objective, arrived: Instant) -> Option<Slo> {
        let due_at_ns = objective.latency.map_or(u64::MAX, |latency| self.time_ns(arrived + latency));
        let cost_max = objective.cost_max.unwrap_or(Cost::MAX);
        (!objective.is_none()).then_some(Slo { due_at_ns, cost_max })
    }

    /// What a call may have here, on this device, that was placed where it could not run: the scheduler is not asked again, and what the device
    /// uses may make room.
    pub(crate) fn grant_here(&self, models: Vec<ModelId>, device: Option<Ordinal>) -> Granted {
        let evict = device.map(|device| self.lock().books.residents(device)).unwrap_or_default();
        Granted { device, models, evict }
    }

    /// An invocation that was placed here uses a model on another device than that it was placed on.
    pub(crate) fn grant_beside(&self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        self.lock().books.add(invocation, device, model);
    }

    /// A call that has its place here.
    fn granted(self: &Arc<Self>, id: InvocationId, granted: &Granted) -> (Place, Placed) {
        self.lock().books.begin(id, granted.clone());
        (Place::Here(granted.device), self.placed(id, By::Grant))
    }

    fn placed(self: &Arc<Self>, invocation: InvocationId, by: By) -> Placed {
        Placed { placements: self.clone(), invocation, by }
    }

    async fn settle(
        self: &Arc<Self>,
        arrival: Arrival,
        objective: &Objective,
        arrived: Instant,
    ) -> Result<(Place, Placed), Fault> {
        let models = arrival.models.iter().map(|demand| demand.model.clone()).collect();
        let placed = self.placed(arrival.invocation, By::Scheduler);
        let answer = match self.arrive(arrival, models) {
            Placing::Done(answer) => answer,
            Placing::Waits(started) => started.await.unwrap_or(Err(Refusal::NoAnswer)),
        };
        let place = answer.map_err(|refusal| match refusal {
            Refusal::Rejected(Rejection::Slo, estimate) => objective.refuse(&estimate, arrived.elapsed()),
            refusal => refusal.into(),
        })?;
        Ok((place, placed))
    }

    /// Take one of the places for calls that gain nothing by going elsewhere, and are held back by nothing here.
    fn take_unasked(&self, tenant: &TenantId) -> bool {
        if self.scheduler.settings.limits_of(tenant).may_hold_back() {
            return false;
        }
        let free = |taken| (taken < self.unasked_max).then_some(taken + 1);
        self.unasked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok()
    }

    /// Tell of an invocation that needs `models`. Most are answered by the same call, and leave no trace among those that wait.
    fn arrive(&self, arrival: Arrival, models: Vec<ModelId>) -> Placing {
        let id = arrival.invocation;
        let mut state = self.lock();
        let kept = self.address.is_some().then(|| arrival.clone());
        let mut own = Some(models);
        let mut answer = None;
        self.announce(&mut state, arrival, |state, action| match action {
            Action::Start { invocation, node, device, evict, .. } if invocation == id => {
                let elsewhere = self.elsewhere(state, node);
                let device = device.map(|device| device.ordinal);
                let granted = Granted { device, models: own.take().unwrap_or_default(), evict };
                answer = Some(state.start(id, elsewhere, granted));
            }
            Action::Reject { invocation, why, estimate } if invocation == id => {
                answer = Some(Err(Refusal::Rejected(why, estimate)));
            }
            other => self.carry_out(state, other),
        });
        if let Some(answer) = answer {
            return Placing::Done(answer);
        }
        let (start, started) = oneshot::channel();
        state.waiting.insert(id, Waiting { models: own.unwrap_or_default(), arrival: kept, start });
        Placing::Waits(started)
    }

    /// Comes to its end when a load that found no room may find some, from when this was asked.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Whether something may be evicted from a device as soon as those who use it are done.
    pub(crate) fn is_held_up(&self, device: Ordinal) -> bool {
        self.lock().books.is_held_up(device)
    }

    /// What a load on a device may evict now.
    pub(crate) fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.lock().books.victims(device)
    }

    /// Let go of what nobody here needs on a device, where the scheduler has taken something for free that is not: it may have just taken over,
    /// or its news be on their way. Whether there is anything of that kind.
    pub(crate) fn give_up_unneeded(&self, device: Ordinal) -> bool {
        let mut state = self.lock();
        let unneeded = state.books.unneeded(device);
        let is_any = !unneeded.is_empty();
        self.may_evict(&mut state, device, unneeded);
        is_any
    }

    /// A load or an eviction has happened: tell the scheduler what is in a device's memory `now`, and how long each took that has come.
    pub(crate) fn residents(&self, device: Ordinal, now: impl FnOnce() -> Vec<(Resident, Duration)>) {
        let mut state = self.lock();
        // Looked at under the lock: whoever comes last knows best.
        let (now, load_times): (Vec<_>, Vec<_>) = now()
            .into_iter()
            .map(|(resident, load_time)| {
                let load_time = (resident.model.clone(), load_time);
                (resident, load_time)
            })
            .unzip();
        let (gone, come) = state.books.settle(device, now);
        for model in gone {
            self.tell(&mut state, News::Evicted { device, model });
        }
        for Come { resident: Resident { model, bytes, parts, .. }, is_new } in come {
            let load_time = load_times.iter().find(|(loaded, _)| is_new && *loaded == model);
            let load_time_ns = load_time.map(|(_, time)| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            self.tell(&mut state, News::Loaded { device, model, bytes, load_time_ns, parts });
        }
    }

    /// A device may be lost, with what was in its memory, or there again: tell the scheduler. Whether it is news that it is lost.
    pub(crate) fn note_health(&self, device: Ordinal, health: &watch::Receiver<Health>) -> bool {
        let mut state = self.lock();
        // Looked at under the lock: whoever comes last knows best.
        let is_up = *health.borrow() == Health::Up;
        if !state.books.set_up(device, is_up) {
            return false;
        }
        if is_up {
            self.tell(&mut state, News::DeviceUp { device });
        } else {
            self.tell(&mut state, News::DeviceDown { device });
            let (gone, _) = state.books.settle(device, Vec::new());
            for model in gone {
                self.tell(&mut state, News::Evicted { device, model });
            }
        }
        !is_up
    }

    fn announce(&self, state: &mut State, arrival: Arrival, carry_out: impl FnMut(&mut State, Action)) {
        match &mut state.placer {
            Placer::Own(_) => self.decide(state, Event::Arrived(arrival), carry_out),
            Placer::Dispatcher(_) => {
                let now_ns = self.time_ns(Instant::now());
                let in_ns = |at_ns: u64| at_ns.saturating_sub(now_ns);
                let deadline_in_ns = in_ns(arrival.deadline_at_ns);
                let due_in_ns = arrival.slo.map_or(u64::MAX, |slo| slo.due_at_ns);
                let due_in_ns = (due_in_ns < u64::MAX).then(|| in_ns(due_in_ns));
                self.tell(state, News::Arrived { arrival, deadline_in_ns, due_in_ns });
            }
        }
    }

    /// Tell whoever decides what happened on this node.
    fn tell(&self, state: &mut State, news: News) {
        match &mut state.placer {
            Placer::Own(_) => {
                if let Some(event) = news.event(self.node, self.time_ns(Instant::now())) {
                    self.decide(state, event, |state, action| self.carry_out(state, action));
                }
            }
            Placer::Dispatcher(link) => link.send(news),
        }
    }

    fn decide(&self, state: &mut State, event: Event, carry_out: impl FnMut(&mut State, Action)) {
        let Placer::Own(driver) = &mut state.placer else { return };
        let actions = driver.handle(self.time_ns(Instant::now()), event);
        self.carry_out_all(state, actions, carry_out);
    }

    fn carry_out_all(
        &self,
        state: &mut State,
        mut actions: Vec<Action>,
        mut carry_out: impl FnMut(&mut State, Action),
    ) {
        for action in actions.drain(..) {
            carry_out(state, action);
        }
        if let Placer::Own(driver) = &mut state.placer {
            let evict = driver.take_own_evict();
            driver.recycle(actions);
            for (device, evict) in evict {
                self.may_evict(state, device, evict);
            }
        }
    }

    fn carry_out(&self, state: &mut State, action: Action) {
        match action {
            Action::Start { invocation, node, device, evict, why } => {
                if why.queued_ns > 0 {
                    tracing::debug!(%invocation, queued_ns = why.queued_ns, "placed after a wait");
                }
                let elsewhere = self.elsewhere(state, node);
                state.started(invocation, elsewhere, device.map(|device| device.ordinal), evict);
            }
            Action::Reject { invocation, why, estimate } => state.rejected(invocation, why, estimate),
            Action::WakeAt(at_ns) => {
                self.wake_at_ns.send_replace(Some(at_ns));
            }
        }
    }

    fn may_evict(&self, state: &mut State, device: Ordinal, evict: Vec<ModelId>) {
        if !evict.is_empty() {
            state.books.allow(device, evict);
            self.freed.notify_waiters();
        }
    }

    /// Where `node` is, if it is not this one.
    fn elsewhere(&self, state: &State, node: NodeId) -> Option<Elsewhere> {
        let Placer::Own(driver) = &state.placer else { return None };
        (node != self.node).then(|| Elsewhere(driver.address(node).map(str::to_owned)))
    }

    fn over(&self, invocation: InvocationId) {
        let mut state = self.lock();
        let news = match state.waiting.remove(&invocation) {
            Some(_) => News::Cancelled { invocation },
            None => News::Finished { invocation },
        };
        state.away.remove(&invocation);
        state.books.finish(invocation);
        self.tell(&mut state, news);
    }

    /// What the node says of itself.
    fn hello(&self, books: &Books) -> Hello {
        hello(self.node, &self.address, &self.devices, books)
    }

    fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Placements {
    /// Bring what was written down to its files. Done every now and then, and at the end.
    pub(crate) async fn write_record(&self) {
        if let Some(record) = &self.record {
            let lines = match &mut self.lock().placer {
                Placer::Own(driver) => driver.take_lines(),
                Placer::Dispatcher(_) => Vec::new(),
            };
            record.write(lines).await;
        }
    }
}

fn hello(node: NodeId, address: &Option<String>, devices: &[DeviceSpec], books: &Books) -> Hello {
    Hello {
        node,
        address: address.clone().unwrap_or_default(),
        devices: devices.to_vec(),
        resident: books.all_resident(),
        down: books.down(),
    }
}
