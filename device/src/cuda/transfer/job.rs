//! One copy: what was asked for, and what its owner sees of it.

use super::Shared;
use super::blocks::{Block, cut};
use crate::cuda::error::CudaError;
use crate::cuda::event::Event;
use crate::cuda::memory::Span;
use crate::cuda::pinned::PinnedSlice;
use crate::cuda::stream::Stream;
use crate::{Buffer, BufferMut, OutOfMemory};
use bytes::Bytes;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of the host, and their place on the device, which may be longer: the rest becomes zeroes.
#[derive(Debug, Clone)]
pub struct Segment {
    /// What is copied.
    pub from: Source,
    /// Where it goes.
    pub to: Span,
}

/// Where a copy to the device takes its bytes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Any memory, as a file that is mapped: through the ring.
    Pageable(Bytes),
    /// Pinned memory: straight from there.
    Pinned(Arc<PinnedSlice>),
}

/// Why a copy did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Its owner said so.
    #[error("the copy was cancelled")]
    Cancelled,
    /// The engine was dropped.
    #[error("the device's transfers have been stopped")]
    Stopped,
    /// There are too many already.
    #[error("{transfers_max} copies wait already: try again when some are done")]
    TooMany {
        /// The most there can be.
        transfers_max: usize,
    },
    /// A source does not fit its place.
    #[error("{source_bytes} bytes do not fit a place for {place_bytes}")]
    DoesNotFit {
        /// How long the source is.
        source_bytes: u64,
        /// How long its place is.
        place_bytes: u64,
    },
    /// There is no room on the host for what is fetched.
    #[error(transparent)]
    Host(#[from] OutOfMemory),
    /// The device did not do it.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// A copy to the device that is under way, or was.
#[derive(Debug)]
pub struct Transfer {
    state: Mutex<State>,
    changed: Condvar,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct State {
    groups: Vec<Group>,
    cancelled: bool,
    end: Option<Result<(), TransferError>>,
    ended_at: Option<Instant>,
}

/// How far a group has got.
#[derive(Debug, Clone)]
enum Group {
    Waiting,
    /// There was nothing to copy.
    Empty,
    /// Its last block has been given to the device, which gets there by the event.
    Given(Arc<Event>),
}

/// A copy to the host that is under way, or was.
#[derive(Debug)]
pub struct Fetch {
    transfer: Arc<Transfer>,
    buffer: Arc<Mutex<Option<BufferMut>>>,
}

/// A copy as the engine's thread has it.
pub(super) struct Job {
    pub(super) transfer: Arc<Transfer>,
    pub(super) blocks: Arc<[Block]>,
    /// Where a copy to the host goes.
    pub(super) buffer: Option<Arc<Mutex<Option<BufferMut>>>>,
    /// Dropped with the job: what the copy uses.
    _keep: Box<dyn Any + Send>,
}

impl Transfer {
    /// Make `stream` wait for a group, counted from 0, and so for all before it. Returns as soon as the group's last block has been given to the device:
    /// only then is there something that a stream can wait for.
    pub fn order(&self, group: usize, stream: &Stream) -> Result<(), TransferError> {
        let waits = |state: &mut State| {
            state.end.is_none() && matches!(state.groups.get(group), Some(Group::Waiting))
        };
        let state = self.changed.wait_while(self.state(), waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = &state.end {
            return Err(error.clone());
        }
        let event = match state.groups.get(group) {
            Some(Group::Given(event)) => Some(Arc::clone(event)),
            _ => None,
        };
        drop(state);
        if let Some(event) = event {
            stream.wait(&event)?;
        }
        Ok(())
    }

    /// Wait until everything has arrived, or it is known that it does not.
    pub fn wait(&self) -> Result<(), TransferError> {
        let state = self.changed.wait_while(self.state(), |state| state.end.is_none());
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.end.clone().unwrap_or(Err(TransferError::Stopped))
    }

    /// How it ended; none while it is under way.
    #[must_use]
    pub fn end(&self) -> Option<Result<(), TransferError>> {
        self.state().end.clone()
    }

    /// When it ended; none while it is under way.
    #[must_use]
    pub fn ended_at(&self) -> Option<Instant> {
        self.state().ended_at
    }

    /// Copy no further. It has ended once [`wait`](Self::wait) returns: blocks that are on their way arrive.
    pub fn cancel(&self) {
        self.state().cancelled = true;
        self.shared.inbox().look = true;
        self.shared.wake.notify_one();
    }

    /// Whether it has been said that it goes no further.
    pub(in super::super) fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// The last block of some groups has been given to the device.
    pub(super) fn given(&self, groups: Range<usize>, event: &Arc<Event>) {
        let mut state = self.state();
        for group in state.groups.get_mut(groups).unwrap_or_default() {
            *group = Group::Given(Arc::clone(event));
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn finish(&self, end: Result<(), TransferError>) {
        let mut state = self.state();
        if state.end.is_none() {
            state.end = Some(end);
            state.ended_at = Some(Instant::now());
        }
        drop(state);
        self.changed.notify_all();
    }

    fn new(groups: Vec<Group>, shared: &Arc<Shared>) -> Arc<Self> {
        let state = Mutex::new(State { groups, cancelled: false, end: None, ended_at: None });
        Arc::new(Self { state, changed: Condvar::new(), shared: Arc::clone(shared) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch {
    pub(super) fn of(job: &Job) -> Self {
        Self { transfer: Arc::clone(&job.transfer), buffer: job.buffer.clone().unwrap_or_default() }
    }

    /// Wait for the bytes.
    pub fn wait(self) -> Result<Buffer, TransferError> {
        self.transfer.wait()?;
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner).take();
        buffer.map(BufferMut::freeze).ok_or(TransferError::Stopped)
    }

    /// Copy no further.
    pub fn cancel(&self) {
        self.transfer.cancel();
    }
}

impl Job {
    pub(super) fn load(
        groups: &[Vec<Segment>],
        keep: Box<dyn Any + Send>,
        shared: &Arc<Shared>,
    ) -> Result<Self, TransferError> {
        for segment in groups.iter().flatten() {
            let (source_bytes, place_bytes) = (segment.from.bytes().len() as u64, segment.to.bytes());
            if source_bytes > place_bytes {
                return Err(TransferError::DoesNotFit { source_bytes, place_bytes });
            }
        }
        let blocks = cut(groups);
        // Groups that no block ends have nothing to wait for.
        let mut states = vec![Group::Empty; groups.len()];
        for group in blocks.iter().flat_map(|block| block.ends.clone()) {
            if let Some(state) = states.get_mut(group) {
                *state = Group::Waiting;
            }
        }
        let transfer = Transfer::new(states, shared);
        Ok(Self { transfer, blocks: blocks.into(), buffer: None, _keep: keep })
    }

    pub(super) fn fetch(from: Span, to: BufferMut, keep: Box<dyn Any + Send>, shared: &Arc<Shared>) -> Self {
        let buffer = Some(Arc::new(Mutex::new(Some(to))));
        Self {
            transfer: Transfer::new(Vec::new(), shared),
            blocks: Block::of_span(from).into(),
            buffer,
            _keep: keep,
        }
    }
}

impl Source {
    /// What is copied.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Pageable(bytes) => bytes,
            Self::Pinned(slice) => slice.bytes(),
        }
    }
}
