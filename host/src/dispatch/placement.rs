//! Placement of invocations: requests placements, waits for the results, and tracks which models
//! this node's devices may evict.
//!
//! Placements come from a scheduler: this node's own, or the one of the cluster's dispatcher. The
//! scheduler is a pure state machine behind one lock, which is held for one `handle` at a time.
//! Most invocations are placed by the `handle` call that announces them; the others wait until a
//! later event starts them. A node that loses its dispatcher places its invocations on its own
//! devices until there is a new dispatcher. Waiting invocations are announced again, so none is
//! lost.

mod asking;
mod books;
mod dispatching;
mod driver;
mod placed;
mod placing;
mod record;
mod state;
mod wake;

pub(crate) use asking::Link;
pub(crate) use driver::LinkId;
pub(crate) use placed::{Placed, Spot};
pub(crate) use state::{Away, Place};

use crate::cluster::wire::{Granted, Hello, News, Resident};
use crate::devices::Ordinal;
use books::{Books, Come};
use driver::Driver;
use record::Record;
use state::{Elsewhere, Placer, Refusal, State, Waiting};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use weir_inference::Health;
use weir_scheduler::{Action, Arrival, DeviceSpec, Event, Setup};
use weir_types::{InvocationId, ModelId, NodeId};

/// Requests placements.
pub(crate) struct Placements {
    node: NodeId,
    address: Option<String>,
    devices: Vec<DeviceSpec>,
    scheduler: Setup,
    state: Mutex<State>,
    /// Records the scheduler's events and actions.
    record: Option<Record>,
    /// The number of running calls without models that were placed here without asking the
    /// scheduler, and its limit.
    unasked: AtomicUsize,
    unasked_max: usize,
    /// Notified whenever a grant on one of this node's devices ends, or more models may be evicted.
    freed: Notify,
    /// The origin of the scheduler's clock.
    epoch: Instant,
    /// The next wake-up that the scheduler requested, on the scheduler's clock.
    wake_at_ns: watch::Sender<Option<u64>>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// The configuration of a node's placements.
pub(crate) struct PlacementConfig {
    /// This node's identifier in the cluster.
    pub(crate) node: NodeId,
    /// The address at which the other nodes of the cluster reach this one; `None` for a single
    /// node.
    pub(crate) address: Option<String>,
    /// This node's devices, by ordinal.
    pub(crate) devices: Vec<DeviceSpec>,
    /// The limit of concurrent calls without models that run here at once without asking the
    /// scheduler. Calls of tenants with caps always ask the scheduler.
    pub(crate) unasked_max: usize,
    /// The configuration of this node's own scheduler.
    pub(crate) scheduler: Setup,
    /// The file to record the scheduler's events and actions in, if any.
    pub(crate) record: Option<PathBuf>,
}

/// The result of announcing an invocation to the scheduler.
enum Placing {
    Done(Result<Place, Refusal>),
    Waits(oneshot::Receiver<Result<Place, Refusal>>),
}

impl Placements {
    /// Starts with nothing running.
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

    /// This node's identifier in the cluster.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// A grant on this device for a call that could not run where it was placed. The scheduler is
    /// not asked again. The call may evict the models that are resident on the device.
    pub(crate) fn grant_here(&self, models: Vec<ModelId>, device: Option<Ordinal>) -> Granted {
        let evict = device.map(|device| self.lock().books.residents(device)).unwrap_or_default();
        Granted { device, models, evict }
    }

    /// Records that an invocation that was placed here uses a model on a device other than the one
    /// it was placed on.
    pub(crate) fn grant_beside(&self, invocation: InvocationId, device: Ordinal, model: ModelId) {
        self.lock().books.add(invocation, device, model);
    }

    /// Announces an invocation that needs `models`. Most invocations are placed by this call and
    /// are never added to `waiting`.
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

    /// Completes when a load that found no room may find some. Counts from this call on.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Whether models of a device become evictable once their users are done.
    pub(crate) fn is_held_up(&self, device: Ordinal) -> bool {
        self.lock().books.is_held_up(device)
    }

    /// The models that a load on a device may evict now.
    pub(crate) fn victims(&self, device: Ordinal) -> Vec<ModelId> {
        self.lock().books.victims(device)
    }

    /// Makes resident models evictable that no invocation on this node needs. Required where the
    /// scheduler assumed room that is not free yet: it may have just taken over, or its update is
    /// still in transit. Returns whether there were such models.
    pub(crate) fn give_up_unneeded(&self, device: Ordinal) -> bool {
        let mut state = self.lock();
        let unneeded = state.books.unneeded(device);
        let is_any = !unneeded.is_empty();
        self.may_evict(&mut state, device, unneeded);
        is_any
    }

    /// Reports a load or an eviction to the scheduler: `now` returns the models in the device's
    /// memory, each with its load time.
    pub(crate) fn residents(&self, device: Ordinal, now: impl FnOnce() -> Vec<(Resident, Duration)>) {
        let mut state = self.lock();
        // Read under the lock, so that the last caller reports the latest state.
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

    /// Reports to the scheduler that a device was lost, with the contents of its memory, or is
    /// back. Returns whether this call reports a new loss.
    pub(crate) fn note_health(&self, device: Ordinal, health: &watch::Receiver<Health>) -> bool {
        let mut state = self.lock();
        // Read under the lock, so that the last caller reports the latest state.
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

    /// Reports to the scheduler that a device may have more or less memory for models than before.
    pub(crate) fn note_capacity(&self, device: Ordinal, capacity: &watch::Receiver<u64>) {
        let mut state = self.lock();
        // Read under the lock, so that the last caller reports the latest state.
        let capacity_bytes = *capacity.borrow();
        if state.books.set_capacity(device, capacity_bytes, &self.devices) {
            self.tell(&mut state, News::DeviceResized { device, capacity_bytes });
        }
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

    /// Reports an event on this node to the current placer.
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

    /// The address of `node`, if it is another node.
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

    /// This node's introduction to a scheduler.
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
    /// Appends the records to their files. Called periodically, and at the end.
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
        devices: books.resized(devices),
        resident: books.all_resident(),
        down: books.down(),
    }
}
