//! The state that request handlers share.

use crate::GatewayConfig;
use crate::access::Access;
use crate::answers::AnswerBudget;
use crate::lookups::Lookups;
use crate::permits::TenantPermits;
use crate::placements::GivenIds;
use crate::quotas::{QuotaConfig, Quotas};
use axum::extract::State;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_asynchronous::Invocations;
use weir_backup::BackupMaker;
use weir_call::Turnstile;
use weir_cluster::Cluster;
use weir_control::models::{Models, ModelsConfig};
use weir_control::objects::Objects;
use weir_control::registry::Registry;
use weir_control::response_cache::ResponseCache;
use weir_control::workflows::WorkflowRegistry;
use weir_device::Arena;
use weir_dispatch::Dispatch;
use weir_sandbox::SandboxConfig;
use weir_sandbox::component::Components;
use weir_storage::StorageHealth;
use weir_storage::blobs::Blobs;
use weir_telemetry::{Metrics, Tracer};
use weir_triggers::Triggers;

/// Clients that follow the node's events at once.
pub(crate) const FOLLOWERS_MAX: usize = 64;

/// Permits that bound concurrent work of the gateway.
pub struct Permits {
    /// For requests whose JSON is parsed or written on threads that may block.
    pub json: Arc<Semaphore>,
    /// For profiling, one model at a time: concurrent profiling would distort the
    /// measurements.
    pub profiling: Arc<Semaphore>,
    /// For clients that follow events.
    pub(crate) event_followers: Arc<Semaphore>,
    /// For uploads.
    pub(crate) uploads: TenantPermits,
    /// For open WebSockets.
    pub(crate) websockets: TenantPermits,
    /// For compiling deployed components: `sandbox.compiles_max` at once.
    pub compiles: Turnstile,
    /// For the memory of answers that clients have not taken yet.
    pub(crate) answers: Arc<AnswerBudget>,
    /// For the requests of tenants.
    pub(crate) quotas: Quotas,
    /// For lookups of unknown names.
    pub(crate) lookups: Lookups,
}

impl Permits {
    /// Creates the permits that these configurations allow.
    #[must_use]
    pub fn new(
        gateway: &GatewayConfig,
        sandbox: &SandboxConfig,
        quotas: QuotaConfig,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            json: Arc::new(Semaphore::new(gateway.threads.max(1))),
            profiling: Arc::new(Semaphore::new(1)),
            event_followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            uploads: TenantPermits::for_uploads(gateway),
            websockets: TenantPermits::for_websockets(&sandbox.websockets),
            compiles: Turnstile::new(
                "compilations",
                sandbox.compiles_max as usize,
                gateway.tenant_uploads_max.max(1) as usize,
            ),
            answers: Arc::new(AnswerBudget::new(gateway.answers.clone(), metrics.clone())),
            quotas: Quotas::new(quotas, metrics.clone()),
            lookups: Lookups::default(),
        }
    }
}

/// The configuration of the parts that requests depend on.
#[derive(Debug, Clone)]
pub struct RequestConfig {
    /// Settings of the gateway.
    pub gateway: GatewayConfig,
    /// Settings of the sandbox. Its caps bound deployed components and their manifests.
    pub sandbox: SandboxConfig,
    /// Settings of models: the maximum size, and the number of versions to keep.
    pub models: ModelsConfig,
}

/// Records by which requests are found later.
pub struct RequestTracking {
    /// Starts the traces of calls.
    pub tracer: Tracer,
    /// The invocations of request ids that clients chose.
    pub given_ids: GivenIds,
}

/// The stages of a node's shutdown.
#[derive(Debug, Default)]
pub struct Shutdown {
    /// Cancelled when the node starts to shut down: it is not ready any more, and still takes
    /// calls.
    pub draining: CancellationToken,
    /// Cancelled when the node takes no more calls.
    pub stopping: CancellationToken,
    /// Cancelled when the node leaves its cluster, where its calls can be placed until then.
    pub leaving: CancellationToken,
    /// On a node without devices, the requests of clients, and the attempts of asynchronous
    /// invocations, that have no response yet.
    pub requests: TaskTracker,
}

/// Extracts the node's state in a request handler.
pub(crate) type NodeExtractor = State<Arc<NodeState>>;

/// The state that request handlers share.
pub struct NodeState {
    /// The configuration of the parts that requests depend on.
    pub config: RequestConfig,
    /// Who may use the node.
    pub access: Access,
    /// The blobs with the components of functions, as deployed.
    pub blobs: Blobs,
    /// Makes backups of everything durable.
    pub backups: BackupMaker,
    /// The compiled components.
    pub components: Arc<Components>,
    /// The deployed functions.
    pub registry: Arc<Registry>,
    /// The pushed models.
    pub models: Arc<Models>,
    /// The deployed workflows.
    pub workflows: Arc<WorkflowRegistry>,
    /// Runs invocations of functions, models and workflows.
    pub dispatch: Arc<Dispatch>,
    /// The cache of responses to equal calls.
    pub response_cache: Arc<ResponseCache>,
    /// Asynchronous invocations.
    pub invocations: Arc<Invocations>,
    /// Triggers, which send requests on a schedule.
    pub triggers: Arc<Triggers>,
    /// Named objects: tensors stored under names.
    pub objects: Arc<Objects>,
    /// The cluster that this node belongs to, if any.
    pub cluster: Option<Arc<Cluster>>,
    /// The memory for request bodies and tensors.
    pub arena: Arena,
    /// The node's metrics.
    pub metrics: Arc<Metrics>,
    /// Records by which requests are found later.
    pub tracking: RequestTracking,
    /// Permits that bound concurrent work.
    pub permits: Permits,
    /// The time at which the node started.
    pub started: Instant,
    /// The stages of the node's shutdown.
    pub shutdown: Shutdown,
}

impl NodeState {
    /// Whether load balancers should send requests to the node.
    pub fn is_ready(&self) -> bool {
        !self.shutdown.draining.is_cancelled() && self.takes_calls()
    }

    /// Whether the node takes calls.
    pub fn takes_calls(&self) -> bool {
        !self.shutdown.stopping.is_cancelled()
    }

    /// The reason why the node is not ready, if any: load balancers should send requests to another
    /// node. A node that cannot store data still answers calls that reach it.
    pub fn why_unready(&self) -> Option<String> {
        // First, because it may be the reason for a shutdown.
        let problem = self.blobs.health().and_then(StorageHealth::problem);
        problem.or_else(|| (!self.is_ready()).then(|| "the node is shutting down".to_owned()))
    }

    /// Removes components that no function refers to. Components that cannot be removed are retried
    /// by the next sweep.
    pub async fn sweep_components(&self) {
        if !self.registry.is_whole() {
            tracing::warn!("unused components are kept, because an unreadable record may refer to them");
            return;
        }
        if let Err(error) = self.blobs.sweep(|| self.registry.digests()).await {
            tracing::warn!(%error, "removing unused components failed");
        }
        self.components.sweep(|| self.registry.digests()).await;
    }

    /// Retires idle instances that have waited too long, whose version gets no calls any more, or
    /// whose secrets have changed.
    pub fn sweep_instances(&self) {
        self.dispatch.slots.sweep(|deployment, secrets| {
            self.registry.is_serving(deployment) && self.dispatch.secrets.is_current(secrets)
        });
    }
}
