//! Tensors that stay on the device between runs, by the numbers that the node knows them by.
//!
//! Each is an intermediate of the device's communication store, its tenant's, until the node lets go of it; the store moves it to the host where others
//! need the memory. The node may let go of what a run has not left yet: that is not kept when it comes.

use crate::cuda::device::Gpu;
use crate::cuda::failure;
use crate::cuda::worker::message::Output;
use crate::error::InferenceError;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_device::cuda::{CommError, CommIndex, Held, Owner, Priority, Span, Stream, TransferError};
use weir_types::Shape;

/// Tensors below this go over the host: that takes no longer than looking after them.
const STAYING_BYTES_MIN: u64 = 16 << 10;
/// Numbers that are remembered for runs that nobody waits for any more. Such a run has begun, or begins at once.
const ABANDONED_MAX: usize = 1_024;

/// Those that there are.
#[derive(Default)]
pub(super) struct Staying(Mutex<State>);

#[derive(Default)]
struct State {
    there: HashMap<u64, Arc<Stayed>>,
    abandoned: VecDeque<u64>,
}

/// A tensor that stays. The device lets go of it with the last handle.
pub(super) struct Stayed {
    pub(super) gpu: Arc<Gpu>,
    index: CommIndex,
    owner: Owner,
    pub(super) shape: Shape,
    pub(super) bytes: u64,
}

impl Staying {
    /// Keep a tensor, unless nobody wants it any more.
    pub(super) fn add(&self, number: u64, stayed: Stayed) {
        let mut state = self.lock();
        match state.abandoned.iter().position(|abandoned| *abandoned == number) {
            Some(place) => _ = state.abandoned.remove(place),
            None => _ = state.there.insert(number, Arc::new(stayed)),
        }
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Stayed>, InferenceError> {
        self.lock().there.get(&number).cloned().ok_or_else(gone)
    }

    /// What the node knows these by.
    pub(super) fn numbers_of(&self, indices: &[CommIndex]) -> Vec<u64> {
        if indices.is_empty() {
            return Vec::new();
        }
        let state = self.lock();
        let numbers: HashMap<CommIndex, u64> =
            state.there.iter().map(|(number, stayed)| (stayed.index, *number)).collect();
        indices.iter().filter_map(|index| numbers.get(index).copied()).collect()
    }

    /// Let go of tensors, and of those that are `abandoned` when they come.
    pub(super) fn release(&self, numbers: &[u64], abandoned: &[u64]) {
        let mut state = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stayed {
    /// Leave a copy of `from` on the device for `owner`, in the order of `stream`; none where it is better off on the host.
    pub(super) fn leave(
        gpu: &Arc<Gpu>,
        owner: Owner,
        shape: &Shape,
        from: Span,
        stream: &Stream,
    ) -> Result<Option<Self>, InferenceError> {
        if from.bytes() < STAYING_BYTES_MIN {
            return Ok(None);
        }
        match gpu.intermediates.put(from, stream, owner, gpu.now_ns()) {
            Ok(index) => {
                let (gpu, shape, bytes) = (Arc::clone(gpu), shape.clone(), from.bytes());
                Ok(Some(Self { gpu, index, owner, shape, bytes }))
            }
            Err(CommError::Transfer(TransferError::Device(error))) => Err(failure(&error)),
            // There is no room, neither on the device nor where others went that had to make room.
            Err(_) => Ok(None),
        }
    }

    /// Have a copy of `from`, which another device has, for `owner`, if there is room. Waits until it is there.
    pub(super) fn take_in(
        gpu: &Arc<Gpu>,
        owner: Owner,
        shape: &Shape,
        from: Span,
    ) -> Result<Option<Self>, InferenceError> {
        let stream = Stream::new(&gpu.context, Priority::Normal).map_err(|error| failure(&error))?;
        let put = gpu.intermediates.put_guest(from, &stream, owner, gpu.now_ns());
        // What it reads must not go before it is read.
        stream.synchronize().map_err(|error| failure(&error))?;
        match put {
            Ok(Some(index)) => {
                let (gpu, shape, bytes) = (Arc::clone(gpu), shape.clone(), from.bytes());
                Ok(Some(Self { gpu, index, owner, shape, bytes }))
            }
            Err(CommError::Transfer(TransferError::Device(error))) => Err(failure(&error)),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Use it on behalf of `owner`: whose it is not finds nothing.
    pub(super) fn hold(&self, owner: Owner) -> Result<Held, InferenceError> {
        self.gpu.intermediates.get(self.index, owner, self.gpu.now_ns()).map_err(|_| gone())
    }

    /// What the node is told of it.
    pub(super) fn told(&self) -> Output {
        Output::Stays { shape: self.shape.clone(), bytes: self.bytes }
    }
}

impl Drop for Stayed {
    fn drop(&mut self) {
        // It is there until now.
        let _ = self.gpu.intermediates.remove(self.index, self.owner);
    }
}

fn gone() -> InferenceError {
    InferenceError::TensorLost("its worker does not have it".into())
}
