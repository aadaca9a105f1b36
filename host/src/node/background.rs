//! A node's background tasks, which end with the node.

use super::deployed::FollowStart;
use super::garbage;
use super::tls::NodeTls;
use crate::config::{DevicesConfig, NodeConfig};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_asynchronous::ShutdownSignals;
use weir_call::until;
use weir_cluster::{Placements, PrefetchConfig, keep_store_small};
use weir_control::devices::NodeDevice;
use weir_control::models::{
    KeepAlive, Models, autosize, keep_profiles, let_idle_go, load_required, prefetch_models, watch_staging,
};
use weir_control::registry::ComponentChange;
use weir_device::Arena;
use weir_dispatch::intermediates::Intermediates;
use weir_gateway::Gateway;
use weir_gateway::{NodeState, watch_canaries};
use weir_storage::StorageHealth;
use weir_telemetry::events::NewEvent;
use weir_types::api::{EventKind, EventResource};

/// The interval of sweeps for idle instances, which may therefore wait longer than their manifest
/// allows by this much.
const INSTANCE_SWEEP: Duration = Duration::from_secs(1);
/// The interval of arena sweeps. Memory for bodies and tensors that is idle for one to two
/// intervals is returned to the system.
const ARENA_SWEEP: Duration = Duration::from_secs(5);
/// The interval of looks at the data folder's file system.
const STORAGE_PROBE: Duration = Duration::from_secs(1);
/// The number of components that are loaded before their first call. Each takes about a hundred
/// kilobytes of file-backed memory.
const PRELOADED_MAX: usize = 64;

/// The background tasks. Dropping this aborts them.
pub(super) struct Background {
    /// Processes asynchronous invocations until `give_up` is cancelled.
    working: AbortOnDropHandle<()>,
    give_up: CancellationToken,
    others: Vec<AbortOnDropHandle<()>>,
}

impl Background {
    pub(super) fn start(
        runtime: &Handle,
        state: &Arc<NodeState>,
        config: &NodeConfig,
        tls: &NodeTls,
        begin: FollowStart,
    ) -> Self {
        let FollowStart {
            datastore,
            functions,
            models,
            workflows,
            invocations,
            objects,
            keys,
            secrets,
            triggers,
            component_changes,
        } = begin;
        // First, because invocations of a lost node are already waiting.
        let give_up = CancellationToken::new();
        let stop =
            ShutdownSignals { begin_nothing: state.shutdown.stopping.clone(), give_up: give_up.clone() };
        let working = boxed(state.invocations.clone().work(Gateway::new(state.clone()), stop));
        let working = AbortOnDropHandle::new(runtime.spawn(working));
        let mut others = Vec::new();
        let mut spawn = |task| others.push(AbortOnDropHandle::new(runtime.spawn(task)));
        // Keep memory in step with changes of other nodes.
        spawn(boxed(state.registry.follow(functions)));
        spawn(boxed(state.models.follow(models)));
        spawn(boxed(state.workflows.follow(workflows)));
        spawn(boxed(state.invocations.follow(invocations)));
        spawn(boxed(state.objects.follow(objects)));
        spawn(boxed(state.access.follow(keys)));
        spawn(boxed(state.dispatch.secrets.follow(secrets)));
        spawn(boxed(state.triggers.follow(triggers)));
        spawn(boxed(handle_ticks(state.clone())));
        spawn(boxed(read_messages(state.clone())));
        spawn(boxed(follow_components(Arc::downgrade(state), component_changes)));
        spawn(boxed(preload_components(Arc::downgrade(state))));
        spawn(boxed(watch_canaries(Arc::downgrade(state), leads(state))));
        // Release unused resources.
        spawn(boxed(state.invocations.clone().sweep(leads(state))));
        spawn(boxed(state.objects.clone().sweep(leads(state))));
        spawn(boxed(state.objects.clone().relieve()));
        spawn(boxed(state.access.keys().clone().sweep(leads(state))));
        spawn(boxed(Intermediates::sweep(Arc::downgrade(&state.dispatch.intermediates))));
        if let Some(cluster) = &config.cluster {
            let grace = Duration::from_millis(cluster.blob_grace_ms);
            spawn(boxed(garbage::collect(Arc::downgrade(state), grace)));
            spawn(boxed(state.dispatch.connector.clone().follow_stores()));
            let history = Duration::from_millis(cluster.history_ms);
            spawn(boxed(keep_store_small(datastore, state.metrics.clone(), history, leads(state))));
        }
        if let Some(cluster) = &state.cluster {
            spawn(boxed(cluster.note_changes(state.metrics.clone())));
        } else {
            state.metrics.events.record(started());
        }
        spawn(boxed(tls.clone().follow()));
        if let Some(health) = state.blobs.health() {
            spawn(boxed(probe_storage(health.clone())));
        }
        spawn(boxed(sweep_instances(Arc::downgrade(state))));
        spawn(boxed(sweep_arena(state.arena.clone())));
        spawn(boxed(keep_profiles(Arc::downgrade(&state.models))));
        spawn(boxed(autosize(Arc::downgrade(&state.models))));
        let placements = state.dispatch.placements.clone();
        if let Some(prefetch) = prefetch(config) {
            let models = Arc::downgrade(&state.models);
            spawn(boxed(prefetch_models(models, placements.clone(), prefetch)));
        }
        spawn(boxed(let_idle_go(Arc::downgrade(&state.models), placements.clone(), keep_alive(config))));
        spawn(boxed(keep_required(state)));
        spawn(boxed(watch_staging(Arc::downgrade(&state.models), placements)));
        for device in state.models.devices().iter() {
            spawn(boxed(watch_device(device, &state.models, &state.dispatch.placements)));
        }
        Self { working, give_up, others }
    }

