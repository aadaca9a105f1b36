//! Restarts of a device's worker.

use super::message::Opened;
use super::{DeviceWorker, WorkerConfig};
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::info;
use weir_inference::{HandedOver, InferenceError, LossHook};
use weir_worker::{Restarts, wait_for_end};

/// Maximum time to wait for the device memory of the former worker, before the next worker starts.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// Supervisor of a device's worker.
pub(crate) struct Supervisor(Arc<SupervisorShared>);

struct SupervisorShared {
    config: Arc<WorkerConfig>,
    state: Mutex<SupervisorState>,
    /// Hook that is called when the process of the current worker ends, even without a request.
    tell: OnceLock<LossHook>,
}

#[derive(Default)]
struct SupervisorState {
    /// `None` from the end of a worker until the next worker has started.
    worker: Option<Arc<DeviceWorker>>,
    restarts: Restarts,
}

impl Supervisor {
    /// Starts the first worker, and returns its description of the device. Blocks.
    pub(crate) fn start(config: WorkerConfig) -> Result<(Self, Opened), InferenceError> {
        let config = Arc::new(config);
        let state = Mutex::default();
        let tell = OnceLock::new();
        let shared = Arc::new(SupervisorShared { config, state, tell });
        let device = shared.start()?;
        Ok((Self(shared), device))
    }

    /// Returns the current worker.
    pub(crate) fn worker(&self) -> Result<Arc<DeviceWorker>, InferenceError> {
        let none = || self.0.lost("its worker is being restarted");
        self.0.state.lock().worker.clone().ok_or_else(none)
    }

    /// Returns the counters of device-resident tensors.
    pub(crate) fn handed_over(&self) -> HandedOver {
        self.0.config.hand_overs.counted()
    }

    /// Sets the hook that is called from a dedicated thread when a worker has ended.
    pub(crate) fn on_loss(&self, tell: LossHook) {
        // The hook is set only once.
        let _ = self.0.tell.set(tell);
    }

    /// Ends the worker and starts the next one: immediately if the worker has completed a run,
    /// otherwise with exponential backoff. Blocks. Only one thread may call it at a time.
    pub(crate) fn restart(&self) -> Result<(), InferenceError> {
        let shared = &*self.0;
        let former = shared.state.lock().worker.take();
        if let Some(former) = former {
            former.end("it is being restarted");
            former.wait_for_end(END_TIME_MAX);
            let mut state = shared.state.lock();
            if former.has_worked() {
                state.restarts.worked();
            }
            state.restarts.died(Instant::now());
        }
        if let Some(wait) = shared.state.lock().restarts.wait(Instant::now()) {
            let wait_ms = wait.as_millis();
            let why = format!("its worker has ended again and again, and is not started within {wait_ms} ms");
            return Err(shared.lost(&why));
        }
        self.0.start().inspect_err(|_| shared.state.lock().restarts.died(Instant::now()))?;
        info!(device = %shared.config.device(), "device worker restarted");
        Ok(())
    }
}

impl SupervisorShared {
    fn start(self: &Arc<Self>) -> Result<Opened, InferenceError> {
        let (worker, device) = DeviceWorker::start(&self.config)?;
        self.watch(&worker).map_err(|error| self.lost(&format!("its worker cannot be watched: {error}")))?;
        self.state.lock().worker = Some(worker);
        Ok(device)
    }

    /// Watches for the end of a worker. The thread ends with the worker's process.
    fn watch(self: &Arc<Self>, worker: &Arc<DeviceWorker>) -> io::Result<()> {
        let shared = Arc::downgrade(self);
        let watched = Arc::downgrade(worker);
        let control = worker.control.watched()?;
        let watch = move || {
            wait_for_end(&control);
            let (Some(shared), Some(worker)) = (shared.upgrade(), watched.upgrade()) else { return };
            let error = worker.has_ended();
            // Called under the lock, so that the report precedes the start of the next worker.
            let state = shared.state.lock();
            let is_current = state.worker.as_ref().is_some_and(|current| Arc::ptr_eq(current, &worker));
            if let Some(tell) = shared.tell.get().filter(|_| is_current) {
                tell(&error);
            }
        };
        let name = format!("weir-{}-end", self.config.device());
        std::thread::Builder::new().name(name).stack_size(256 << 10).spawn(watch)?;
        Ok(())
    }

    fn lost(&self, why: &str) -> InferenceError {
        InferenceError::DeviceLost(format!("{}: {why}", self.config.device()).into())
    }
}
