//! Device-resident outputs of a tenant, as seen by the node.

use super::message::{GpuWorkerReply, GpuWorkerRequest};
use super::release::Gone;
use super::{CALL_TIME_MAX, DeviceWorker};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weir_device::{Arena, Buffer};
use weir_inference::{DeviceMemory, HandedOver, InferenceError, Interrupt};
use weir_types::TenantId;

/// Access to the device-resident tensors of one tenant in a worker.
pub(super) struct WorkerMemory {
    pub(super) worker: Arc<DeviceWorker>,
    pub(super) tenant: TenantId,
    /// Arena for fetched tensors.
    pub(super) arena: Arena,
}

/// Counters of device-resident tensors, across all workers of a device.
#[derive(Debug, Default)]
pub(crate) struct HandOvers {
    kept: AtomicU64,
    kept_bytes: AtomicU64,
    on_device_bytes: AtomicU64,
    by_sibling_bytes: AtomicU64,
    spilled_to_sibling_bytes: AtomicU64,
    spilled_to_host_bytes: AtomicU64,
    through_host_bytes: AtomicU64,
}

impl HandOvers {
    /// Returns the current counts.
    pub(super) fn counted(&self) -> HandedOver {
        HandedOver {
            kept: self.kept.load(Relaxed),
            kept_bytes: self.kept_bytes.load(Relaxed),
            on_device_bytes: self.on_device_bytes.load(Relaxed),
            by_sibling_bytes: self.by_sibling_bytes.load(Relaxed),
            spilled_to_sibling_bytes: self.spilled_to_sibling_bytes.load(Relaxed),
            spilled_to_host_bytes: self.spilled_to_host_bytes.load(Relaxed),
            through_host_bytes: self.through_host_bytes.load(Relaxed),
        }
    }

    /// Counts a tensor that stays on the device.
    pub(super) fn kept(&self, bytes: u64) {
        self.kept.fetch_add(1, Relaxed);
        self.kept_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the release of a tensor.
    pub(super) fn gone(&self, bytes: u64) {
        self.kept.fetch_sub(1, Relaxed);
        self.kept_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Counts the bytes that a run read on the device, and the bytes that it read from the host
    /// because they had been spilled.
    pub(super) fn read(&self, on_device_bytes: u64, through_host_bytes: u64) {
        self.on_device_bytes.fetch_add(on_device_bytes, Relaxed);
        self.through_host_bytes.fetch_add(through_host_bytes, Relaxed);
    }

    /// Counts the bytes that a run on another device read in place.
    pub(super) fn read_by_sibling(&self, bytes: u64) {
        self.by_sibling_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the bytes that were spilled to a peer device.
    pub(super) fn spilled_to_sibling(&self, bytes: u64) {
        self.spilled_to_sibling_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the bytes that were spilled to the host.
    pub(super) fn spilled_to_host(&self, bytes: u64) {
        self.spilled_to_host_bytes.fetch_add(bytes, Relaxed);
    }
}

impl WorkerMemory {
    fn take(&self, tensor: u64, bytes: u64) -> Result<Buffer, InferenceError> {
        let Self { worker, tenant, arena } = self;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut buffer = arena.buffer(len)?;
        let wanted = Interrupt::default();
        let mut line = worker.line(&wanted)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        connection.settle(&wanted).map_err(|error| worker.failed(error))?;
        let request = GpuWorkerRequest::Fetch { tensor, tenant: tenant.clone() };
        let answered = connection.call(&request, &mut (), CALL_TIME_MAX, &wanted);
        match worker.understand(answered)? {
            GpuWorkerReply::Fetched { bytes: there } if there == bytes => {}
            answer => return Err(worker.senseless(&answer)),
        }
        let read = connection.memory.read_exact_at(&mut buffer, 0);
        read.map_err(|error| InferenceError::Run(format!("a tensor cannot be read: {error}").into()))?;
        worker.config.hand_overs.read(0, bytes);
        Ok(buffer.freeze())
    }
}

impl DeviceMemory for WorkerMemory {
    fn fetch(&self, number: u64, bytes: u64) -> Result<Buffer, InferenceError> {
        self.take(number, bytes).map_err(|error| match error {
            // The loss of a worker says nothing about the device, which may already have a new
            // worker.
            InferenceError::DeviceLost(why) => InferenceError::TensorLost(why),
            error => error,
        })
    }

    fn let_go(&self, number: u64, bytes: u64) {
        self.worker.note_gone(number);
        self.worker.let_go.tell(Gone::Unused { number, bytes });
    }
}
