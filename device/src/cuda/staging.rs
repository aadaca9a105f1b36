//! Pinned staging memory for inputs and outputs of runs.

use super::context::Context;
use super::error::CudaError;
use super::pinned::PinnedMemory;
use std::sync::Arc;

/// Pinned memory that grows by adding segments, and frees none before it is dropped:
/// `cuMemFreeHost` waits for all work on the device.
#[derive(Debug)]
pub struct StagingBuffer {
    context: Arc<Context>,
    /// Each segment is longer than those before it; later ones are at least twice as long.
    segments: Vec<PinnedMemory>,
}

impl StagingBuffer {
    /// Creates a buffer with one segment of `bytes` bytes; longer requests add segments.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self { context: context.clone(), segments: vec![PinnedMemory::new(context, bytes)?] })
    }

    /// The first `bytes` bytes of the shortest segment that is long enough: the same memory for the
    /// same length. Contents stay until the next request.
    pub fn get(&mut self, bytes: usize) -> Result<&mut [u8], CudaError> {
        let found = self.segments.iter().position(|segment| segment.as_slice().len() >= bytes);
        let position = match found {
            Some(position) => position,
            None => {
                let longer = bytes.checked_next_power_of_two().unwrap_or(bytes);
                self.segments.push(PinnedMemory::new(&self.context, longer)?);
                self.segments.len() - 1
            }
        };
        let segment = self.segments.get_mut(position).map(PinnedMemory::as_mut_slice).unwrap_or_default();
        Ok(segment.get_mut(..bytes).unwrap_or_default())
    }
}
