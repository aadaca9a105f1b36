//! A tensor that one worker has, and that of another device reads where it lies.

use super::files::Reserved;
use super::let_go::Gone;
use super::message::{Answer, Exported, Place, Request};
use super::{CALL_TIME_MAX, Worker, WorkerConfig};
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use weir_types::{Shape, TenantId};

/// A tensor that its worker keeps where it is until this drops.
pub(super) struct Export {
    /// Weak: what one worker still owes may hold what another has, and the other way round.
    worker: Weak<Worker>,
    config: Arc<WorkerConfig>,
    /// What the worker knows it by.
    number: u64,
    place: Place,
    /// The blocks that it lies in, until they are sent.
    blocks: Option<Blocks>,
}

/// Open files.
struct Blocks {
    files: Vec<OwnedFd>,
    _reserved: Reserved,
}

impl Export {
    /// Have a tensor of `tenant` kept where it is. None where it is no longer on the device, or in more blocks than were reserved. Blocks for a moment.
    pub(super) fn begin(
        worker: &Arc<Worker>,
        tensor: u64,
        tenant: &TenantId,
        reserved: Reserved,
    ) -> Result<Option<Self>, InferenceError> {
        let (wanted, number) = (Interrupt::default(), worker.number());
        let mut line = worker.line(&wanted)?;
        let connection = line.connection().map_err(|error| worker.failed(error))?;
        connection.settle(&wanted).map_err(|error| worker.failed(error))?;
        let blocks_max = reserved.count;
        let request = Request::Export { tensor, tenant: tenant.clone(), export: number, blocks_max };
        let answered = connection.call(&request, None, CALL_TIME_MAX, &wanted);
        match worker.understand(answered)? {
            Answer::Exported(place) if place.blocks <= blocks_max => {
                // From now on there is something to let go of.
                let (weak, config) = (Arc::downgrade(worker), Arc::clone(&worker.config));
                let mut export = Self { worker: weak, config, number, place, blocks: None };
                let files = connection.receive_files(place.blocks).map_err(|error| worker.failed(error))?;
                Ok(files.map(|files| {
                    export.blocks = Some(Blocks { files, _reserved: reserved });
                    export
                }))
            }
            Answer::NotExported { why } => {
                tracing::debug!(device = %worker.config.device(), why, "a tensor is not read where it lies");
                Ok(None)
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    /// What the worker that reads it is told.
    pub(super) fn told(&self, shape: &Shape) -> Exported {
        Exported { ordinal: self.config.gpu.ordinal, shape: shape.clone(), place: self.place }
    }

    /// What goes to that worker behind the message.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.blocks.iter().flat_map(|blocks| &blocks.files).map(AsFd::as_fd)
    }

    /// They have been sent.
    pub(super) fn close_blocks(&mut self) {
        self.blocks = None;
    }

    /// It has been read, by a run that has ended well.
    pub(super) fn note_read(&self) {
        self.config.hand_overs.read_by_sibling(self.place.bytes);
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // One that nobody has any more has ended, and keeps nothing.
        if let Some(worker) = self.worker.upgrade() {
            worker.let_go.tell(Gone::Read { export: self.number });
        }
    }
}
