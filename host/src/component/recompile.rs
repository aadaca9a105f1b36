//! Compiling anew what calls wait for: after an upgrade of Weir, or where the disk has lost an artefact.
//!
//! A component is compiled once, however many wait for it. The compilation goes on when those who wait run out of time, so that a later
//! call finds it done; what ends it is its limits, or the node's end. One that failed is not tried again for a while.

use super::Components;
use super::compile::CompileError;
use crate::blobs::Blobs;
use crate::telemetry::{ColdStart, Metrics, Phase};
use moka::sync::Cache;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_types::{ContentHash, ErrorCode, FunctionKind};

/// How long a component that could not be compiled is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Failures remembered at once.
const FAILURES_MAX: u64 = 10_000;

/// Compiles for calls. Dropping it ends the compilations.
pub(crate) struct Recompiler {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    components: Arc<Components>,
    blobs: Blobs,
    metrics: Arc<Metrics>,
    /// Bounds the compilations at once.
    turns: Semaphore,
    under_way: Mutex<HashMap<ContentHash, watch::Receiver<Option<Outcome>>>>,
    failed: Cache<ContentHash, CompileError>,
    stop: CancellationToken,
}

type Outcome = Result<(), CompileError>;

impl Recompiler {
    pub(crate) fn new(
        components: Arc<Components>,
        blobs: Blobs,
        metrics: Arc<Metrics>,
        compiles_max: usize,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            components,
            blobs,
            metrics,
            turns: Semaphore::new(compiles_max.max(1)),
            under_way: Mutex::default(),
            failed: Cache::builder().time_to_live(RETRY_AFTER).max_capacity(FAILURES_MAX).build(),
            stop: stop.clone(),
        });
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Have the artefact of a deployed component made, and wait for it. Dropping the future does not stop that.
    pub(crate) async fn compile(&self, digest: ContentHash, kind: FunctionKind) -> Outcome {
        let shared = &self.shared;
        let mut end = {
            let mut under_way = shared.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            match under_way.get(&digest) {
                Some(end) => end.clone(),
                None => {
                    if let Some(error) = shared.failed.get(&digest) {
                        return Err(error);
                    }
                    let (sender, end) = watch::channel(None);
                    under_way.insert(digest, end.clone());
                    let flight = Flight { shared: shared.clone(), digest };
                    tokio::spawn(async move { sender.send_replace(Some(flight.fly(kind).await)) });
                    end
                }
            }
        };
        let outcome = end.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(CompileError::new(ErrorCode::Internal, "the compilation was cut off")))
    }

    /// The component was deployed again: what kept it from being compiled may be gone.
    pub(crate) fn forgive(&self, digest: ContentHash) {
        self.shared.failed.invalidate(&digest);
    }
}

/// One compilation. It is under way until this drops.
struct Flight {
    shared: Arc<Shared>,
    digest: ContentHash,
}

impl Flight {
    async fn fly(self, kind: FunctionKind) -> Outcome {
        let stopping = || CompileError::new(ErrorCode::Unavailable, "the node is shutting down");
        let outcome = tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => return Err(stopping()),
            outcome = self.compile(kind) => outcome,
        };
        if let Err(error) = &outcome {
            tracing::error!(digest = %self.digest, %error, "a deployed component cannot be compiled again");
            self.shared.failed.insert(self.digest, error.clone());
        }
        outcome
    }

    async fn compile(&self, kind: FunctionKind) -> Outcome {
        let Shared { components, blobs, metrics, turns, .. } = &*self.shared;
        let _turn = turns.acquire().await;
        // Who comes late finds what the one before has made.
        if components.try_out(self.digest, kind).await.is_ok() {
            return Ok(());
        }
        tracing::info!(digest = %self.digest, "there is no usable artefact of a deployed component: compiling it");
        metrics.cold_start(ColdStart::Compile);
        let started = Instant::now();
        let component = blobs.fetch(self.digest).await.map_err(|error| {
            CompileError::new(ErrorCode::Unavailable, format!("the component cannot be had: {error}"))
        })?;
        components.compile(self.digest, &component).await?;
        metrics.phase(Phase::Compile, started.elapsed());
        components.try_out(self.digest, kind).await.map_err(|error| CompileError::unfit(&error))?;
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.digest);
    }
}
