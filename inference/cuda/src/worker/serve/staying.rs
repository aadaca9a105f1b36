//! Device-resident tensors between runs, by the numbers that the node assigned.
//!
//! Each tensor is an intermediate of the device's communication store, owned by its tenant, until
//! the node releases it. The store spills tensors to the host when the memory is needed. The node
//! can release a tensor that its run has not produced yet; such a tensor is discarded when the run
//! produces it.

use crate::device::Gpu;
use crate::failure::failure;
use crate::worker::message::WorkerOutput;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use weir_device::cuda::{
    CommError, CommIndex, IntermediateGuard, MemoryOwner, Priority, Span, Stream, TransferError,
};
use weir_inference::InferenceError;
use weir_types::Shape;

/// Minimum size of a device-resident tensor in bytes. For smaller tensors, a copy through the host
/// is as fast as the bookkeeping.
const STAYING_BYTES_MIN: u64 = 16 << 10;
/// Maximum number of remembered abandoned outputs. The runs of these outputs have already started
/// or start immediately.
const ABANDONED_MAX: usize = 1_024;

/// Device-resident tensors.
#[derive(Default)]
pub(super) struct Staying(Mutex<StayingState>);

#[derive(Default)]
struct StayingState {
    there: HashMap<u64, Arc<Stayed>>,
    abandoned: VecDeque<u64>,
}

/// Device-resident tensor. The device frees it with the last handle.
pub(super) struct Stayed {
    pub(super) gpu: Arc<Gpu>,
    index: CommIndex,
    owner: MemoryOwner,
    pub(super) shape: Shape,
    pub(super) bytes: u64,
}

impl Staying {
    /// Keeps a tensor, unless it was abandoned.
    pub(super) fn add(&self, number: u64, stayed: Stayed) {
        let mut state = self.0.lock();
        match state.abandoned.iter().position(|abandoned| *abandoned == number) {
            Some(place) => _ = state.abandoned.remove(place),
            None => _ = state.there.insert(number, Arc::new(stayed)),
        }
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Stayed>, InferenceError> {
        self.0.lock().there.get(&number).cloned().ok_or_else(gone)
    }

    /// Returns the node's numbers of these intermediates.
    pub(super) fn numbers_of(&self, indices: &[CommIndex]) -> Vec<u64> {
        if indices.is_empty() {
            return Vec::new();
        }
        let state = self.0.lock();
        let numbers: HashMap<CommIndex, u64> =
            state.there.iter().map(|(number, stayed)| (stayed.index, *number)).collect();
        indices.iter().filter_map(|index| numbers.get(index).copied()).collect()
    }

    /// Releases tensors. `abandoned` tensors are released now, or as soon as their run produces
    /// them.
    pub(super) fn release(&self, numbers: &[u64], abandoned: &[u64]) {
        let mut state = self.0.lock();
        let mut went: Vec<_> = numbers.iter().filter_map(|number| state.there.remove(number)).collect();
        for number in abandoned {
            match state.there.remove(number) {
                Some(stayed) => went.push(stayed),
                None => state.abandoned.push_back(*number),
            }
        }
        while state.abandoned.len() > ABANDONED_MAX {
            state.abandoned.pop_front();
        }
        drop(state);
        // Freed outside the lock.
        drop(went);
    }
}

impl Stayed {
    /// Keeps a copy of `from` on the device for `owner`, enqueued on `stream`. Returns `None` if
    /// the tensor should go through the host.
    pub(super) fn leave(
        gpu: &Arc<Gpu>,
        owner: MemoryOwner,
        shape: &Shape,
        from: Span,
        stream: &Stream,
    ) -> Result<Option<Self>, InferenceError> {
        if from.bytes() < STAYING_BYTES_MIN {
            return Ok(None);
        }
        match gpu.intermediates.put(from, stream, owner, gpu.now_ns()) {
            Ok(index) => {
                let gpu = gpu.clone();
                let shape = shape.clone();
                let bytes = from.bytes();
                Ok(Some(Self { gpu, index, owner, shape, bytes }))
            }
            Err(CommError::Transfer(TransferError::Device(error))) => Err(failure(&error)),
            // There is no room on the device or in the memory for spilled tensors.
            Err(_) => Ok(None),
        }
    }

    /// Copies a tensor from another device for `owner`, if there is room. Waits for the copy.
    pub(super) fn take_in(
        gpu: &Arc<Gpu>,
        owner: MemoryOwner,
        shape: &Shape,
        from: Span,
    ) -> Result<Option<Self>, InferenceError> {
        let stream = Stream::new(&gpu.context, Priority::Normal).map_err(|error| failure(&error))?;
        let put = gpu.intermediates.put_guest(from, &stream, owner, gpu.now_ns());
        // The source must stay mapped until the copy has ended.
        stream.synchronize().map_err(|error| failure(&error))?;
        match put {
            Ok(Some(index)) => {
                let gpu = gpu.clone();
                let shape = shape.clone();
                let bytes = from.bytes();
                Ok(Some(Self { gpu, index, owner, shape, bytes }))
            }
            Err(CommError::Transfer(TransferError::Device(error))) => Err(failure(&error)),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Holds the tensor for `owner`. Fails if the tensor belongs to another owner.
    pub(super) fn hold(&self, owner: MemoryOwner) -> Result<IntermediateGuard, InferenceError> {
        self.gpu.intermediates.get(self.index, owner, self.gpu.now_ns()).map_err(|_| gone())
    }

    /// Returns the description of the tensor for the node.
    pub(super) fn told(&self) -> WorkerOutput {
        WorkerOutput::Stays { shape: self.shape.clone(), bytes: self.bytes }
    }
}

impl Drop for Stayed {
    fn drop(&mut self) {
        // The index is valid until now.
        let _ = self.gpu.intermediates.remove(self.index, self.owner);
    }
}

fn gone() -> InferenceError {
    InferenceError::TensorLost("its worker does not have it".into())
}
