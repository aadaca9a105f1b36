//! Pinned intermediates.

use super::{CommShared, IntermediateTier};
use crate::Buffer;
use crate::cuda::error::CudaError;
use crate::cuda::memory::{ExportedMemory, Span};
use crate::cuda::stream::Stream;
use std::fmt;
use std::sync::Arc;

/// An intermediate that is not moved until this guard drops. Drop it once no work uses the
/// intermediate any more.
pub struct IntermediateGuard {
    store: Arc<CommShared>,
    number: u64,
    tier: IntermediateTier,
}

/// Place of an intermediate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntermediatePlace {
    /// On the device of the store, to be read in place.
    Device(Span),
    /// On the host.
    Host(Buffer),
}

impl IntermediateGuard {
    pub(super) fn new(store: &Arc<CommShared>, number: u64, tier: IntermediateTier) -> Self {
        Self { store: store.clone(), number, tier }
    }

    /// Current place. On the device, a stream can read it after [`order`](Self::order).
    #[must_use]
    pub fn place(&self) -> IntermediatePlace {
        match &self.tier {
            IntermediateTier::Device { span, .. } => IntermediatePlace::Device(*span),
            IntermediateTier::Host(buffer) => IntermediatePlace::Host(buffer.clone()),
        }
    }

    /// The blocks of the intermediate, for the process of another device, which may read them while
    /// this guard lives; `None` if it is on the host. Waits until the intermediate has been
    /// written.
    pub fn export(&self) -> Result<Option<ExportedMemory>, CudaError> {
        match &self.tier {
            IntermediateTier::Device { span, ready, .. } => {
                ready.synchronize()?;
                self.store.state().range.export(*span).map(Some)
            }
            IntermediateTier::Host(_) => Ok(None),
        }
    }

    /// Makes `stream` wait until the intermediate has been written.
    pub fn order(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.tier {
            IntermediateTier::Device { ready, .. } => stream.wait(ready),
            IntermediateTier::Host(_) => Ok(()),
        }
    }
}

impl fmt::Debug for IntermediateGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("number", &self.number)
            .field("place", &self.place())
            .finish_non_exhaustive()
    }
}

impl Drop for IntermediateGuard {
    fn drop(&mut self) {
        let gone = self.store.state().ledger.unpin(self.number);
        self.store.free(gone);
    }
}
