//! A node's lifecycle: wires up, starts and shuts down all parts in one place.

mod background;
mod devices;
mod garbage;
pub(crate) mod open_files;
mod runtimes;
mod storage;

use crate::asynchronous::{self, Invocations};
use crate::blobs::{Blobs, create_folder};
use crate::changes::Changes;
use crate::cluster::{self, Cluster, Participation, Report};
use crate::component::{Components, Engines, Recompiler};
use crate::config::NodeConfig;
use crate::dispatch::{Dispatch, PlacementConfig, Placements, Slots};
use crate::gateway::{Gateway, Server, Tokens};
use crate::intermediates::Intermediates;
use crate::models::Models;
use crate::objects::{self, Objects};
use crate::registry::{Functions, Registry};
use crate::response_cache::ResponseCache;
use crate::telemetry::logs::{LogLimits, Logs};
use crate::telemetry::{Metrics, Sampler};
use crate::workflows::{Catalog, WorkflowRegistry, Workflows};
use anyhow::Context;
use background::{Background, Begin};
use runtimes::Runtimes;
use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_datastore::Datastore;
use weir_device::Arena;
use weir_types::NodeId;

/// The state that request handlers share.
pub(crate) struct NodeState {
    pub(crate) config: NodeConfig,
    pub(crate) tokens: Tokens,
    pub(crate) blobs: Blobs,
    pub(crate) components: Arc<Components>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) models: Arc<Models>,
    pub(crate) workflows: Arc<WorkflowRegistry>,
    pub(crate) dispatch: Arc<Dispatch>,
    /// The cache of responses to equal calls.
    pub(crate) response_cache: Arc<ResponseCache>,
    /// Asynchronous invocations.
    pub(crate) invocations: Arc<Invocations>,
    /// Named objects: tensors stored under names.
    pub(crate) objects: Arc<Objects>,
    /// The cluster that this node belongs to, if any.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) arena: Arena,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sampler: Sampler,
    /// Permits for requests whose JSON is parsed or written on threads that may block.
    pub(crate) json_turns: Arc<Semaphore>,
    /// The permit for profiling, one model at a time: concurrent profiling would distort the
    /// measurements.
    pub(crate) profiling: Arc<Semaphore>,
    /// Permits for uploads: `uploads_max` of them.
    pub(crate) uploads: Arc<Semaphore>,
    /// Permits for compiling deployed components: `compiles_max` of them.
    pub(crate) compiles: Semaphore,
    pub(crate) started: Instant,
    /// Cancelled when the node starts to shut down.
    pub(crate) stopping: CancellationToken,
    /// Changes of durable state in progress.
    changes: Changes,
}

impl NodeState {
    /// Whether the node accepts new requests.
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping.is_cancelled()
    }

    /// Removes components that no function refers to. Components that cannot be removed are retried
    /// by the next sweep.
    pub(crate) async fn sweep_components(&self) {
        if !self.registry.is_whole() {
            tracing::warn!("unused components are kept: some record that cannot be read may refer to them");
            return;
        }
        if let Err(error) = self.blobs.sweep(|| self.registry.digests()).await {
            tracing::warn!(%error, "cannot remove unused components");
        }
        self.components.sweep(|| self.registry.digests()).await;
    }

    /// Retires idle instances that have waited too long or whose version is no longer active.
    pub(crate) fn sweep_instances(&self) {
        self.dispatch.slots.sweep(|deployment| self.registry.is_active(deployment));
    }
}

/// The time that a call may spend in transit to a node that has left its cluster, from a node that
/// had not learned of that yet, including the time to connect.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// A running node. Dropping it without [`Node::shutdown`] cuts requests off.
pub struct Node {
    state: Arc<NodeState>,
    datastore: Arc<dyn Datastore>,
    local_addr: SocketAddr,
    serving: JoinHandle<()>,
    /// Cancelled when the server must stop accepting connections. A cluster member leaves the
    /// cluster first.
    closing: CancellationToken,
    background: Background,
    participation: Option<Participation>,
    runtimes: Option<Runtimes>,
    /// Locks the data folder against other nodes.
    _lock: File,
}

