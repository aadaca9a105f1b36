//! A node's lifecycle: wires up, starts and shuts down all parts in one place.

mod background;
mod deployed;
mod devices;
mod garbage;
mod joined;
pub(crate) mod open_files;
mod outbound;
mod restore;
mod runtimes;
mod storage;
mod telemetry;
mod tls;

use crate::config::NodeConfig;
use anyhow::Context;
use background::Background;
use deployed::{DeployedContent, FollowStart};
use joined::NodePlacements;
use runtimes::Runtimes;
use scopeguard::ScopeGuard;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::Storage;
use telemetry::Telemetry;
use tls::NodeTls;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_call::until;
use weir_cluster::Participation;
use weir_control::response_cache::ResponseCache;
use weir_device::Arena;
use weir_dispatch::intermediates::Intermediates;
use weir_dispatch::{CopyLimits, Dispatch, GuestThreads, InstanceLimits, InstanceSlots};
use weir_gateway::{
    Access, Gateway, GivenIds, NodeState, PageGuard, PagesConfig, Permits, RequestConfig, RequestTracking,
    Server, Shutdown, Tokens,
};
use weir_oidc::Provider;
use weir_otlp::{ExportTask, Exporter};
use weir_sandbox::{GuestMemory, ImageDecoder};
use weir_telemetry::{AuditLog, Metrics};
use weir_types::TenantId;

/// The time that a call may spend in transit to a node that has left its cluster, from a node that
/// had not learned of that yet, including the time to connect.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// The time for which a node beyond loopback still takes calls when it shuts down: several periods
/// of readiness probes.
const LAME_DUCK: Duration = Duration::from_secs(5);

/// The time before the end of `gateway.drain_timeout_ms` at which a node without devices refuses the
/// calls that still wait, so that their clients get an answer.
const WAITING_REFUSED_BEFORE: Duration = Duration::from_millis(500);

/// A running node. Dropping it without [`Node::shutdown`] cuts requests off.
pub struct Node {
    config: NodeConfig,
    state: Arc<NodeState>,
    tls: NodeTls,
    /// Locks the data folder against other nodes.
    storage: Storage,
    local_addr: SocketAddr,
    serving: JoinHandle<()>,
    /// The time until which the server may finish its requests, once it must accept no more
    /// connections. A cluster member leaves the cluster first.
    closing: watch::Sender<Option<Instant>>,
    background: Background,
    /// Sends spans and metrics to a collector.
    export: Option<ExportTask>,
    participation: Option<Participation>,
    runtimes: Option<Runtimes>,
}

impl Node {
    /// Opens the data folder and starts to serve. On return, the port is bound and everything
    /// deployed can be called.
    pub async fn start(config: NodeConfig) -> anyhow::Result<Self> {
        // Dropped by an error, and by a caller that gives up: an async context must not drop a runtime.
        let runtimes = scopeguard::guard(Runtimes::start(&config)?, Runtimes::stop);
        let gateway = runtimes.gateway.handle().clone();
        let started = gateway.spawn(start(config, runtimes.guest_threads())).await;
        let started = started.context("the node failed while it started")??;
        let Started { config, state, tls, storage, listener, begin, participation, exporter } = started;
        let listener_tls = tls.listener()?;
        let local_addr = listener.local_addr()?;
        let shared = gateway.clone();
        let served = Gateway::new(state.clone());
        let server = Server::new(served, &config.gateway, listener_tls, &runtimes.connections, shared);
        let closing = watch::Sender::new(None);
        let serving = gateway.spawn(server.run(listener, closing.subscribe()));
        let background = Background::start(&gateway, &state, &config, &tls, begin);
        let export = exporter.map(|exporter| telemetry::start(exporter, &gateway, &state, local_addr));
        let runtimes = Some(ScopeGuard::into_inner(runtimes));
        Ok(Self {
            config,
            state,
            tls,
            storage,
            local_addr,
            serving,
            closing,
            background,
            export,
            participation,
            runtimes,
        })
    }

    /// Prepares the next start of a node whose registry is lost: with an empty registry for the
    /// files of its data folder, or with an empty folder for the blobs of its cluster.
    pub async fn init(config: &NodeConfig) -> anyhow::Result<()> {
        Storage::init(config).await
    }

    /// Restores the backup in `file` for the next start of a node with these settings, whose data
    /// folder or cluster must be empty. `progress` receives the number of bytes of `file` that were
    /// read.
    pub async fn restore(
        config: &NodeConfig,
        file: std::fs::File,
        progress: impl FnMut(u64) + Send + 'static,
    ) -> anyhow::Result<weir_backup::BackupSummary> {
        restore::restore(config, file, progress).await
    }