    /// Waits for running asynchronous invocations until `latest`. Invocations that are still
    /// running then are left for the next start or for other nodes.
    pub(super) async fn settle(&mut self, latest: Instant) {
        if until(latest, &mut self.working).await.is_none() {
            self.give_up.cancel();
            if let Err(error) = (&mut self.working).await {
                tracing::error!(%error, "the worker of asynchronous invocations failed");
            }
        }
    }

    /// Stops the other tasks.
    pub(super) fn stop(&mut self) {
        self.others.clear();
    }
}

/// The limits of fetching models ahead; `None` for a node without a cluster or without devices.
fn prefetch(config: &NodeConfig) -> Option<PrefetchConfig> {
    let cluster = config.cluster.as_ref().filter(|_| config.devices != DevicesConfig::None);
    cluster.map(|cluster| cluster.prefetch)
}

/// The times for which idle models stay loaded.
fn keep_alive(config: &NodeConfig) -> KeepAlive {
    KeepAlive {
        models: Duration::from_millis(config.models.keep_alive_ms),
        kernel_graphs: Duration::from_millis(config.kernel_graphs.keep_alive_ms),
    }
}

/// The first event of a node without a cluster.
fn started() -> NewEvent {
    NewEvent {
        tenant: None,
        kind: EventKind::NodeJoined,
        resource: EventResource::Node,
        name: "0".to_owned(),
        text: format!("the node started, with Weir {}", env!("CARGO_PKG_VERSION")),
        repeats: None,
    }
}

/// Keeps required copies of models in memory.
fn keep_required(state: &Arc<NodeState>) -> impl Future<Output = ()> + Send + use<> {
    let placements = state.dispatch.placements.clone();
    load_required(Arc::downgrade(&state.models), state.arena.clone(), placements, leads(state))
}

type BackgroundTask = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn boxed(task: impl Future<Output = ()> + Send + 'static) -> BackgroundTask {
    Box::pin(task)
}

