//! What a node does beside answering requests, in tasks that end with it.

use super::{NodeState, garbage};
use crate::asynchronous::Stop;
use crate::devices::NodeDevice;
use crate::dispatch::Placements;
use crate::gateway::Gateway;
use crate::intermediates::Intermediates;
use crate::models::{Models, autosize, keep_profiles, let_idle_go};
use crate::registry::Prepare;
use crate::until::until;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::Revision;
use weir_device::Arena;

/// How much longer than its manifest says an idle instance may wait.
const INSTANCE_SWEEP: Duration = Duration::from_secs(1);
/// How long memory for bodies and tensors may lie idle, twice over, before it goes back to the system.
const ARENA_SWEEP: Duration = Duration::from_secs(5);
/// Components that are loaded before they are called, at most; each takes about a hundred kilobytes of memory that files stand behind.
const PRELOADED_MAX: usize = 64;

/// The tasks. Dropping it stops them where they are.
pub(super) struct Background {
    /// Works on asynchronous invocations, until it is told to give up.
    working: AbortOnDropHandle<()>,
    give_up: CancellationToken,
    others: Vec<AbortOnDropHandle<()>>,
}

/// Where the tasks begin: as of when memory is what the datastore has, and what is heard of meanwhile.
pub(super) struct Begin {
    pub(super) functions: Revision,
    pub(super) models: Revision,
    pub(super) workflows: Revision,
    pub(super) invocations: Revision,
    pub(super) objects: Revision,
    /// Components that others have deployed.
    pub(super) prepare: mpsc::Receiver<Prepare>,
}

impl Background {
    pub(super) fn start(runtime: &Handle, state: &Arc<NodeState>, begin: Begin) -> Self {
        let Begin { functions, models, workflows, invocations, objects, prepare } = begin;
        // First: what was left by a node that was lost waits already.
        let give_up = CancellationToken::new();
        let stop = Stop { begin_nothing: state.stopping.clone(), give_up: give_up.clone() };
        let working = boxed(state.invocations.clone().work(Gateway::new(state.clone()), stop));
        let working = AbortOnDropHandle::new(runtime.spawn(working));
        let mut others = Vec::new();
        let mut spawn = |task| others.push(AbortOnDropHandle::new(runtime.spawn(task)));
        // Keep memory in step with what other nodes change.
        spawn(boxed(state.registry.follow(functions)));
        spawn(boxed(state.models.follow(models)));
        spawn(boxed(state.workflows.follow(workflows)));
        spawn(boxed(state.invocations.follow(invocations)));
        spawn(boxed(state.objects.follow(objects)));
        spawn(boxed(prepare_components(Arc::downgrade(state), prepare)));
        spawn(boxed(preload_components(Arc::downgrade(state))));
        // Give back what nobody needs any more.
        spawn(boxed(state.invocations.clone().sweep(leads(state))));
        spawn(boxed(state.objects.clone().sweep(leads(state))));
        spawn(boxed(state.objects.clone().relieve()));
        spawn(boxed(Intermediates::sweep(Arc::downgrade(&state.dispatch.intermediates))));
        spawn(boxed(garbage::collect(Arc::downgrade(state))));
        spawn(boxed(sweep_instances(Arc::downgrade(state))));
        spawn(boxed(sweep_arena(state.arena.clone())));
        spawn(boxed(keep_profiles(Arc::downgrade(&state.models))));
        spawn(boxed(autosize(Arc::downgrade(&state.models))));
        if state.config.kernel_graphs.enabled {
            let keep_alive = Duration::from_millis(state.config.kernel_graphs.keep_alive_ms);
            let placements = state.dispatch.placements.clone();
            spawn(boxed(let_idle_go(Arc::downgrade(&state.models), placements, keep_alive)));
        }
        for device in state.models.devices().iter() {
            spawn(boxed(watch_device(device, &state.models, &state.dispatch.placements)));
        }
        Self { working, give_up, others }
    }

    /// Wait for asynchronous invocations that are under way until `latest`. What has not ended then is left for the next start, or for other
    /// nodes.
    pub(super) async fn settle(&mut self, latest: Instant) {
        if until(latest, &mut self.working).await.is_none() {
            self.give_up.cancel();
            if let Err(error) = (&mut self.working).await {
                tracing::error!(%error, "the work on asynchronous invocations failed");
            }
        }
    }

    /// Stop the rest.
    pub(super) fn stop(&mut self) {
        self.others.clear();
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn boxed(task: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(task)
}

/// Whether the node does what one node does for all.
fn leads(state: &NodeState) -> impl Fn() -> bool + Send + 'static {
    let cluster = state.cluster.clone();
    move || cluster.as_ref().is_none_or(|cluster| cluster.is_dispatcher())
}

/// Compile what others have deployed before the first call of it comes. Where that fails, the call tries again and tells why.
async fn prepare_components(state: Weak<NodeState>, mut prepare: mpsc::Receiver<Prepare>) {
    while let Some((digest, kind)) = prepare.recv().await {
        let Some(state) = state.upgrade() else { return };
        // Deleted since: its artefact may have been swept, and nobody calls it.
        if state.registry.find(digest).is_none() {
            continue;
        }
        let _ = state.dispatch.recompiler.compile(digest, kind).await;
    }
}

/// Load what was deployed last, so that the first call of it after a restart need not wait for that. One at a time: calls come first.
async fn preload_components(state: Weak<NodeState>) {
    let Some(newest) = state.upgrade().map(|state| state.registry.newest(PRELOADED_MAX)) else { return };
    for (digest, kind) in newest {
        let Some((components, metrics)) =
            state.upgrade().map(|state| (state.components.clone(), state.metrics.clone()))
        else {
            return;
        };
        // What cannot be loaded is mended by the first call of it, which tells why.
        if let Ok(Ok(_)) = tokio::task::spawn_blocking(move || components.load(digest, kind)).await {
            metrics.preloaded.inc();
        }
    }
}

/// Give up idle instances in time, also those of functions that another node has changed.
async fn sweep_instances(state: Weak<NodeState>) {
    let mut tick = tokio::time::interval(INSTANCE_SWEEP);
    loop {
        tick.tick().await;
        let Some(state) = state.upgrade() else { return };
        state.sweep_instances();
    }
}

/// Give memory that nobody uses any more back to the system, again and again. Sweeping unmaps at most what one burst of traffic left idle.
async fn sweep_arena(arena: Arena) {
    let mut tick = tokio::time::interval(ARENA_SWEEP);
    loop {
        tick.tick().await;
        arena.sweep();
    }
}

/// Tell the scheduler when a device is lost, when it is there again, when it has more or less memory for models, and when a load is over that no call waits for.
fn watch_device(
    device: &NodeDevice,
    models: &Arc<Models>,
    placements: &Arc<Placements>,
) -> impl Future<Output = ()> + Send + use<> {
    let (ordinal, mut capacity) = (device.ordinal, device.cache.capacity());
    let (mut health, mut loads) = (device.cache.health(), device.cache.loads());
    let (models, placements) = (Arc::downgrade(models), placements.clone());
    async move {
        loop {
            health.mark_unchanged();
            loads.mark_unchanged();
            capacity.mark_unchanged();
            let Some(models) = models.upgrade() else { return };
            models.note_health(ordinal, &placements);
            models.note_residents(ordinal, &placements);
            models.note_capacity(ordinal, &placements);
            drop(models);
            let changed = tokio::select! {
                changed = health.changed() => changed,
                changed = loads.changed() => changed,
                changed = capacity.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }
}
