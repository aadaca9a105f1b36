//! A node's life: everything is wired up here, in one place, started, and taken down again.

use crate::blobs::{Blobs, SharedBlobs, create_folder};
use crate::changes::Changes;
use crate::cluster::{Cluster, Membership, Participation, Report, Secret};
use crate::component::{Components, Engines, Recompiler};
use crate::config::{BackendKind, ClusterConfig, NodeConfig};
use crate::dispatch::{Dispatch, PlacementConfig, Placements};
use crate::gateway::{Gateway, Server, Tokens};
use crate::models::{Models, keep_profiles};
use crate::registry::{Prepare, Registry};
use crate::telemetry::logs::{LogLimits, Logs};
use crate::telemetry::{Metrics, Sampler};
use anyhow::{Context, bail};
use prometheus_client::metrics::gauge::Gauge;
use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_datastore::{Datastore, RedbStore};
use weir_device::Arena;
use weir_inference::{Backend, CacheConfig, FakeBackend, ModelCache, OnnxRuntime, OnnxRuntimeConfig};
use weir_scheduler::Setup;
use weir_types::NodeId;

/// How long guests may take to unwind once their requests are gone.
const GUEST_SHUTDOWN: Duration = Duration::from_secs(1);
/// How long memory for bodies and tensors may lie idle, twice over, before it goes back to the system.
const ARENA_SWEEP: Duration = Duration::from_secs(5);

/// What requests are served from.
pub(crate) struct NodeState {
    pub(crate) config: NodeConfig,
    pub(crate) tokens: Tokens,
    pub(crate) blobs: Blobs,
    pub(crate) components: Arc<Components>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) models: Arc<Models>,
    pub(crate) dispatch: Dispatch,
    /// The cluster that the node is one of.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) arena: Arena,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sampler: Sampler,
    /// Requests whose JSON is being read or written on threads that may block.
    pub(crate) json_turns: Arc<Semaphore>,
    /// Places for uploads: `uploads_max` of them.
    pub(crate) uploads: Arc<Semaphore>,
    /// Turns at compiling what is deployed: `compiles_max` of them.
    pub(crate) compiles: Semaphore,
    pub(crate) started: Instant,
    /// Cancelled when the node begins to shut down.
    pub(crate) stopping: CancellationToken,
    /// Changes under way of what survives a restart.
    changes: Changes,
}

impl NodeState {
    /// Whether new requests are taken.
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping.is_cancelled()
    }

    /// Remove components that no function refers to any more. What is left behind is swept next time.
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
}

/// A running node. Dropping it without [`Node::shutdown`] cuts requests off.
pub struct Node {
    state: Arc<NodeState>,
    datastore: Arc<dyn Datastore>,
    local_addr: SocketAddr,
    serving: JoinHandle<()>,
    /// Writes what models are measured to cost.
    profiles: AbortOnDropHandle<()>,
    sweeping: AbortOnDropHandle<()>,
    /// Keep memory in step with what other nodes change.
    following: Vec<AbortOnDropHandle<()>>,
    participation: Option<Participation>,
    runtimes: Option<Runtimes>,
    /// Keeps other nodes off the data folder.
    _lock: File,
}

/// Gateway I/O has threads of its own, so that health answers while every guest thread is busy.
struct Runtimes {
    gateway: Runtime,
    guests: Runtime,
}

