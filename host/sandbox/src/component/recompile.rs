//! Recompiles components for waiting calls, after an upgrade of Weir or the loss of an artefact.
//!
//! A component is compiled once, even if many calls wait for it. The compilation continues when the
//! waiting calls run out of time, so that a later call finds the artefact. It ends at its limits or
//! with the node. A failed compilation is not retried for a while.

use super::Components;
use super::compile::CompileError;
use moka::sync::Cache;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_storage::blobs::{BlobError, Blobs};
use weir_telemetry::{ColdStart, Metrics, Phase};
use weir_types::{ContentHash, ErrorCode, FunctionKind};

/// The time before a failed compilation is retried.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// The number of failures remembered.
const FAILURES_MAX: u64 = 10_000;

/// Compiles components on behalf of calls. Dropping this aborts the compilations.
pub struct Recompiler {
    shared: Arc<RecompileShared>,
    _stop: DropGuard,
}

struct RecompileShared {
    components: Arc<Components>,
    blobs: Blobs,
    metrics: Arc<Metrics>,
    /// Bounds the number of concurrent compilations.
    turns: Semaphore,
    under_way: Mutex<HashMap<ContentHash, watch::Receiver<Option<RecompileResult>>>>,
    failed: Cache<ContentHash, CompileError>,
    stop: CancellationToken,
}

type RecompileResult = Result<(), CompileError>;

impl Recompiler {
    /// Creates a recompiler that runs at most `compiles_max` compilations at once.
    pub fn new(
        components: Arc<Components>,
        blobs: Blobs,
        metrics: Arc<Metrics>,
        compiles_max: usize,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = Arc::new(RecompileShared {
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

    /// Compiles a deployed component and waits for the artefact. Dropping the future does not stop
    /// the compilation.
    pub async fn compile(&self, digest: ContentHash, kind: FunctionKind) -> RecompileResult {
        let shared = &self.shared;
        let mut end = {
            let mut under_way = shared.under_way.lock();
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

    /// Clears a remembered failure: the component was deployed again, which may have removed the
    /// cause.
    pub fn forgive(&self, digest: ContentHash) {
        self.shared.failed.invalidate(&digest);
    }
}

/// One compilation, in progress until this is dropped.
struct Flight {
    shared: Arc<RecompileShared>,
    digest: ContentHash,
}

impl Flight {
    async fn fly(self, kind: FunctionKind) -> RecompileResult {
        let stopping = || CompileError::new(ErrorCode::Unavailable, "the node is shutting down");
        let outcome = tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => return Err(stopping()),
            outcome = self.compile(kind) => outcome,
        };
        if let Err(error) = &outcome {
            tracing::error!(digest = %self.digest, %error, "recompiling a deployed component failed");
            self.shared.failed.insert(self.digest, error.clone());
        }
        outcome
    }

    async fn compile(&self, kind: FunctionKind) -> RecompileResult {
        let RecompileShared { components, blobs, metrics, turns, .. } = &*self.shared;
        let _turn = turns.acquire().await;
        // An earlier compilation may have made the artefact meanwhile.
        if components.try_out(self.digest, kind).await.is_ok() {
            return Ok(());
        }
        tracing::info!(digest = %self.digest, "no usable artefact of a deployed component: recompiling it");
        metrics.cold_start(ColdStart::Compile);
        let started = Instant::now();
        // Only the deployed component may be compiled, not a file that was changed since.
        let component = blobs.fetch_verified(self.digest).await.map_err(|error| {
            let code = match &error {
                BlobError::Damaged(_) => ErrorCode::ComponentDamaged,
                BlobError::DiskFull(_) => ErrorCode::DiskFull,
                _ => ErrorCode::Unavailable,
            };
            CompileError::new(code, format!("the component cannot be read: {error}"))
        })?;
        let compiled = components.compile(self.digest, &component).await?;
        metrics.phase(Phase::Compile, started.elapsed());
        metrics.compiled_with_cache(compiled.cache.hits, compiled.cache.misses);
        components.try_out(self.digest, kind).await.map_err(|error| CompileError::unfit(&error))?;
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.under_way.lock().remove(&self.digest);
    }
}
