//! Triggers: requests that a node sends on a schedule, for messages of a stream, or for events of
//! clients, as asynchronous invocations.
//!
//! Modules, in the order of a trigger's life: `plan` checks the settings and prepares the requests;
//! `schedule` computes the ticks; `change` serves clients; `index` mirrors all triggers in memory and
//! selects the next tick, by the changes that `follow` applies; `work` handles ticks that are due,
//! and `decision` chooses their outcome; `messages` reads streams; `events` takes the events of
//! clients, and `event` has the format of both.
//!
//! The state of a trigger names its latest tick. One transaction writes the invocation of a tick and
//! the new state, and compares the settings and the old state. A tick therefore has one outcome in
//! the whole cluster, although every node may handle it: the dispatcher does so at once, and the
//! other nodes do so if it has not. No request is lost or sent twice if a node stops in between.

mod change;
pub use change::ChangedTrigger;

mod decision;
mod event;
mod events;
pub use events::EventTrigger;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod index;
mod messages;
mod plan;
mod record;
mod schedule;
mod work;

use axum::extract::Request;
use index::KnownTriggers;
use messages::Tally;
use parking_lot::Mutex;
use record::TriggerId;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore};
use weir_asynchronous::{AsyncError, Invocations, TriggersConfig};
use weir_call::Fault;
use weir_control::secrets::Secrets;
use weir_datastore::{Datastore, Key, KeyError, Revision};
use weir_outbound::Connector;
use weir_storage::{Changes, CutOff, Heard};
use weir_telemetry::Metrics;
use weir_types::api::Invocation;
use weir_types::{ErrorCode, Name, TenantId};

/// Accepts the requests of triggers.
pub trait RequestSender: Clone + Send + Sync + 'static {
    /// Accepts a request with the preference `respond-async` as an asynchronous invocation.
    fn send(
        &self,
        tenant: TenantId,
        request: Request,
    ) -> impl Future<Output = Result<Invocation, Fault>> + Send;
}

/// The triggers of all tenants.
pub struct Triggers {
    config: TriggersConfig,
    datastore: Arc<dyn Datastore>,
    invocations: Arc<Invocations>,
    metrics: Arc<Metrics>,
    changes: Changes,
    /// Changed by events of the datastore, and by work on ticks.
    known: Mutex<KnownTriggers>,
    /// The revision of the datastore that `index` reflects.
    heard: Heard,
    /// Held while a trigger is created, so that concurrent creations stay within the limits.
    turn: Arc<Semaphore>,
    /// Notified when the next tick may have changed.
    news: Notify,
    /// Notified when a trigger may have changed that reads a stream.
    stream_news: Notify,
    /// Connects to the servers of streams.
    connector: Arc<Connector>,
    /// Logins at these servers.
    secrets: Arc<Secrets>,
    /// What events have added to the states of their triggers.
    tallies: Mutex<HashMap<TriggerId, Tally>>,
}

/// Dependencies of [`Triggers`].
pub struct TriggerDeps {
    /// Limits.
    pub config: TriggersConfig,
    /// Datastore for the records.
    pub datastore: Arc<dyn Datastore>,
    /// Asynchronous invocations, whose progress decides about overlaps.
    pub invocations: Arc<Invocations>,
    /// Metrics of the node.
    pub metrics: Arc<Metrics>,
    /// Runner that completes changes of clients that disconnect.
    pub changes: Changes,
    /// Connects to the servers of streams.
    pub connector: Arc<Connector>,
    /// Logins at these servers.
    pub secrets: Arc<Secrets>,
}

/// The reason why a trigger was not found, changed or run.
#[derive(Debug, thiserror::Error)]
pub enum TriggerError {
    /// The tenant has no trigger with this name.
    #[error("there is no trigger {0}; `weir triggers` lists them")]
    NotFound(Name),
    /// The settings are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The tenant or the node has too many triggers.
    #[error("{whose} has {len_max} triggers, the most that are kept ({setting}); delete some")]
    Full {
        /// Owner of the triggers.
        whose: &'static str,
        /// Limit.
        len_max: u32,
        /// Setting of the limit.
        setting: &'static str,
    },
    /// The trigger is paused, so that it takes no events.
    #[error("the trigger {0} is paused; `weir triggers resume {0}` resumes it")]
    Paused(Name),
    /// The request has no events that the node understands.
    #[error("{0}")]
    BadEvents(String),
    /// The trigger was changed concurrently.
    #[error("the trigger {0} was changed at the same time; try again")]
    Conflict(Name),
    /// The request was refused.
    #[error(transparent)]
    Refused(#[from] Fault),
    /// A record in the datastore cannot be parsed.
    #[error("the record {key} cannot be read: {why}")]
    Damaged {
        /// The record's key.
        key: Key,
        /// The reason why the record cannot be parsed.
        why: String,
    },
    /// The record has no valid key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The progress of an invocation could not be read.
    #[error(transparent)]
    Invocation(#[from] AsyncError),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

impl TriggerError {
    /// The error code for clients.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::TriggerNotFound,
            Self::Invalid(_) => ErrorCode::InvalidTrigger,
            Self::Full { .. } => ErrorCode::QuotaExceeded,
            Self::BadEvents(_) => ErrorCode::InvalidRequest,
            Self::Conflict(_) | Self::Paused(_) => ErrorCode::Conflict,
            Self::Refused(fault) => fault.code,
            Self::Datastore(error) if error.is_full() => ErrorCode::DiskFull,
            Self::Datastore(error) if error.is_temporary() => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        }
    }
}

impl Triggers {
    /// Reads all triggers. Also returns the revision that was read.
    pub async fn open(parts: TriggerDeps) -> Result<(Arc<Self>, Revision), TriggerError> {
        let TriggerDeps { config, datastore, invocations, metrics, changes, connector, secrets } = parts;
        let triggers = Self {
            config,
            datastore,
            invocations,
            metrics,
            changes,
            known: Mutex::default(),
            heard: Heard::default(),
            turn: Arc::new(Semaphore::new(1)),
            news: Notify::new(),
            stream_news: Notify::new(),
            connector,
            secrets,
            tallies: Mutex::default(),
        };
        let revision = triggers.load().await?;
        Ok((Arc::new(triggers), revision))
    }
}
