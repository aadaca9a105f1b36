//! The scheduler's driver on one node: tells it what happens, and carries out what it says.
//!
//! The scheduler is a pure state machine behind one lock, held for no longer than one `handle`. Most invocations are placed by the very call
//! that announces them; the others wait for a later event to start them.

use super::{Inference, Invocation};
use crate::instance::Fault;
use crate::models::Models;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio_util::task::AbortOnDropHandle;
use weir_inference::ResidentModel;
use weir_scheduler::{
    Action, Arrival, DeviceSpec, Event, Evictable, ModelDemand, Rejection, Scheduler, Settings,
};
use weir_types::{DeviceId, ErrorCode, FunctionId, InvocationId, ModelId, NodeId, Version};

/// This node and its only device, in the scheduler's words.
const NODE: NodeId = NodeId(0);
const DEVICE: DeviceId = DeviceId { node: NODE, ordinal: 0 };

/// Asks the scheduler for placements.
pub(crate) struct Placements {
    state: Mutex<State>,
    /// The scheduler's time counts from here.
    epoch: Instant,
    /// When the scheduler wants to be woken, in its time.
    wake_at_ns: watch::Sender<Option<u64>>,
    waker: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct State {
    scheduler: Scheduler,
    waiting: HashMap<InvocationId, Waiting>,
    evictable: Evictable,
    /// What the scheduler has been told is in memory.
    resident: BTreeMap<ModelId, u64>,
    /// Kept from call to call, for its memory.
    actions: Vec<Action>,
}

impl State {
    fn begin(&mut self, invocation: InvocationId, models: Vec<ModelId>, evict: Vec<ModelId>) {
        if !models.is_empty() || !evict.is_empty() {
            self.evictable.start(invocation, models, evict);
        }
    }
}

/// What came of telling the scheduler of an invocation.
enum Placing {
    Done(Result<(), Fault>),
    Waits(oneshot::Receiver<Result<(), Fault>>),
}

struct Waiting {
    models: Vec<ModelId>,
    start: oneshot::Sender<Result<(), Fault>>,
}

impl Placements {
    /// Begin with nothing running. `invocations_max` grants are given at once at most.
    pub(crate) fn start(models: &Models, invocations_max: u32) -> Arc<Self> {
        let mut scheduler = Scheduler::new(&Settings::default());
        let status = models.device_capacity();
        let devices = vec![DeviceSpec {
            kind: "cpu".into(),
            capacity_bytes: status.0,
            slots: status.1,
            invocations_max,
        }];
        scheduler.handle(0, Event::NodeUp { node: NODE, devices }, &mut Vec::new());
        let state = State {
            scheduler,
            waiting: HashMap::new(),
            evictable: Evictable::new(),
            resident: BTreeMap::new(),
            actions: Vec::new(),
        };
        let placements = Arc::new(Self {
            state: Mutex::new(state),
            epoch: Instant::now(),
            wake_at_ns: watch::Sender::new(None),
            waker: Mutex::default(),
        });
        let waker = tokio::spawn(wake(Arc::downgrade(&placements), placements.wake_at_ns.subscribe()));
        *placements.waker.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AbortOnDropHandle::new(waker));
        placements
    }

    /// Wait for a placement. Dropping the future, or the placement, tells the scheduler that the invocation is over.
    pub(crate) async fn place(
        self: &Arc<Self>,
        invocation: &Invocation,
        models: &Models,
    ) -> Result<Placed, Fault> {
        self.settle(Arrival {
            invocation: invocation.id,
            function: invocation.deployment.id.clone(),
            models: models.demands(&invocation.deployment),
            deadline_at_ns: self.time_ns(invocation.deadline),
            priority: invocation.priority,
            batch: 1,
            run_time_ns: None,
        })
        .await
    }

    /// The same for an inference of a model by itself.
    pub(crate) async fn place_inference(
        self: &Arc<Self>,
        inference: &Inference,
        batch: u32,
    ) -> Result<Placed, Fault> {
        let source = &inference.entry.source;
        let ModelId { tenant, name, .. } = source.id().clone();
        let bytes = source.prepared.resident_bytes;
        self.settle(Arrival {
            invocation: inference.id,
            // The scheduler learns run times by function: a model by itself is one of version 0, which no function has.
            function: FunctionId { tenant, name, version: Version(0) },
            models: vec![ModelDemand { model: source.id().clone(), bytes, load_time_ns: None }],
            deadline_at_ns: self.time_ns(inference.deadline),
            priority: inference.priority,
            batch,
            run_time_ns: None,
        })
        .await
    }

    async fn settle(self: &Arc<Self>, arrival: Arrival) -> Result<Placed, Fault> {
        let id = arrival.invocation;
        let models = arrival.models.iter().map(|demand| demand.model.clone()).collect();
        let placed = Placed { placements: self.clone(), invocation: id };
        match self.arrive(arrival, models) {
            Placing::Done(answer) => answer?,
            Placing::Waits(started) => started.await.unwrap_or_else(|_| {
                Err(Fault::new(ErrorCode::Unavailable, "the scheduler gave no answer"))
            })?,
        }
        Ok(placed)
    }

