//! Kernel graphs: user-supplied kernels, run in separate worker processes.
//!
//! ```text
//!   upload ──Preparer──► checked PTX        NVRTC compiles CUDA C in a limited child
//!   device's cache ──► GraphWorker          the tenant's process, with a separate context
//!   run ──socket──► plan, copies, launches  tensors in memory shared by both processes
//! ```
//!
//! A kernel can access everything in its context. Therefore each tenant has a separate context on
//! each device, in a process that is killed when a kernel faults or times out. The next call
//! restarts the process. A worker also ends when its last graph is unloaded (graphs are unloaded
//! when idle), or when the node ends. A tenant's runs on a device are sequential.

pub(crate) mod message;
mod process;

mod worker;
pub(crate) use worker::GraphWorker;

mod loaded;
mod model;

mod runner;
mod serve;
#[cfg(test)]
mod tests;
pub use serve::{WORKER_COMMAND, worker_main};

mod compile;
mod prepare;
pub use compile::{COMPILE_COMMAND, compile_main};
pub use prepare::store;
pub use prepare::{KernelGraphPreparer, KernelGraphPreparerConfig};

use crate::captured::CaptureFailures;
use model::KernelGraphModel;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_device::{Arena, Device};
use weir_inference::{Footprint, InferenceError, Model, ModelSource, SharedPart};
use weir_types::{ContentHash, TenantId};

/// Configuration of kernel graphs on a device.
#[derive(Debug, Clone)]
pub struct KernelGraphConfig {
    /// Maximum device memory for the buffers of one tenant's runs, in bytes.
    pub memory_bytes_max: u64,
    /// Device memory of a worker's context in bytes, which is charged to its tenant.
    pub context_bytes: u64,
    /// Maximum time of a run.
    pub run_time_max: Duration,
    /// Worker program and its arguments. `None`: this executable with [`WORKER_COMMAND`].
    pub command: Option<(PathBuf, Vec<OsString>)>,
}

/// Workers of one device, by tenant.
pub struct KernelGraphs {
    config: Arc<KernelGraphConfig>,
    driver: PathBuf,
    ordinal: u32,
    arena: Arena,
    capture_failures: CaptureFailures,
    workers: Mutex<HashMap<TenantId, Weak<GraphWorker>>>,
}

impl KernelGraphs {
    /// Creates an empty table of workers for device `ordinal` of the CUDA driver library at
    /// `driver`. Starts no worker process: the first run of a tenant's graph does.
    pub fn new(config: KernelGraphConfig, driver: PathBuf, ordinal: u32, arena: Arena) -> Self {
        let capture_failures = CaptureFailures::new(Device::Cuda { ordinal });
        Self { config: Arc::new(config), driver, ordinal, arena, capture_failures, workers: Mutex::default() }
    }

    /// Loads a graph. Its first run starts the worker.
    pub fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        let worker = self.worker(&source.id().tenant);
        let arena = self.arena.tenant(&source.id().tenant);
        let failures = self.capture_failures.clone();
        Ok(Box::new(KernelGraphModel::load(worker, source, self.footprint(source), arena, failures)?))
    }

    /// Returns the device memory of a graph: its constants and code, and the tenant's worker, which
    /// all graphs of the tenant share.
    pub(crate) fn footprint(&self, source: &ModelSource) -> Footprint {
        let tenant = &source.id().tenant;
        let hash = ContentHash::from_content(format!("the worker for kernels of {tenant}").as_bytes());
        Footprint::new(
            source.prepared.weight_bytes,
            [(SharedPart { hash, family: None }, self.worker_bytes())],
        )
    }

    /// Returns the device memory of the workers of all tenants with loaded graphs, as in the
    /// graphs' footprints.
    pub(crate) fn workers_bytes(&self) -> u64 {
        let workers = self.workers.lock();
        let count = workers.values().filter(|worker| worker.strong_count() > 0).count();
        self.worker_bytes().saturating_mul(count as u64)
    }

    fn worker_bytes(&self) -> u64 {
        self.config.context_bytes.saturating_add(self.config.memory_bytes_max)
    }

    /// Returns the number of runs that could not be captured as CUDA graphs.
    pub(crate) fn capture_failures(&self) -> u64 {
        self.capture_failures.count()
    }

    fn worker(&self, tenant: &TenantId) -> Arc<GraphWorker> {
        let mut workers = self.workers.lock();
        if let Some(worker) = workers.get(tenant).and_then(Weak::upgrade) {
            return worker;
        }
        workers.retain(|_, worker| worker.strong_count() > 0);
        let worker = Arc::new(GraphWorker::new(
            self.config.clone(),
            self.driver.clone(),
            self.ordinal,
            tenant.clone(),
            self.arena.bytes_max(),
        ));
        workers.insert(tenant.clone(), Arc::downgrade(&worker));
        worker
    }
}
