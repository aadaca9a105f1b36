//! Asynchronous invocations: calls that are accepted now and run later, whose answer is kept until it is fetched.
//!
//! In the order that one meets them: [`accept`] keeps the request as a blob and writes its record; [`index`] is what every node knows of all
//! records, by following the datastore; [`work`] takes what is due, [`attempt`] runs it as any call is run, [`retry`] decides what becomes of
//! one that failed, [`callback`] tells who wanted to be told; [`look`] is for clients who ask or wait; [`sweep`] forgets.
//!
//! A record changes only in a transaction that compares its revision, so that two nodes, or a node and a client, never both decide. The node
//! that accepted an invocation claims it under its lease; when the lease ends, any node may take it over, which runs it at least once and
//! perhaps twice. But for objects that calls put, this is the only way of a call that
//! writes anything persistent.

mod accept;
mod attempt;
mod callback;
mod index;
mod lease;
mod look;
mod message;
mod news;
mod record;
mod retry;
mod store;
mod sweep;
mod work;

pub(crate) use accept::Offer;
pub(crate) use callback::check_callback;
pub(crate) use look::{Filter, Watched};
pub(crate) use work::Stop;

use crate::blobs::{BlobError, Blobs, PutError};
use crate::changes::{Changes, CutOff};
use crate::config::AsyncConfig;
use crate::follow::Heard;
use crate::telemetry::Metrics;
use crate::telemetry::logs::now_ms;
use index::Index;
use lease::Keeper;
use record::Owner;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore, watch};
use weir_datastore::{Datastore, Key, KeyError, Revision};
use weir_types::{AsyncId, ErrorCode};

/// The asynchronous invocations that this node knows of.
pub(crate) struct Invocations {
    config: AsyncConfig,
    datastore: Arc<dyn Datastore>,
    blobs: Blobs,
    metrics: Arc<Metrics>,
    changes: Changes,
    owner: Owner,
    keeper: Keeper,
    /// Whether there are no other nodes.
    is_alone: bool,
    index: Mutex<Index>,
    /// The state of the datastore that the index has heard of.
    heard: Heard,
    /// Rung when there may be something to work on.
    news: Notify,
    /// Clients that wait for something to happen to an invocation.
    waiting: Mutex<HashMap<AsyncId, watch::Sender<()>>>,
    waiters: Arc<Semaphore>,
    /// Whether blobs have lost their invocations since the last sweep.
    has_leftovers: AtomicBool,
}

/// Why something could not be done about an asynchronous invocation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AsyncError {
    /// The client's to mend, or to try again.
    #[error("{text}")]
    Refused { code: ErrorCode, text: String },
    #[error("the record {key} cannot be read: {why}")]
    Damaged { key: Key, why: String },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Put(#[from] PutError),
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

impl AsyncError {
    fn refused(code: ErrorCode, text: impl Into<String>) -> Self {
        Self::Refused { code, text: text.into() }
    }

    fn io(error: std::io::Error) -> Self {
        Self::Blob(error.into())
    }
}

/// What the asynchronous invocations of a node are made from.
pub(crate) struct Parts {
    pub(crate) config: AsyncConfig,
    pub(crate) datastore: Arc<dyn Datastore>,
    pub(crate) blobs: Blobs,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) changes: Changes,
    pub(crate) is_alone: bool,
}

impl Invocations {
    /// Read what there is, and as of when.
    pub(crate) async fn open(parts: Parts) -> Result<(Arc<Self>, Revision), AsyncError> {
        let Parts { config, datastore, blobs, metrics, changes, is_alone } = parts;
        let owner = Owner(rand::random());
        if is_alone {
            store::drop_claims(&*datastore).await?;
        }
        let keeper = Keeper::start(datastore.clone(), config.lease_ms).await?;
        let invocations = Self {
            index: Mutex::new(Index::new(owner)),
            waiters: Arc::new(Semaphore::new(config.waiters_max as usize)),
            config,
            datastore,
            blobs,
            metrics,
            changes,
            owner,
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

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