    /// Tell of an invocation that needs `models`. Most are answered by the same call, and leave no trace among those that wait.
    fn arrive(&self, arrival: Arrival, models: Vec<ModelId>) -> Placing {
        let id = arrival.invocation;
        let mut state = self.lock();
        let mut own = Some(models);
        let mut answer = None;
        self.decide(&mut state, Event::Arrived(arrival), |state, action| match action {
            Action::Start { invocation, evict, .. } if invocation == id => {
                state.begin(id, own.take().unwrap_or_default(), evict);
                answer = Some(Ok(()));
            }
            Action::Reject { invocation, why, .. } if invocation == id => answer = Some(Err(fault_of(why))),
            other => self.carry_out(state, other),
        });
        if let Some(answer) = answer {
            return Placing::Done(answer);
        }
        let (start, started) = oneshot::channel();
        state.waiting.insert(id, Waiting { models: own.unwrap_or_default(), start });
        Placing::Waits(started)
    }

    /// What a load may evict now.
    pub(crate) fn victims(&self) -> Vec<ModelId> {
        self.lock().evictable.victims()
    }

    /// A load or an eviction has happened: tell the scheduler what is in memory now.
    pub(crate) fn residents(&self, now: &[ResidentModel], loaded: Option<(&ModelId, Duration)>) {
        let mut state = self.lock();
        let now: BTreeMap<_, _> = now.iter().map(|model| (model.id.clone(), model.bytes)).collect();
        let before = std::mem::replace(&mut state.resident, now.clone());
        for model in before.keys().filter(|model| !now.contains_key(model)) {
            state.evictable.evicted(model);
            self.tell(&mut state, Event::Evicted { device: DEVICE, model: model.clone() });
        }
        for (model, bytes) in now.into_iter().filter(|(model, _)| !before.contains_key(model)) {
            let load_time_ns = loaded
                .filter(|(loaded, _)| **loaded == model)
                .map(|(_, load_time)| u64::try_from(load_time.as_nanos()).unwrap_or(u64::MAX));
            self.tell(&mut state, Event::Loaded { device: DEVICE, model, bytes, load_time_ns });
        }
    }

    fn tell(&self, state: &mut State, event: Event) {
        self.decide(state, event, |state, action| self.carry_out(state, action));
    }

    fn decide(&self, state: &mut State, event: Event, mut carry_out: impl FnMut(&mut State, Action)) {
        let mut actions = std::mem::take(&mut state.actions);
        state.scheduler.handle(self.time_ns(Instant::now()), event, &mut actions);
        for action in actions.drain(..) {
            carry_out(state, action);
        }
        state.actions = actions;
    }

    fn carry_out(&self, state: &mut State, action: Action) {
        match action {
            Action::Start { invocation, evict, why, .. } => {
                let Some(waiting) = state.waiting.remove(&invocation) else { return };
                if why.queued_ns > 0 {
                    tracing::debug!(%invocation, queued_ns = why.queued_ns, "placed after a wait");
                }
                state.begin(invocation, waiting.models, evict);
                // One that went away meanwhile has told so by dropping its placement.
                let _ = waiting.start.send(Ok(()));
            }
            Action::Reject { invocation, why, .. } => {
                if let Some(waiting) = state.waiting.remove(&invocation) {
                    let _ = waiting.start.send(Err(fault_of(why)));
                }
            }
            Action::WakeAt(at_ns) => {
                self.wake_at_ns.send_replace(Some(at_ns));
            }
        }
    }

    fn over(&self, invocation: InvocationId) {
        let mut state = self.lock();
        let event = match state.waiting.remove(&invocation) {
            Some(_) => Event::Cancelled { invocation },
            None => Event::Finished { invocation },
        };
        state.evictable.finish(invocation);
        self.tell(&mut state, event);
    }

    fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wake the scheduler when it asked for it, for as long as there is one.
async fn wake(placements: std::sync::Weak<Placements>, mut wake_at_ns: watch::Receiver<Option<u64>>) {
    loop {
        let at_ns = *wake_at_ns.borrow_and_update();
        let Some(epoch) = placements.upgrade().map(|placements| placements.epoch) else { return };
        let due = async {
            match at_ns {
                Some(at_ns) => tokio::time::sleep_until((epoch + Duration::from_nanos(at_ns)).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {
                let Some(placements) = placements.upgrade() else { return };
                placements.wake_at_ns.send_if_modified(|wanted| {
                    if *wanted == at_ns {
                        *wanted = None;
                    }
                    false
                });
                let mut state = placements.lock();
                placements.tell(&mut state, Event::Woken);
            }
            changed = wake_at_ns.changed() => if changed.is_err() { return },
        }
    }
}

fn fault_of(why: Rejection) -> Fault {
    match why {
        Rejection::QueueFull => Fault::new(ErrorCode::QueueFull, "too many invocations wait for a device"),
        Rejection::NoCapacity => Fault::new(
            ErrorCode::NoCapacity,
            "the function's models together are larger than the memory for models (model_memory_bytes_max)",
        ),
        Rejection::Deadline => {
            Fault::new(ErrorCode::DeadlineExceeded, "the deadline passed before a device had room")
        }
        Rejection::NodeLost => Fault::new(ErrorCode::Unavailable, "the node went away; try again"),
    }
}

/// A placement. Dropping it ends the invocation as far as the scheduler is concerned.
pub(crate) struct Placed {
    placements: Arc<Placements>,
    invocation: InvocationId,
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.placements.over(self.invocation);
    }
}