impl Node {
    /// Open the data folder and begin to serve. The port is bound, and everything that was deployed can be called, when it returns.
    pub async fn start(config: NodeConfig) -> anyhow::Result<Self> {
        let runtimes = Runtimes::start(&config)?;
        let (gateway, guests) = (runtimes.gateway.handle().clone(), runtimes.guests.handle().clone());
        let started = gateway.spawn(start(config, guests)).await;
        match started.context("the node failed while it started").and_then(|started| started) {
            Ok(Started { state, datastore, listener, following, participation, lock }) => {
                let local_addr = listener.local_addr()?;
                let server = Server::new(Gateway::new(state.clone()), &state.config);
                let serving = gateway.spawn(server.run(listener, state.stopping.clone()));
                let sweeping = AbortOnDropHandle::new(gateway.spawn(sweep(state.arena.clone())));
                let profiles = gateway.spawn(keep_profiles(Arc::downgrade(&state.models)));
                let profiles = AbortOnDropHandle::new(profiles);
                let runtimes = Some(runtimes);
                Ok(Self {
                    state,
                    datastore,
                    local_addr,
                    serving,
                    profiles,
                    sweeping,
                    following,
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

    /// Where the node listens; the port is the real one where 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stop taking requests, let those under way finish (up to `drain_timeout_ms`), and let go of everything.
    pub async fn shutdown(mut self) {
        self.state.stopping.cancel();
        // First, so that nothing more is sent here.
        if let Some(participation) = self.participation.take() {
            participation.end().await;
        }
        if let Err(error) = (&mut self.serving).await {
            tracing::error!(%error, "the server failed");
        }
        self.sweeping.abort();
        self.profiles.abort();
        self.following.clear();
        self.state.models.save_profiles().await;
        self.state.dispatch.placements.write_record().await;
        // A change that has begun is carried through, also for a client that was cut off.
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
        if let Some(runtimes) = self.runtimes.take() {
            runtimes.stop();
        }
    }
}

impl Runtimes {
    fn start(config: &NodeConfig) -> anyhow::Result<Self> {
        let runtime = |name: &str, threads: usize| {
            let runtime = Builder::new_multi_thread()
                .thread_name(name)
                .worker_threads(threads.max(1))
                .enable_all()
                .build();
            runtime.with_context(|| format!("cannot start the {name} threads"))
        };
        Ok(Self {
            gateway: runtime("weir-gateway", config.gateway_threads)?,
            guests: runtime("weir-guest", config.guest_threads)?,
        })
    }

    /// From a thread of its own, since a runtime must not wait for its tasks on another runtime's worker.
    fn stop(self) {
        let stop = move || {
            self.guests.shutdown_timeout(GUEST_SHUTDOWN);
            self.gateway.shutdown_timeout(GUEST_SHUTDOWN);
        };
        match std::thread::Builder::new().name("weir-stop".to_owned()).spawn(stop) {
            Ok(thread) => {
                if thread.join().is_err() {
                    tracing::error!("stopping the node's threads failed");
                }
            }
            Err(error) => tracing::error!(%error, "cannot stop the node's threads"),
        }
    }
}

/// A node that does not serve yet.
struct Started {
    state: Arc<NodeState>,
    datastore: Arc<dyn Datastore>,
    listener: TcpListener,
    /// Keep memory in step with what other nodes change.
    following: Vec<AbortOnDropHandle<()>>,
    participation: Option<Participation>,
    lock: File,
}

async fn start(config: NodeConfig, guests: tokio::runtime::Handle) -> anyhow::Result<Started> {
    let tokens = tokens(&config)?;
    // Children work in a folder of their own.
    let data = std::path::absolute(&config.data)
        .with_context(|| format!("cannot use the data folder {}", config.data.display()))?;
    create_folder(&data).with_context(|| format!("cannot make the data folder {}", data.display()))?;
    // The lock comes first: it tells of another node on the same folder before anything is touched.
    let lock = lock(&data)?;
    let datastore = datastore(&config, &data).await?;
    let shared = match &config.cluster {
        None => None,
        Some(cluster) => Some(shared_blobs(cluster).await?),
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
    let (registry, functions_as_of) =
        Registry::open(datastore.clone(), metrics.clone(), changes.clone(), logs)
            .await
            .context("cannot read the registry")?;

    let cache = model_cache(&config, &arena)?;
    let model_blobs = Blobs::open(data.join("models"), shared.map(|shared| shared.folder("models")))
        .context("cannot open the models")?;
    let (models, models_as_of) =
        Models::open(datastore.clone(), model_blobs, cache, metrics.clone(), changes.clone())
            .await
            .context("cannot read the models")?;

    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; is another node running? (--listen picks another address)",
            config.listen
        )
    })?;
    let membership = match &config.cluster {
        None => None,
        Some(cluster) => {
            Some(join(cluster, config.token_file.is_some(), &listener, datastore.clone()).await?)
        }
    };
    let placements = Placements::start(
        &models,
        PlacementConfig {
            node: membership.as_ref().map_or(ALONE, |(membership, _)| membership.node),
            address: membership.as_ref().map(|(membership, _)| membership.address.clone()),
            invocations_max: config.instances_max,
            unasked_max: if membership.is_some() { config.guest_threads } else { 0 },
            scheduler: Setup { policy: config.policy, ..Setup::default() },
            record: config.scheduler_record.clone(),
        },
    );
    let stopping = CancellationToken::new();
    let (cluster, participation) = match (&config.cluster, membership) {
        (Some(config), Some((membership, secret))) => {
            let report = reporting(models.clone(), metrics.clone());
            let store = datastore.clone();
            let begun = Cluster::start(config, secret, membership, store, &placements, report, &stopping);
            (Some(begun.0), Some(begun.1))
        }
        _ => (None, None),
    };
    let dispatch = Dispatch {
        components: components.clone(),
        models: models.clone(),
        placements: placements.clone(),
        arena: arena.clone(),
        metrics: metrics.clone(),
        instances: Arc::new(Semaphore::new(config.instances_max as usize)),
        guests,
        recompiler: Recompiler::new(
            components.clone(),
            blobs.clone(),
            metrics.clone(),
            config.compiles_max as usize,
        ),
    };
    let sampler = Sampler::new(config.trace_sample_ratio);
    let json_turns = Arc::new(Semaphore::new(config.gateway_threads.max(1)));
    let state = NodeState {
        uploads: Arc::new(Semaphore::new(config.uploads_max.max(1) as usize)),
        compiles: Semaphore::new(config.compiles_max.max(1) as usize),
        config,
        tokens,
        blobs,
        components,
        registry,
        models,
        dispatch,
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
    let (functions, prepare) = state.registry.follow(functions_as_of);
    let following = vec![
        AbortOnDropHandle::new(tokio::spawn(functions)),
        AbortOnDropHandle::new(tokio::spawn(state.models.follow(models_as_of))),
        AbortOnDropHandle::new(tokio::spawn(prepare_components(Arc::downgrade(&state), prepare))),
    ];
    Ok(Started { state, datastore, listener, following, participation, lock })
}

/// What tells the others how the node does.
fn reporting(models: Arc<Models>, metrics: Arc<Metrics>) -> impl Fn() -> Report + Send + 'static {
    let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or(0);
    move || Report {
        running: count(&metrics.running),
        queued: count(&metrics.queued),
        devices: vec![models.device_report()],
    }
}

/// What a node by itself is called.
const ALONE: NodeId = NodeId(0);

/// Become one of the cluster's nodes, under an address that the others can reach.
async fn join(
    config: &ClusterConfig,
    has_tokens: bool,
    listener: &TcpListener,
    datastore: Arc<dyn Datastore>,
) -> anyhow::Result<(Membership, Secret)> {
    let listens = listener.local_addr()?;
    if config.secret_file.is_none() && has_tokens {
        bail!(
            "whoever passes for a node of the cluster needs no token; give --secret-file FILE, the same on all nodes"
        );
    }
    if config.secret_file.is_none() && !listens.ip().is_loopback() {
        bail!(
            "whoever reaches {listens} could pass for a node of the cluster; give --secret-file FILE, the same on all nodes"
        );
    }
    let secret = Secret::read(config.secret_file.as_deref())?;
    let address = match &config.advertise {
        Some(address) => address.clone(),
        None if listens.ip().is_unspecified() => {
            bail!(
                "other nodes cannot reach this one at {listens}; say where they do with --advertise HOST:PORT"
            )
        }
        None => listens.to_string(),
    };
    if let Err(error) = address.parse::<http::uri::Authority>() {
        bail!("{address:?} is not HOST:PORT: {error}");
    }
    let lease_time = Duration::from_millis(config.lease_ms.max(1));
    let membership =
        Membership::join(datastore, address, lease_time).await.context("cannot join the cluster")?;
    Ok((membership, secret))
}

/// Compile what others have deployed before the first call of it comes. Where that fails, the call tries again and tells why.
async fn prepare_components(state: Weak<NodeState>, mut prepare: mpsc::Receiver<Prepare>) {
    while let Some((digest, kind)) = prepare.recv().await {
        let Some(state) = state.upgrade() else { return };
        let _ = state.dispatch.recompiler.compile(digest, kind).await;
    }
}

/// Keep other nodes off the data folder for as long as the file is open.
fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "{} is in use: another node runs on this data folder; --data picks another one",
                data.display()
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock the data folder {}", data.display()))
        }
    }
}

