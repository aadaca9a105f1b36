//! The path of one call, from admission to response.
//!
//! A call ([`CallCtx`]) of a function, a model or a workflow ([`Target`]) waits for the permit of
//! the function's gate and for a placement from the scheduler (`admission.rs`, `place.rs`). A call
//! that is placed on another node is forwarded (`forwarder.rs`). `run.rs` has the loop over these
//! steps, and starts the call here (`function.rs`, `inference.rs`, `workflow.rs`). Every wait ends
//! at the deadline.

mod access;
mod account;
mod admission;
mod call;
mod forwarder;
mod function;
mod guest_threads;
mod inference;
mod job;
mod outgoing;
mod place;
mod remote;
mod resendable;
mod run;
mod shadow;
mod slice;
mod slots;
mod target;
mod workflow;

pub use account::Account;
pub use call::CallCtx;
pub use function::HttpRequest;
pub use guest_threads::GuestThreads;
pub use inference::ReadyModel;
pub use job::InferenceJob;
pub use remote::{EncodedInference, Read, refusal, write_device};
pub use run::RunResult;
pub use shadow::CopyLimits;
pub use slots::{InstanceLimits, InstanceSlots};
pub use target::{FunctionTarget, ModelTarget, Target};
pub use workflow::Steps;

use crate::intermediates::Intermediates;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use weir_cluster::{Cluster, Placements};
use weir_control::models::Models;
use weir_control::objects::Objects;
use weir_control::registry::DeployedFunction;
use weir_control::secrets::Secrets;
use weir_control::workflows::Catalog;
use weir_device::Arena;
use weir_outbound::Connector;
use weir_sandbox::ImageDecoder;
use weir_sandbox::component::{Components, Recompiler};
use weir_telemetry::{Metrics, Served};

/// Runs invocations of functions, models and workflows.
pub struct Dispatch {
    /// The compiled and loaded components.
    pub components: Arc<Components>,
    /// The models of this node.
    pub models: Arc<Models>,
    /// The models, functions and workflows that workflow steps run and functions open.
    pub catalog: Catalog,
    /// The placements of calls by the scheduler.
    pub placements: Arc<Placements>,
    /// The cluster that this node belongs to, if any.
    pub cluster: Option<Arc<Cluster>>,
    /// The named objects.
    pub objects: Arc<Objects>,
    /// The secrets of functions.
    pub secrets: Arc<Secrets>,
    /// Intermediate tensors that one workflow step leaves for another.
    pub intermediates: Arc<Intermediates>,
    /// The memory for bodies and tensors.
    pub arena: Arena,
    /// The node's metrics.
    pub metrics: Arc<Metrics>,
    /// The connector for requests of functions.
    pub connector: Arc<Connector>,
    /// Instance slots, shared by all functions.
    pub slots: Arc<InstanceSlots>,
    /// The guest threads.
    pub guests: GuestThreads,
    /// Decodes images for functions.
    pub images: Arc<ImageDecoder>,
    /// Recompiles components whose artefact this node cannot use.
    pub recompiler: Recompiler,
    /// Permits for work that would block other requests.
    pub turns: Arc<Semaphore>,
    /// The limits of the copies of calls for shadows.
    pub copies: Arc<CopyLimits>,
    /// The size limit of a response from another node that ran a model or workflow.
    pub answer_bytes_max: u64,
    /// The time that a function has to end after its WebSocket was closed.
    pub websocket_close_time: Duration,
}

impl Dispatch {
    /// The serving statistics of a tensor function.
    pub fn served(&self, deployment: &DeployedFunction) -> Served {
        let id = &deployment.id;
        deployment.served.get_or_init(|| self.metrics.served(&id.tenant, &id.name, id.version)).clone()
    }
}

/// The deadline `limit_ms` after `arrived`.
pub fn deadline(arrived: Instant, limit_ms: u64) -> Instant {
    arrived + Duration::from_millis(limit_ms)
}