impl Node {
    /// Opens the data folder and starts to serve. On return, the port is bound and everything
    /// deployed can be called.
    pub async fn start(config: NodeConfig) -> anyhow::Result<Self> {
        let runtimes = Runtimes::start(&config)?;
        let (gateway, guests) = (runtimes.gateway.handle().clone(), runtimes.guests.handle().clone());
        let started = gateway.spawn(start(config, guests)).await;
        match started.context("the node failed while it started").and_then(|started| started) {
            Ok(Started { state, datastore, listener, begin, participation, lock }) => {
                let local_addr = listener.local_addr()?;
                let (connections, shared) = (&runtimes.connections, gateway.clone());
                let server = Server::new(Gateway::new(state.clone()), &state.config, connections, shared);
                let closing = CancellationToken::new();
                let serving = gateway.spawn(server.run(listener, closing.clone()));
                let background = Background::start(&gateway, &state, begin);
                let runtimes = Some(runtimes);
                Ok(Self {
                    state,
                    datastore,
                    local_addr,
                    serving,
                    closing,
                    background,
                    participation,
                    runtimes,
                    _lock: lock,
                })
            }
            Err(error) => {
                runtimes.stop();
                Err(error)
            }
        }
    }

    /// The address on which the node listens, with the actual port if port 0 was requested.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops accepting requests, waits for running ones (up to `drain_timeout_ms`), and releases
    /// all resources.
    pub async fn shutdown(mut self) {
        self.state.stopping.cancel();
        let drained = Instant::now() + Duration::from_millis(self.state.config.drain_timeout_ms);
        // First, so that no further calls are forwarded here. Calls in transit are refused as not
        // started and are placed again.
        if let Some(participation) = self.participation.take() {
            participation.end().await;
            tokio::time::sleep(UNDER_WAY).await;
        }
        self.closing.cancel();
        if let Err(error) = (&mut self.serving).await {
            tracing::error!(%error, "the server failed");
        }
        // With the same limit as client requests.
        self.background.settle(drained).await;
        self.state.dispatch.slots.close();
        self.background.stop();
        self.state.models.save_profiles().await;
        self.state.dispatch.placements.write_record().await;
        // A change that has started is completed, even if its client was cut off.
        self.state.changes.settle().await;
        self.datastore.close().await;
        if let Some(runtimes) = self.runtimes.take() {
            runtimes.stop();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.state.stopping.cancel();
        self.closing.cancel();
        if let Some(runtimes) = self.runtimes.take() {
            runtimes.stop();
        }
    }
}

/// A node that does not serve yet.
struct Started {
    state: Arc<NodeState>,
    datastore: Arc<dyn Datastore>,
    listener: TcpListener,
    begin: Begin,
    participation: Option<Participation>,
    lock: File,
}

async fn start(config: NodeConfig, guests: tokio::runtime::Handle) -> anyhow::Result<Started> {
    let tokens = Tokens::of(&config)?;
    let scheduler = config.scheduler()?;
    // Child processes have a different working directory, so the path must be absolute.
    let data = std::path::absolute(&config.data)
        .with_context(|| format!("cannot use the data folder {}", config.data.display()))?;
    create_folder(&data).with_context(|| format!("cannot make the data folder {}", data.display()))?;
    // The lock comes first: it detects another node on the same folder before any file is touched.
    let lock = storage::lock(&data)?;
    let datastore = storage::datastore(&config, &data).await?;
    let shared = match &config.cluster {
        None => None,
        Some(cluster) => Some(storage::shared_blobs(cluster).await?),
    };
    let metrics = Metrics::new();
    let arena = Arena::new(config.arena_bytes_max);

    let blobs =
        Blobs::open(data.join("components"), shared.as_ref().map(|shared| shared.folder("components")))
            .context("cannot open the components")?;
    let engines = Arc::new(Engines::new(config.instances_max, &config.limit_caps).map_err(|error| {
        anyhow::anyhow!(
            "cannot reserve {} instance slots: {error:#}; lower instances_max",
            config.instances_max
        )
    })?);
    let limits = weir_child::Limits {
        memory_bytes_max: config.compile_memory_bytes_max,
        cpu_time_ms_max: config.compile_time_ms_max,
    };
    let components =
        Arc::new(Components::open(&data.join("artefacts"), engines, blobs.in_use().clone(), limits)?);
    let changes = Changes::default();
    let logs = Logs::new(LogLimits {
        lines_max: config.log_lines_max,
        bytes_max: config.log_bytes_max,
        all_bytes_max: config.all_logs_bytes_max,
    });
    let (functions, prepare) = Functions::new(metrics.clone(), logs);
    let (registry, functions_as_of) = Registry::open(datastore.clone(), functions, changes.clone())
        .await
        .context("cannot read the registry")?;

    let devices = devices::start(&config, &arena, &metrics.gpus)?;
    let model_blobs = Blobs::open(data.join("models"), shared.as_ref().map(|shared| shared.folder("models")))
        .context("cannot open the models")?;
    let (models, models_as_of) =
        Models::open(datastore.clone(), model_blobs, devices, metrics.clone(), changes.clone())
            .await
            .context("cannot read the models")?;

    let (workflows, workflows_as_of) =
        Registry::open(datastore.clone(), Workflows::new(metrics.clone()), changes.clone())
            .await
            .context("cannot read the workflows")?;

    let invocation_blobs =
        Blobs::open(data.join("invocations"), shared.as_ref().map(|shared| shared.folder("invocations")))
            .context("cannot open the asynchronous invocations")?;
    let (invocations, invocations_as_of) = Invocations::open(asynchronous::Parts {
        config: config.asynchronous.clone(),
        datastore: datastore.clone(),
        blobs: invocation_blobs,
        metrics: metrics.clone(),
        changes: changes.clone(),
        is_alone: config.cluster.is_none(),
    })
    .await
    .context("cannot read the asynchronous invocations")?;

    let object_blobs = Blobs::open(data.join("objects"), shared.map(|shared| shared.folder("objects")))
        .context("cannot open the objects")?;
    let (objects, objects_as_of) = Objects::open(objects::Parts {
        config: config.objects.clone(),
        datastore: datastore.clone(),
        blobs: object_blobs,
        changes: changes.clone(),
        metrics: metrics.clone(),
        arena: arena.clone(),
    })
    .await
    .context("cannot read the objects")?;

    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; is another node running? (--listen picks another address)",
            config.listen
        )
    })?;
    let membership = match &config.cluster {
        None => None,
        Some(cluster) => {
            Some(cluster::join(cluster, config.token_file.is_some(), &listener, datastore.clone()).await?)
        }
    };
    let placements = Placements::start(PlacementConfig {
        node: membership.as_ref().map_or(ALONE, |(membership, _)| membership.node),
        address: membership.as_ref().map(|(membership, _)| membership.address.clone()),
        devices: models.devices().specs(config.instances_max),
        unasked_max: match (&membership, &config.scheduler_record) {
            (Some(_), _) => config.guest_threads,
            (None, None) => usize::MAX,
            // A record must be complete, so every call asks the scheduler.
            (None, Some(_)) => 0,
        },
        scheduler,
        record: config.scheduler_record.clone(),
    });
    let stopping = CancellationToken::new();
    let (cluster, participation) = match (&config.cluster, membership) {
        (Some(config), Some((membership, secret))) => {
            let (reported, metrics) = (models.clone(), metrics.clone());
            let report = move || Report::of(&reported, &metrics);
            let store = datastore.clone();
            let begun = Cluster::start(config, secret, membership, store, &placements, report, &stopping);
            (Some(begun.0), Some(begun.1))
        }
        _ => (None, None),
    };
    let slots =
        Slots::new(config.instances_max as usize, config.instances_idle_max as usize, metrics.clone());
    let json_turns = Arc::new(Semaphore::new(config.gateway_threads.max(1)));
    let node = placements.node();
    let intermediates = Intermediates::start(
        node,
        cluster.clone(),
        arena.clone(),
        config.intermediates.clone(),
        metrics.clone(),
    );
    let dispatch = Dispatch {
        components: components.clone(),
        models: models.clone(),
        catalog: Catalog {
            functions: registry.clone(),
            models: models.clone(),
            workflows: workflows.clone(),
        },
        turns: json_turns.clone(),
        answer_bytes_max: config.infer_body_bytes_max,
        placements: placements.clone(),
        cluster: cluster.clone(),
        objects: objects.clone(),
        intermediates: Arc::new(intermediates),
        arena: arena.clone(),
        metrics: metrics.clone(),
        slots: Arc::new(slots),
        guests,
        recompiler: Recompiler::new(
            components.clone(),
            blobs.clone(),
            metrics.clone(),
            config.compiles_max as usize,
        ),
    };
    let sampler = Sampler::new(config.trace_sample_ratio);
    let state = NodeState {
        profiling: Arc::new(Semaphore::new(1)),
        uploads: Arc::new(Semaphore::new(config.uploads_max.max(1) as usize)),
        compiles: Semaphore::new(config.compiles_max.max(1) as usize),
        response_cache: ResponseCache::new(config.response_cache_bytes_max, &metrics),
        config,
        tokens,
        blobs,
        components,
        registry,
        models,
        dispatch: Arc::new(dispatch),
        workflows,
        invocations,
        objects,
        cluster,
        arena,
        metrics,
        sampler,
        json_turns,
        started: Instant::now(),
        stopping,
        changes,
    };
    state.sweep_components().await;
    let state = Arc::new(state);
    let begin = Begin {
        functions: functions_as_of,
        models: models_as_of,
        workflows: workflows_as_of,
        invocations: invocations_as_of,
        objects: objects_as_of,
        prepare,
    };
    Ok(Started { state, datastore, listener, begin, participation, lock })
}

/// The identifier of a node without cluster.
const ALONE: NodeId = NodeId(0);
