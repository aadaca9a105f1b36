//! An intermediate, in use.

use super::{Shared, Tier};
use crate::Buffer;
use crate::cuda::error::CudaError;
use crate::cuda::memory::{Exported, Span};
use crate::cuda::stream::Stream;
use std::fmt;
use std::sync::Arc;

/// An intermediate that stays where it is until this is dropped, which happens when no work that uses it is left.
pub struct Held {
    store: Arc<Shared>,
    number: u64,
    tier: Tier,
}

/// Where an intermediate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On the device of the store, to be read in place.
    Device(Span),
    /// On the host.
    Host(Buffer),
}

impl Held {
    pub(super) fn new(store: &Arc<Shared>, number: u64, tier: Tier) -> Self {
        Self { store: Arc::clone(store), number, tier }
    }

    /// Where it is. On the device it can be read by a stream that was [ordered](Self::order).
    #[must_use]
    pub fn place(&self) -> Place {
        match &self.tier {
            Tier::Device { span, .. } => Place::Device(*span),
            Tier::Host(buffer) => Place::Host(buffer.clone()),
        }
    }

    /// The blocks that it lies in, for the process of another device, which may read it there for as long as this lives; none where it is on the host.
    /// Waits until it has been written.
    pub fn export(&self) -> Result<Option<Exported>, CudaError> {
        match &self.tier {
            Tier::Device { span, ready, .. } => {
                ready.synchronize()?;
                self.store.state().range.export(*span).map(Some)
            }
            Tier::Host(_) => Ok(None),
        }
    }

    /// Make `stream` wait until it has been written.
    pub fn order(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.tier {
            Tier::Device { ready, .. } => stream.wait(ready),
            Tier::Host(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("number", &self.number)
            .field("place", &self.place())
            .finish_non_exhaustive()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let gone = self.store.state().ledger.unpin(self.number);
        self.store.free(gone);
    }
}
