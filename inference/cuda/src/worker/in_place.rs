//! Inputs of a run that the worker reads where they are.

use super::export::Export;
use weir_inference::Tensor;

use std::os::fd::BorrowedFd;

/// Memory that a worker reads in place for a request. It must not change until the reply.
#[derive(Default)]
pub(super) struct InPlace {
    /// Tensors in the arena.
    pub(super) here: Vec<Tensor>,
    /// Tensors on other devices.
    pub(super) exports: Vec<Export>,
}

impl weir_worker::InPlaceInputs for InPlace {
    fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.exports.iter().flat_map(Export::blocks).collect()
    }

    fn close_files(&mut self) {
        self.exports.iter_mut().for_each(Export::close_blocks);
    }
}
