//! Held tensors.

use super::{Brought, TensorStoreShared};
use crate::cuda::memory::Span;
use crate::cuda::stream::Stream;
use crate::cuda::transfer::TransferError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A tensor that stays in place until this handle drops. Drop it once no work uses the tensor any
/// more.
pub struct TensorGuard {
    store: Arc<TensorStoreShared>,
    id: u64,
    span: Span,
    brought: Brought,
}

impl TensorGuard {
    pub(super) fn new(store: &Arc<TensorStoreShared>, id: u64, span: Span, brought: Brought) -> Self {
        Self { store: store.clone(), id, span, brought }
    }

    /// The tensor's place in device memory. The bytes are valid on a stream after
    /// [`order`](Self::order) was called with that stream, and everywhere after
    /// [`TensorGuard::wait`].
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Makes `stream` wait until the tensor has arrived, with its group and all earlier groups.
    /// Returns once the last block has been given to the device. Nearly free for a tensor that has
    /// already arrived.
    pub fn order(&self, stream: &Stream) -> Result<(), TransferError> {
        match self.brought.load.transfer.get() {
            Some(transfer) => transfer.order(self.brought.group, stream),
            None => Err(TransferError::Stopped),
        }
    }

    /// Whether waiting for `other` implies waiting for this tensor: both arrive with the same
    /// transfer, this one no later.
    #[must_use]
    pub fn comes_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.brought.load, &other.brought.load) && self.brought.group <= other.brought.group
    }

    /// Whether the tensor and all tensors requested with it have arrived. An error means that they
    /// never will.
    pub fn is_there(&self) -> Result<bool, TransferError> {
        match self.brought.load.transfer.get().map(|transfer| transfer.end()) {
            Some(None) => Ok(false),
            Some(Some(end)) => end.map(|()| true),
            None => Err(TransferError::Stopped),
        }
    }

    /// Time of arrival of the tensor and all tensors requested with it; `None` while they are being
    /// transferred.
    #[must_use]
    pub fn arrived_at(&self) -> Option<Instant> {
        self.brought.load.transfer.get()?.ended_at()
    }

    /// Marks the contents as wrong: later requests get neither this tensor nor those requested with
    /// it, and its memory is freed with the last holder.
    pub fn condemn(&self) {
        self.brought.load.condemn();
    }

    /// Waits until all tensors that were requested together have arrived.
    pub fn wait(&self) -> Result<(), TransferError> {
        match self.brought.load.transfer.get() {
            Some(transfer) => transfer.wait(),
            None => Err(TransferError::Stopped),
        }
    }
}

impl fmt::Debug for TensorGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("id", &self.id).field("span", &self.span).finish_non_exhaustive()
    }
}

impl Drop for TensorGuard {
    fn drop(&mut self) {
        self.store.state().release(self.id);
    }
}