/// Where what is deployed is kept: with the cluster, or in a file of this node's.
async fn datastore(config: &NodeConfig, data: &Path) -> anyhow::Result<Arc<dyn Datastore>> {
    match &config.cluster {
        None => {
            let store =
                RedbStore::open(data.join("registry.redb")).await.context("cannot open the registry")?;
            Ok(Arc::new(store))
        }
        Some(cluster) => etcd(&cluster.datastore)
            .await
            .with_context(|| format!("cannot use the cluster's datastore {:?}", cluster.datastore)),
    }
}

#[cfg(feature = "cluster")]
async fn etcd(address: &str) -> anyhow::Result<Arc<dyn Datastore>> {
    let address: weir_datastore::EtcdAddress = address.parse()?;
    Ok(Arc::new(weir_datastore::EtcdStore::connect(&address).await?))
}

#[cfg(not(feature = "cluster"))]
async fn etcd(_address: &str) -> anyhow::Result<Arc<dyn Datastore>> {
    bail!("this weir was built without etcd; build it with `--features cluster`, or use a release")
}

async fn shared_blobs(cluster: &ClusterConfig) -> anyhow::Result<SharedBlobs> {
    let (address, cache_bytes_max) = (cluster.blobs.clone(), cluster.cache_bytes_max);
    let opened = tokio::task::spawn_blocking(move || SharedBlobs::open(&address, cache_bytes_max)).await?;
    opened.with_context(|| format!("cannot use the cluster's blobs {:?}", cluster.blobs))
}

