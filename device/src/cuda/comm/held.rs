//! Pinned intermediates.

use super::{Shared, Tier};
use crate::Buffer;
use crate::cuda::error::CudaError;
use crate::cuda::memory::{Exported, Span};
use crate::cuda::stream::Stream;
use std::fmt;
use std::sync::Arc;

/// An intermediate that is not moved until this guard drops. Drop it once no work uses the
/// intermediate any more.
pub struct Held {
    store: Arc<Shared>,
    number: u64,
    tier: Tier,
}

/// Place of an intermediate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On the device of the store, to be read in place.
    Device(Span),
    /// On the host.
    Host(Buffer),
}

impl Held {
    pub(super) fn new(store: &Arc<Shared>, number: u64, tier: Tier) -> Self {
        Self { store: store.clone(), number, tier }
    }

    /// Current place. On the device, a stream can read it after [`order`](Self::order).
    #[must_use]
    pub fn place(&self) -> Place {
        match &self.tier {
            Tier::Device { span, .. } => Place::Device(*span),
            Tier::Host(buffer) => Place::Host(buffer.clone()),
        }
    }

    /// The blocks of the intermediate, for the process of another device, which may read them while
    /// this guard lives; `None` if it is on the host. Waits until the intermediate has been
    /// written.
    pub fn export(&self) -> Result<Option<Exported>, CudaError> {
        match &self.tier {
            Tier::Device { span, ready, .. } => {
                ready.synchronize()?;
                self.store.state().range.export(*span).map(Some)
            }
            Tier::Host(_) => Ok(None),
        }
    }

    /// Makes `stream` wait until the intermediate has been written.
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
