//! Kernels that users bring, run in processes of their own.
//!
//! ```text
//!   upload ──Preparer──► PTX, checked             NVRTC, in a limited child, where there is CUDA C
//!   a graph in the cache of the device ──► its tenant's Worker: a process with a context of its own
//!   run ──socket──► plan, copies, launches        tensors in memory that both processes have
//! ```
//!
//! A kernel may do anything with what is in its context: so each tenant has one of its own on each device, in a process that is killed when a
//! kernel faults or does not end, and started anew by the next call. What ends a worker besides: nobody holds one of its graphs any more (they are
//! unloaded when nobody has called them for a while), or the node ends. A tenant's runs on a device are one after the other.

mod message;
mod process;

mod worker;
pub(crate) use worker::Worker;

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
pub(super) use prepare::store;
pub use prepare::{KernelGraphPreparer, KernelGraphPreparerConfig};

use super::captured::CaptureFailures;
use crate::backend::{Model, ModelSource};
use crate::error::InferenceError;
use crate::footprint::{Footprint, Part};
use model::KernelGraphModel;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use weir_device::{Arena, Device};
use weir_types::{ContentHash, TenantId};

/// How users' kernels run on a device.
#[derive(Debug, Clone)]
pub struct KernelGraphConfig {
    /// The memory of a device that the buffers of one tenant's runs may take.
    pub memory_bytes_max: u64,
    /// What the context of a worker takes of the device, for the account of its tenant.
    pub context_bytes: u64,
    /// How long a run may take.
    pub run_time_max: Duration,
    /// The program that is a worker, and its arguments; none for this same program with [`WORKER_COMMAND`].
    pub command: Option<(PathBuf, Vec<OsString>)>,
}

/// The workers of one device, by tenant.
pub(super) struct KernelGraphs {
    config: Arc<KernelGraphConfig>,
    driver: PathBuf,
    ordinal: u32,
    arena: Arena,
    capture_failures: CaptureFailures,
    workers: Mutex<HashMap<TenantId, Weak<Worker>>>,
}

impl KernelGraphs {
    /// For a device of that driver. Nothing is started.
    pub(super) fn new(config: KernelGraphConfig, driver: PathBuf, ordinal: u32, arena: Arena) -> Self {
        let capture_failures = CaptureFailures::new(Device::Cuda { ordinal });
        Self { config: Arc::new(config), driver, ordinal, arena, capture_failures, workers: Mutex::default() }
    }

    /// Have a graph at hand. Its worker is started by its first run.
    pub(super) fn load(&self, source: &ModelSource) -> Result<Box<dyn Model>, InferenceError> {
        let worker = self.worker(&source.id().tenant);
        let (arena, failures) = (self.arena.clone(), self.capture_failures.clone());
        Ok(Box::new(KernelGraphModel::load(worker, source, self.footprint(source), arena, failures)?))
    }

    /// What a graph takes of the device: its constants and code, and what its tenant's worker takes, once for all of its graphs.
    pub(super) fn footprint(&self, source: &ModelSource) -> Footprint {
        let tenant = &source.id().tenant;
        let hash = ContentHash::of(format!("the worker for kernels of {tenant}").as_bytes());
        Footprint::new(source.prepared.weight_bytes, [(Part { hash, family: None }, self.worker_bytes())])
    }

    /// What the workers of tenants that have graphs here take, by their graphs' footprints.
    pub(super) fn workers_bytes(&self) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = workers.values().filter(|worker| worker.strong_count() > 0).count();
        self.worker_bytes().saturating_mul(count as u64)
    }

    fn worker_bytes(&self) -> u64 {
        self.config.context_bytes.saturating_add(self.config.memory_bytes_max)
    }

    /// Runs that were to be captured as CUDA graphs, and were not.
    pub(super) fn capture_failures(&self) -> u64 {
        self.capture_failures.count()
    }

    fn worker(&self, tenant: &TenantId) -> Arc<Worker> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = workers.get(tenant).and_then(Weak::upgrade) {
            return worker;
        }
        workers.retain(|_, worker| worker.strong_count() > 0);
        let worker = Arc::new(Worker::new(
            Arc::clone(&self.config),
            self.driver.clone(),
            self.ordinal,
            tenant.clone(),
        ));
        workers.insert(tenant.clone(), Arc::downgrade(&worker));
        worker
    }
}