/// Whether this node performs the tasks that only one node of the cluster performs.
fn leads(state: &NodeState) -> impl Fn() -> bool + Send + 'static + use<> {
    let cluster = state.cluster.clone();
    move || cluster.as_ref().is_none_or(|cluster| cluster.is_dispatcher())
}

/// Handles the ticks of triggers until the node shuts down.
async fn handle_ticks(state: Arc<NodeState>) {
    let sender = Gateway::new(state.clone());
    let draining = state.shutdown.draining.clone();
    state.triggers.clone().work(sender, leads(&state), draining).await;
}

/// Reads the messages of streams for triggers until the node shuts down.
async fn read_messages(state: Arc<NodeState>) {
    let sender = Gateway::new(state.clone());
    let draining = state.shutdown.draining.clone();
    state.triggers.clone().read_messages(sender, leads(&state), draining).await;
}

/// Compiles components that other nodes have deployed, before their first call, and removes the
/// files of versions that other nodes have removed. If a compilation fails, the first call tries
/// again and reports the error. A node without devices compiles none of them.
async fn follow_components(state: Weak<NodeState>, mut changes: mpsc::Receiver<ComponentChange>) {
    while let Some(change) = changes.recv().await {
        let Some(state) = state.upgrade() else { return };
        let ComponentChange::Deployed((digest, kind)) = change else {
            state.sweep_components().await;
            continue;
        };
        // Deleted meanwhile: the artefact may be swept already, and there are no more calls.
        if state.models.devices().is_empty() || state.registry.find(digest).is_none() {
            continue;
        }
        let _ = state.dispatch.recompiler.compile(digest, kind).await;
    }
}

/// Loads the most recently deployed components, so that the first call after a restart does not
/// wait for the load. One at a time, because calls have priority. Loads none on a node without devices.
async fn preload_components(state: Weak<NodeState>) {
    let newest = |state: Arc<NodeState>| {
        (!state.models.devices().is_empty()).then(|| state.registry.newest(PRELOADED_MAX))
    };
    let Some(newest) = state.upgrade().and_then(newest) else { return };
    for (digest, kind) in newest {
        let Some((components, metrics)) =
            state.upgrade().map(|state| (state.components.clone(), state.metrics.clone()))
        else {
            return;
        };
        // If a component cannot be loaded, its first call repairs it and reports the error.
        if let Ok(Ok(_)) = tokio::task::spawn_blocking(move || components.load(digest, kind)).await {
            metrics.deployed.preloaded.inc();
        }
    }
}

/// Looks at the data folder periodically, so that the node becomes ready again without a restart.
async fn probe_storage(health: StorageHealth) {
    let mut tick = tokio::time::interval(STORAGE_PROBE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let health = health.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || health.probe()).await {
            tracing::error!(%error, "probing the data folder failed");
        }
    }
}

/// Retires idle instances periodically, including those of functions that another node has changed.
async fn sweep_instances(state: Weak<NodeState>) {
    let mut tick = tokio::time::interval(INSTANCE_SWEEP);
    loop {
        tick.tick().await;
        let Some(state) = state.upgrade() else { return };
        state.sweep_instances();
    }
}

/// Returns unused memory to the system periodically. A sweep unmaps at most the memory that one
/// burst of traffic left idle.
async fn sweep_arena(arena: Arena) {
    let mut tick = tokio::time::interval(ARENA_SWEEP);
    loop {
        tick.tick().await;
        arena.sweep();
    }
}

/// Reports to the scheduler when a device is lost or back, when its memory for models changes, and
/// when a load completes that no call waits for.
fn watch_device(
    device: &NodeDevice,
    models: &Arc<Models>,
    placements: &Arc<Placements>,
) -> impl Future<Output = ()> + Send + use<> {
    let ordinal = device.ordinal;
    let mut capacity = device.cache.capacity();
    let mut health = device.cache.health();
    let mut loads = device.cache.loads();
    let models = Arc::downgrade(models);
    let placements = placements.clone();
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
