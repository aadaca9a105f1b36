//! Starts and restarts of a worker.

use super::{Worker, WorkersShared};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tracing::info;
use weir_inference::InferenceError;
use weir_types::TenantId;
use weir_worker::Restarts;

/// The worker of a tenant or of one suspect model: a process that the next load or run starts if it
/// is not running. The process ends when the last reference is dropped.
pub(super) struct WorkerHost {
    shared: Arc<WorkersShared>,
    tenant: TenantId,
    state: Mutex<WorkerHostState>,
}

#[derive(Default)]
struct WorkerHostState {
    worker: Option<Arc<Worker>>,
    restarts: Restarts,
}

impl WorkerHost {
    pub(super) fn new(shared: &Arc<WorkersShared>, tenant: TenantId) -> Self {
        Self { shared: shared.clone(), tenant, state: Mutex::default() }
    }

    /// The running worker. Starts one if there is none, with exponential backoff while workers end
    /// without a successful run. Blocks.
    pub(super) fn worker(&self) -> Result<Arc<Worker>, InferenceError> {
        let mut state = self.state.lock();
        if let Some(worker) = state.worker.take() {
            if !worker.has_ended() {
                state.worker = Some(worker.clone());
                return Ok(worker);
            }
            if worker.has_worked.load(Ordering::Relaxed) {
                state.restarts.worked();
            }
            state.restarts.died(Instant::now());
        }
        if let Some(wait) = state.restarts.wait(Instant::now()) {
            let why = format!(
                "it has ended again and again, and is not started within {} ms",
                wait.as_millis().max(1)
            );
            return Err(InferenceError::WorkerLost(why.into()));
        }
        let worker =
            Worker::start(&self.shared, &self.tenant).inspect_err(|_| state.restarts.died(Instant::now()))?;
        info!(tenant = %self.tenant, "model worker started");
        state.worker = Some(worker.clone());
        Ok(worker)
    }

    /// The worker, if it is running.
    pub(super) fn running(&self) -> Option<Arc<Worker>> {
        self.state.lock().worker.clone().filter(|worker| !worker.has_ended())
    }
}
