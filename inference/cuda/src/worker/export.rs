//! Export of a tensor of one worker, which the worker of another device reads in place.

use super::files::FileReservation;
use super::message::{ExportedInput, GpuWorkerReply, GpuWorkerRequest, TensorRange};
use super::release::Gone;
use super::{CALL_TIME_MAX, DeviceWorker, WorkerConfig};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use weir_inference::{InferenceError, Interrupt};
use weir_types::{Shape, TenantId};

/// Tensor that its worker keeps in place until the export drops.
pub(super) struct Export {
    /// Weak, because pending replies of two workers can hold exports of each other.
    worker: Weak<DeviceWorker>,
    config: Arc<WorkerConfig>,
    /// Number of the export in the worker.
    number: u64,
    place: TensorRange,
    /// Memory blocks of the tensor, until they are sent.
    blocks: Option<Blocks>,
}

/// Open files of memory blocks.
struct Blocks {
    files: Vec<OwnedFd>,
    _reserved: FileReservation,
}

impl Export {
    /// Exports a tensor of `tenant`. Returns `None` if the tensor is no longer on the device, or
    /// has more blocks than reserved. Blocks briefly.
    pub(super) fn begin(
        worker: &Arc<DeviceWorker>,
        tensor: u64,
        tenant: &TenantId,
        reserved: FileReservation,
    ) -> Result<Option<Self>, InferenceError> {
        let wanted = Interrupt::default();
        let number = worker.number();
        let mut line = worker.line(&wanted)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        connection.settle(&wanted).map_err(|error| worker.failed(error))?;
        let blocks_max = reserved.count;
        let request = GpuWorkerRequest::Export { tensor, tenant: tenant.clone(), export: number, blocks_max };
        let answered = connection.call(&request, &mut (), CALL_TIME_MAX, &wanted);
        match worker.understand(answered)? {
            GpuWorkerReply::Exported(place) if place.blocks <= blocks_max => {
                // From now on, dropping the export releases it in the worker.
                let weak = Arc::downgrade(worker);
                let config = worker.config.clone();
                let mut export = Self { worker: weak, config, number, place, blocks: None };
                let files = connection.receive_files(place.blocks).map_err(|error| worker.failed(error))?;
                Ok(files.map(|files| {
                    export.blocks = Some(Blocks { files, _reserved: reserved });
                    export
                }))
            }
            GpuWorkerReply::NotExported { why } => {
                tracing::debug!(device = %worker.config.device(), why, "peer read of a tensor failed: the tensor passes through the host");
                Ok(None)
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    /// Returns the description of the tensor for the worker that reads it.
    pub(super) fn told(&self, shape: &Shape) -> ExportedInput {
        ExportedInput { ordinal: self.config.gpu.ordinal, shape: shape.clone(), place: self.place }
    }

    /// Returns the files to send after the message.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.blocks.iter().flat_map(|blocks| &blocks.files).map(AsFd::as_fd)
    }

    /// Closes the files after they were sent.
    pub(super) fn close_blocks(&mut self) {
        self.blocks = None;
    }

    /// Records a read by a successful run.
    pub(super) fn note_read(&self) {
        self.config.hand_overs.read_by_sibling(self.place.bytes);
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A worker that no longer exists has released everything.
        if let Some(worker) = self.worker.upgrade() {
            worker.let_go.tell(Gone::Read { export: self.number });
        }
    }
}
