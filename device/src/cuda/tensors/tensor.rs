//! A tensor, held.

use super::{Brought, Shared};
use crate::cuda::memory::Span;
use crate::cuda::stream::Stream;
use crate::cuda::transfer::TransferError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A tensor that stays where it is until this is dropped, which happens when no work that uses it is left.
pub struct Tensor {
    store: Arc<Shared>,
    id: u64,
    span: Span,
    brought: Brought,
}

impl Tensor {
    pub(super) fn new(store: &Arc<Shared>, id: u64, span: Span, brought: Brought) -> Self {
        Self { store: Arc::clone(store), id, span, brought }
    }

    /// Where it is; its bytes are there once a stream was [ordered](Self::order), or somebody has [waited](Self::wait).
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Make `stream` wait until the tensor is there, and so is everything in its group and those before it. Returns once the last of it has been given to the
    /// device. For a tensor that is there already it costs next to nothing.
    pub fn order(&self, stream: &Stream) -> Result<(), TransferError> {
        match self.brought.load.transfer.get() {
            Some(transfer) => transfer.order(self.brought.group, stream),
            None => Err(TransferError::Stopped),
        }
    }

    /// Whether whoever waits for `other` has waited for this one, too: they came with the same transfer, this one no later.
    #[must_use]
    pub fn comes_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.brought.load, &other.brought.load) && self.brought.group <= other.brought.group
    }

    /// Whether it is there, and all that was asked for together with it. An error says that it never will be.
    pub fn is_there(&self) -> Result<bool, TransferError> {
        match self.brought.load.transfer.get().map(|transfer| transfer.end()) {
            Some(None) => Ok(false),
            Some(Some(end)) => end.map(|()| true),
            None => Err(TransferError::Stopped),
        }
    }

    /// Since when it is there, and all that was asked for together with it; none while they are on their way.
    #[must_use]
    pub fn arrived_at(&self) -> Option<Instant> {
        self.brought.load.transfer.get()?.ended_at()
    }

    /// What was brought is not what it is known by: nobody who asks for it from now on gets it, nor what was asked for together with it, and its memory goes
    /// with whoever holds it last.
    pub fn condemn(&self) {
        self.brought.load.condemn();
    }

    /// Wait until everything that was asked for together with it is there.
    pub fn wait(&self) -> Result<(), TransferError> {
        match self.brought.load.transfer.get() {
            Some(transfer) => transfer.wait(),
            None => Err(TransferError::Stopped),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("id", &self.id).field("span", &self.span).finish_non_exhaustive()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.store.state().release(self.id);
    }
}