    /// The address on which the node listens, with the actual port if port 0 was requested.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether clients speak TLS to the node.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.tls.has_clients()
    }

    /// Whether the node has files that [`reload`](Self::reload) reads.
    #[must_use]
    pub fn has_files_to_reload(&self) -> bool {
        self.tls.has_files()
    }

    /// Reads the certificates again. Unusable ones are reported in the log, and the old ones stay in
    /// use.
    pub async fn reload(&self) {
        self.tls.reload(true).await;
    }

    /// Waits until the node must be restarted, because other data has replaced the data of its
    /// cluster's datastore. The node is not ready then.
    pub async fn until_outdated(&self) {
        self.storage.datastore.until_replaced().await;
    }

    /// Shuts the node down, and starts it with the same settings at the same address. The new node
    /// reads everything again, and joins its cluster under a number that this process has not seen.
    pub async fn restart(self) -> anyhow::Result<Self> {
        let mut config = self.config.clone();
        config.listen = self.local_addr;
        if let (Some(settings), Some(cluster)) = (&mut config.cluster, &self.state.cluster) {
            settings.known_nodes_max = cluster.known_nodes_max();
        }
        self.shutdown().await;
        Self::start(config).await
    }

    /// Becomes unready, takes calls for `gateway.lame_duck_ms` longer, waits for waiting and running
    /// ones (up to `gateway.drain_timeout_ms`), and releases all resources.
    pub async fn shutdown(mut self) {
        self.state.shutdown.draining.cancel();
        tokio::time::sleep(self.lame_duck()).await;
        let drained = Instant::now() + Duration::from_millis(self.state.config.gateway.drain_timeout_ms);
        self.state.shutdown.stopping.cancel();
        self.settle_requests(drained).await;
        self.state.shutdown.leaving.cancel();
        // First, so that no further calls are forwarded here. Calls in transit are refused as not
        // started and are placed again.
        if let Some(participation) = self.participation.take() {
            participation.end().await;
            tokio::time::sleep(UNDER_WAY).await;
        }
        self.closing.send_replace(Some(drained));
        if let Err(error) = (&mut self.serving).await {
            tracing::error!(%error, "the server failed");
        }
        // With the same limit as client requests.
        self.background.settle(drained).await;
        self.state.dispatch.slots.close();
        self.background.stop();
        self.state.models.save_profiles().await;
        self.state.dispatch.placements.write_record().await;
        self.storage.close().await;
        if let Some(export) = self.export.take() {
            export.shutdown().await;
        }
        if let Some(runtimes) = self.runtimes.take() {
            runtimes.stop();
        }
    }
}

impl Node {
    /// The time for which the node still takes calls when it shuts down.
    fn lame_duck(&self) -> Duration {
        let default = if self.local_addr.ip().is_loopback() { Duration::ZERO } else { LAME_DUCK };
        self.state.config.gateway.lame_duck_ms.map_or(default, Duration::from_millis)
    }

    /// Waits until a node without devices has answered its requests, because their calls can be placed
    /// only while the node is in its cluster. Shortly before `drained`, refuses the calls that have no
    /// place. A node with devices returns at once: it runs waiting calls after it has left the cluster.
    async fn settle_requests(&self, drained: Instant) {
        if !self.state.models.devices().is_empty() {
            return;
        }
        let requests = &self.state.shutdown.requests;
        requests.close();
        let settled = drained.checked_sub(WAITING_REFUSED_BEFORE).unwrap_or(drained);
        // Otherwise, requests are still in progress.
        let _ = until(settled, requests.wait()).await;
        self.state.dispatch.placements.refuse_all();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.state.shutdown.stopping.cancel();
        self.state.shutdown.leaving.cancel();
        self.closing.send_replace(Some(Instant::now()));
        if let Some(runtimes) = self.runtimes.take() {
            runtimes.stop();
        }
    }
}

/// A node that does not serve yet.
struct Started {
    config: NodeConfig,
    state: Arc<NodeState>,
    tls: NodeTls,
    storage: Storage,
    listener: TcpListener,
    begin: FollowStart,
    participation: Option<Participation>,
    exporter: Option<Exporter>,
}

/// The tokens that the node accepts.
async fn tokens(config: &NodeConfig) -> anyhow::Result<Tokens> {
    let tokens = Tokens::load(config.token_file.as_deref(), config.listen, config.insecure)?;
    let oidc = config.gateway.access.oidc.clone();
    // Reads a file.
    let provider = tokio::task::spawn_blocking(move || Provider::new(&oidc)).await??;
    tokens.with_provider(provider)
}