/// Give memory that nobody uses any more back to the system, again and again. Sweeping unmaps at most what one burst of traffic left idle.
async fn sweep(arena: Arena) {
    let mut tick = tokio::time::interval(ARENA_SWEEP);
    loop {
        tick.tick().await;
        arena.sweep();
    }
}

fn tokens(config: &NodeConfig) -> anyhow::Result<Tokens> {
    if let Some(path) = &config.token_file {
        return Tokens::read(path).with_context(|| format!("cannot use the token file {}", path.display()));
    }
    if !config.listen.ip().is_loopback() && !config.insecure {
        bail!(
            "listening on {} would let everyone who can reach it deploy code; give --token-file FILE, or --insecure if that is what you want",
            config.listen
        );
    }
    Ok(Tokens::default())
}

fn model_cache(config: &NodeConfig, arena: &Arena) -> anyhow::Result<ModelCache> {
    let backend: Arc<dyn Backend> = match config.backend {
        BackendKind::Onnxruntime => {
            let config = OnnxRuntimeConfig {
                library: config.onnxruntime.clone(),
                run_memory_bytes_max: config.run_memory_bytes_max,
                prepare_command: None,
                prepare_memory_bytes_max: config.validate_memory_bytes_max,
                prepare_time_ms_max: config.validate_time_ms_max,
            };
            let backend = OnnxRuntime::new(config, arena.clone());
            if let Err(error) = backend.library() {
                // Functions without models work; pushing or opening a model says the same again.
                tracing::warn!(%error, "models cannot run yet");
            }
            Arc::new(backend)
        }
        BackendKind::Fake => Arc::new(FakeBackend::new(arena.clone())),
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cache = CacheConfig {
        capacity_bytes: config.model_memory_bytes_max,
        slots: config.model_slots.map_or(cores, |slots| slots as usize).max(1),
        run_queue_len_max: config.run_queue_len_max,
    };
    ModelCache::start(cache, backend, arena.clone()).context("cannot start the device threads")
}
