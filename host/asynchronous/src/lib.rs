//! Asynchronous invocations: calls that are accepted now and run later. The node keeps the response
//! until the client fetches it or its retention ends.
//!
//! Modules, in the order of an invocation's life: `accept` stores the request as a blob and
//! writes its record; `index` mirrors all records in memory by watching the datastore; `work`
//! takes invocations that are due; `attempt` runs one like any synchronous call; `retry`
//! decides whether a failed attempt is retried; `callback` delivers results; `client` serves
//! clients that query or wait; `sweep` deletes old invocations.
//!
//! Each change of a record is a transaction that compares the record's revision, so that two nodes,
//! or a node and a client, never both decide. The node that accepted an invocation claims it under
//! its lease. When the lease ends, any node may take the invocation over, so an invocation runs at
//! least once and possibly twice. Apart from objects that calls put, asynchronous invocations are
//! the only call path that writes persistent state.

mod config;
pub use config::{AsyncConfig, TriggersConfig};

mod gateway;
pub use gateway::RequestRunner;

mod accept;
mod attempt;
mod callback;
mod client;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod index;
mod lease;
mod message;
mod record;
mod retry;
mod store;
mod sweep;
mod work;

pub use accept::{InvocationRequest, LinkedWrite};
pub use callback::check_callback;
pub use client::{Filter, Watched};
pub use work::ShutdownSignals;

use index::InvocationIndex;
pub use index::InvocationUsage;
use lease::Keeper;
use parking_lot::Mutex;
use record::ClaimOwner;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{Notify, Semaphore, watch};
use weir_datastore::{Datastore, Key, KeyError, Revision};
use weir_outbound::Connector;
use weir_storage::Heard;
use weir_storage::blobs::{BlobError, Blobs, PutError};
use weir_storage::{Changes, CutOff};
use weir_telemetry::Metrics;
use weir_telemetry::logs::now_ms;
use weir_types::{AsyncId, ErrorCode};

/// Asynchronous invocations known to this node.
pub struct Invocations {
    config: AsyncConfig,
    datastore: Arc<dyn Datastore>,
    blobs: Blobs,
    metrics: Arc<Metrics>,
    connector: Arc<Connector>,
    changes: Changes,
    owner: ClaimOwner,
    /// Start of this process's work.
    began_at_ms: u64,
    keeper: Keeper,
    /// Whether this is the only node.
    is_alone: bool,
    index: Mutex<InvocationIndex>,
    /// Datastore revision that the index reflects.
    heard: Heard,
    /// Notified when there may be work to do.
    news: Notify,
    /// Channels to clients that wait for a change of an invocation.
    waiting: Mutex<HashMap<AsyncId, watch::Sender<()>>>,
    waiters: Arc<Semaphore>,
    /// Whether blobs may have lost their invocations since the last sweep.
    has_leftovers: AtomicBool,
}

/// Failed operation on an asynchronous invocation.
#[derive(Debug, thiserror::Error)]
pub enum AsyncError {
    /// Rejected; the client can correct or retry the request.
    #[error("{text}")]
    Refused {
        /// Code of the API error.
        code: ErrorCode,
        /// Message for the client.
        text: String,
    },
    /// A record in the datastore is not valid.
    #[error("the record {key} cannot be read: {why}")]
    Damaged {
        /// Key of the record.
        key: Key,
        /// Message of the parser.
        why: String,
    },
    /// A datastore key could not be built.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The datastore failed or is out of reach.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// A request or response could not be stored or read.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The request body was not received in full.
    #[error(transparent)]
    Put(#[from] PutError),
    /// A change of a record was not completed.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

impl AsyncError {
    fn refused(code: ErrorCode, text: impl Into<String>) -> Self {
        Self::Refused { code, text: text.into() }
    }

    /// The error for an invocation that the tenant does not have.
    #[must_use]
    pub fn missing(id: AsyncId) -> Self {
        Self::refused(
            ErrorCode::InvocationNotFound,
            format!("there is no invocation {id}; GET /v1/invocations lists them"),
        )
    }

    fn io(error: std::io::Error) -> Self {
        Self::Blob(error.into())
    }
}

/// Dependencies of [`Invocations`].
pub struct InvocationDeps {
    /// Limits, retries and retention.
    pub config: AsyncConfig,
    /// Datastore for the records and their claims.
    pub datastore: Arc<dyn Datastore>,
    /// Blobs of requests and responses.
    pub blobs: Blobs,
    /// Metrics of the node.
    pub metrics: Arc<Metrics>,
    /// Connector for callbacks.
    pub connector: Arc<Connector>,
    /// Runner that completes changes of clients that disconnect.
    pub changes: Changes,
    /// Whether this is the only node, so that all claims in the datastore are stale.
    pub is_alone: bool,
}

impl Invocations {
    /// Hosts that callbacks of direct model inferences and of workflows may reach.
    #[must_use]
    pub fn callback_hosts(&self) -> &[String] {
        &self.config.callback_hosts
    }

    /// A tenant's use of the limits.
    #[must_use]
    pub fn usage(&self, tenant: &weir_types::TenantId) -> InvocationUsage {
        self.index.lock().usage(tenant)
    }

    /// Limits of invocations.
    #[must_use]
    pub fn config(&self) -> &AsyncConfig {
        &self.config
    }

    /// Loads all invocations, and returns the datastore revision that they reflect.
    pub async fn open(parts: InvocationDeps) -> Result<(Arc<Self>, Revision), AsyncError> {
        let InvocationDeps { config, datastore, blobs, metrics, connector, changes, is_alone } = parts;
        let owner = ClaimOwner(rand::random());
        if is_alone {
            store::drop_claims(&*datastore).await?;
        }
        let keeper = Keeper::start(datastore.clone(), config.lease_ms).await?;
        let invocations = Self {
            index: Mutex::new(InvocationIndex::new(owner)),
            waiters: Arc::new(Semaphore::new(config.waiters_max as usize)),
            config,
            datastore,
            blobs,
            metrics,
            connector,
            changes,
            owner,
            began_at_ms: now_ms(),
            keeper,
            is_alone,
            heard: Heard::default(),
            news: Notify::new(),
            waiting: Mutex::default(),
            has_leftovers: AtomicBool::new(true),
        };
        let revision = invocations.load().await?;
        Ok((Arc::new(invocations), revision))
    }
}