async fn start(config: NodeConfig, guests: GuestThreads) -> anyhow::Result<Started> {
    let tokens = tokens(&config).await?;
    let scheduler = config.scheduler_setup()?;
    // The lock of the data folder comes first: it detects another node on the same folder before
    // any file is touched.
    let storage = Storage::open(&config).await?;
    let metrics = Metrics::new();
    let Telemetry { tracer, exporter } = Telemetry::open(&config, &metrics).await?;
    let tls = NodeTls::load(&config, &metrics).await?;
    let audit = open_audit_log(&config, &metrics).await?;
    let arena = arena(&config);
    let connector = outbound::connector(&config, &metrics).await?;
    let deployed = DeployedContent::open(&config, &storage, &metrics, &arena, &connector).await?;
    let listener = listen(&config)?;
    connector.set_listener(listener.local_addr()?);
    let leaving = CancellationToken::new();
    let listening = (&listener, &tls);
    let models = &deployed.models;
    let joined =
        NodePlacements::start(&config, scheduler, listening, &storage, models, &metrics, &leaving).await?;
    let permits = Permits::new(&config.gateway, &config.sandbox, config.quotas(), &metrics);
    let NodePlacements { placements, cluster, participation } = joined;
    let dispatch = Dispatch {
        components: deployed.components.clone(),
        models: deployed.models.clone(),
        catalog: deployed.catalog(),
        turns: permits.json.clone(),
        answer_bytes_max: config.gateway.infer_body_bytes_max,
        websocket_close_time: Duration::from_millis(config.sandbox.websockets.close_ms),
        placements: placements.clone(),
        cluster: cluster.clone(),
        objects: deployed.objects.clone(),
        secrets: deployed.secrets.clone(),
        intermediates: Arc::new(Intermediates::start(
            placements.node(),
            cluster.clone(),
            arena.clone(),
            config.intermediates.clone(),
            metrics.clone(),
        )),
        arena: arena.clone(),
        metrics: metrics.clone(),
        connector,
        slots: Arc::new(instance_slots(&config, &metrics)),
        guests,
        images: Arc::new(ImageDecoder::new(&config.sandbox.images)),
        recompiler: deployed.recompiler(&config, &metrics),
        copies: Arc::new(CopyLimits::new(config.scheduler.shadow.clone())),
    };
    let state = NodeState {
        config: request_config(&config),
        access: Access::new(tokens, deployed.keys, page_guard(&config), audit, metrics.clone()),
        blobs: deployed.blobs,
        components: deployed.components,
        backups: deployed.backups,
        registry: deployed.registry,
        models: deployed.models,
        workflows: deployed.workflows,
        dispatch: Arc::new(dispatch),
        response_cache: ResponseCache::new(config.gateway.response_cache_bytes_max, &metrics),
        invocations: deployed.invocations,
        triggers: deployed.triggers,
        objects: deployed.objects,
        cluster,
        arena,
        metrics,
        tracking: RequestTracking { tracer, given_ids: GivenIds::default() },
        permits,
        started: Instant::now(),
        shutdown: Shutdown { leaving, ..Shutdown::default() },
    };
    state.sweep_components().await;
    let begin = deployed.begin;
    Ok(Started { config, state: Arc::new(state), tls, storage, listener, begin, participation, exporter })
}

/// The memory for bodies and tensors, with the shares of the tenants.
fn arena(config: &NodeConfig) -> Arena {
    let bytes_max = config.gateway.arena_bytes_max;
    let quotas = config.quotas();
    Arena::with_shares(bytes_max, move |tenant| quotas.arena_bytes_max(tenant, bytes_max))
}

/// The instance slots, with the limits of instances and of their memory.
fn instance_slots(config: &NodeConfig, metrics: &Arc<Metrics>) -> InstanceSlots {
    let sandbox = &config.sandbox;
    let bytes_max = sandbox.guest_memory_bytes_max();
    let quotas = Arc::new(config.quotas());
    let shares = quotas.clone();
    let tenant_bytes_max = move |tenant: &TenantId| shares.guest_memory_bytes_max(tenant, bytes_max);
    let instances_max = sandbox.instances_max;
    let limits = InstanceLimits {
        instances_max,
        idle_max: sandbox.instances_idle_max,
        tenant_instances_max: Box::new(move |tenant| quotas.instances_max(tenant, instances_max)),
        memory: GuestMemory::new(bytes_max, tenant_bytes_max, metrics.clone()),
    };
    InstanceSlots::new(limits, metrics.clone())
}

/// The configuration of the parts that requests depend on.
fn request_config(config: &NodeConfig) -> RequestConfig {
    RequestConfig {
        gateway: config.gateway.clone(),
        sandbox: config.sandbox.clone(),
        models: config.models.clone(),
    }
}

async fn open_audit_log(config: &NodeConfig, metrics: &Arc<Metrics>) -> anyhow::Result<AuditLog> {
    let audit = config.logs.audit.clone();
    let counted = metrics.clone();
    let opened = tokio::task::spawn_blocking(move || AuditLog::open(&audit, counted)).await?;
    opened.with_context(|| format!("cannot open the audit log {:?}", config.logs.audit.file))
}

/// The guard against web pages. Other nodes reach this one by its advertised name.
fn page_guard(config: &NodeConfig) -> Option<PageGuard> {
    let PagesConfig { hosts, origins } = &config.gateway.access.pages;
    let advertised = config.cluster.as_ref().and_then(|cluster| cluster.advertise.clone());
    let hosts: Vec<String> = hosts.iter().cloned().chain(advertised).collect();
    PageGuard::new(config.listen, config.token_file.is_some(), &hosts, origins)
}

fn listen(config: &NodeConfig) -> anyhow::Result<TcpListener> {
    let listening = || {
        let socket = if config.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A node that restarts takes over the port of connections that have not timed out yet.
        socket.set_reuseaddr(true)?;
        socket.bind(config.listen)?;
        socket.listen(config.gateway.accept_queue_len_max.max(1))
    };
    listening().with_context(|| {
        format!(
            "cannot listen on {}; is another node running? (--listen picks another address)",
            config.listen
        )
    })
}
