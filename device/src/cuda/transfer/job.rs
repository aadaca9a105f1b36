//! A copy: its request, and the handle that its owner has.

use super::TransferShared;
use super::blocks::{CopyBlock, SourcePart, cut};
use super::copy_threads::PIECE_BYTES;
use crate::cuda::error::CudaError;
use crate::cuda::event::Event;
use crate::cuda::memory::Span;
use crate::cuda::pinned::PinnedSlice;
use crate::cuda::stream::Stream;
use crate::{ArenaExhausted, Buffer, BufferMut};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the host, and their place on the device. A longer place is filled up with zeroes.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The source.
    pub from: CopySource,
    /// The target.
    pub to: Span,
}

/// Source of a copy to the device.
#[derive(Debug, Clone)]
pub enum CopySource {
    /// Any memory, such as a mapped file: copied through the ring.
    Pageable(Bytes),
    /// Pinned memory: copied directly.
    Pinned(Arc<PinnedSlice>),
}

/// Why a copy did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Its owner cancelled it.
    #[error("the copy was cancelled")]
    Cancelled,
    /// The engine was dropped.
    #[error("the device's transfers have been stopped")]
    Stopped,
    /// Too many copies are waiting.
    #[error("{transfers_max} copies wait already: try again when some are done")]
    TooMany {
        /// The limit.
        transfers_max: usize,
    },
    /// A source does not fit its place.
    #[error("{source_bytes} bytes do not fit a place for {place_bytes}")]
    DoesNotFit {
        /// Length of the source.
        source_bytes: u64,
        /// Length of the place.
        place_bytes: u64,
    },
    /// The host has no room for the fetched bytes.
    #[error(transparent)]
    Host(#[from] ArenaExhausted),
    /// The device failed to copy.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// A copy to the device, in progress or ended.
#[derive(Debug)]
pub struct Transfer {
    state: Mutex<TransferState>,
    changed: Condvar,
    shared: Arc<TransferShared>,
}

#[derive(Debug)]
struct TransferState {
    groups: Vec<Group>,
    cancelled: bool,
    end: Option<Result<(), TransferError>>,
    ended_at: Option<Instant>,
}

/// Progress of a group.
#[derive(Debug, Clone)]
enum Group {
    Waiting,
    /// The group has no blocks.
    Empty,
    /// The group's last block has been given to the device, and arrives by the event.
    Given(Arc<Event>),
}

/// A copy to the host, in progress or ended.
#[derive(Debug)]
pub struct Fetch {
    transfer: Arc<Transfer>,
    buffer: Arc<Mutex<Option<BufferMut>>>,
}

/// A copy on the engine's thread.
pub(super) struct CopyJob {
    pub(super) transfer: Arc<Transfer>,
    pub(super) blocks: Arc<[CopyBlock]>,
    /// Target of a copy to the host.
    pub(super) buffer: Option<Arc<Mutex<Option<BufferMut>>>>,
    /// Owner of the copy's memory; drops with the job.
    keep: Box<dyn Any + Send>,
}

impl Transfer {
    /// Makes `stream` wait for a group, counted from 0, and thereby for all groups before it.
    /// Returns as soon as the group's last block has been given to the device, because a stream can
    /// only wait for work that has been given.
    pub fn order(&self, group: usize, stream: &Stream) -> Result<(), TransferError> {
        let waits = |state: &mut TransferState| {
            state.end.is_none() && matches!(state.groups.get(group), Some(Group::Waiting))
        };
        let mut state = self.state();
        self.changed.wait_while(&mut state, waits);
        if let Some(Err(error)) = &state.end {
            return Err(error.clone());
        }
        let event = match state.groups.get(group) {
            Some(Group::Given(event)) => Some(event.clone()),
            _ => None,
        };
        drop(state);
        if let Some(event) = event {
            stream.wait(&event)?;
        }
        Ok(())
    }

    /// Waits until all blocks have arrived, or the copy has failed.
    pub fn wait(&self) -> Result<(), TransferError> {
        let mut state = self.state();
        self.changed.wait_while(&mut state, |state| state.end.is_none());
        state.end.clone().unwrap_or(Err(TransferError::Stopped))
    }

    /// Outcome of the copy; `None` while it is in progress.
    #[must_use]
    pub fn end(&self) -> Option<Result<(), TransferError>> {
        self.state().end.clone()
    }

    /// Time of its end; `None` while it is in progress.
    #[must_use]
    pub fn ended_at(&self) -> Option<Instant> {
        self.state().ended_at
    }

    /// Cancels the copy. It has ended once [`wait`](Self::wait) returns: blocks in flight still
    /// arrive.
    pub fn cancel(&self) {
        self.state().cancelled = true;
        self.shared.inbox().look = true;
        self.shared.notify();
    }

    /// Whether the copy was cancelled.
    pub(in super::super) fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// Records that the last block of some groups has been given to the device.
    pub(super) fn given(&self, groups: Range<usize>, event: &Arc<Event>) {
        let mut state = self.state();
        for group in state.groups.get_mut(groups).unwrap_or_default() {
            *group = Group::Given(event.clone());
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

    fn new(groups: Vec<Group>, shared: &Arc<TransferShared>) -> Arc<Self> {
        let state = Mutex::new(TransferState { groups, cancelled: false, end: None, ended_at: None });
        Arc::new(Self { state, changed: Condvar::new(), shared: shared.clone() })
    }

    fn state(&self) -> MutexGuard<'_, TransferState> {
        // Consistent between any two statements.
        self.state.lock()
    }
}

impl Fetch {
    pub(super) fn new(job: &CopyJob) -> Self {
        Self { transfer: job.transfer.clone(), buffer: job.buffer.clone().unwrap_or_default() }
    }

    /// Waits for the bytes.
    pub fn wait(self) -> Result<Buffer, TransferError> {
        self.transfer.wait()?;
        let buffer = self.buffer.lock().take();
        buffer.map(BufferMut::freeze).ok_or(TransferError::Stopped)
    }

    /// Cancels the copy.
    pub fn cancel(&self) {
        self.transfer.cancel();
    }
}

impl CopyJob {
    pub(super) fn load(
        groups: &[Vec<Segment>],
        keep: Box<dyn Any + Send>,
        shared: &Arc<TransferShared>,
    ) -> Result<Self, TransferError> {
        for segment in groups.iter().flatten() {
            let source_bytes = segment.from.bytes().len() as u64;
            let place_bytes = segment.to.bytes();
            if source_bytes > place_bytes {
                return Err(TransferError::DoesNotFit { source_bytes, place_bytes });
            }
        }
        let blocks = cut(groups);
        // Groups without blocks have nothing to wait for.
        let mut states = vec![Group::Empty; groups.len()];
        for group in blocks.iter().flat_map(|block| block.ends.clone()) {
            if let Some(state) = states.get_mut(group) {
                *state = Group::Waiting;
            }
        }
        let transfer = Transfer::new(states, shared);
        Ok(Self { transfer, blocks: blocks.into(), buffer: None, keep })
    }

    pub(super) fn fetch(
        from: Span,
        to: BufferMut,
        keep: Box<dyn Any + Send>,
        shared: &Arc<TransferShared>,
    ) -> Self {
        let buffer = Some(Arc::new(Mutex::new(Some(to))));
        Self {
            transfer: Transfer::new(Vec::new(), shared),
            blocks: CopyBlock::of_span(from).into(),
            buffer,
            keep,
        }
    }
}

impl CopyJob {
    /// Number of pieces that copy threads gather.
    pub(super) fn pieces(&self) -> u64 {
        let gathered = self.blocks.iter().filter(|block| block.direct().is_none());
        gathered.map(|block| block.span.bytes().div_ceil(PIECE_BYTES as u64)).sum()
    }

    /// Ends the copy. The job's kept memory drops first: callers that wait for the end may rely on
    /// this. Sources in files drop last, because to unmap a file takes long; pinned memory can be
    /// reused at once.
    pub(super) fn finish(self, end: Result<(), TransferError>) {
        let Self { transfer, blocks, buffer, keep } = self;
        drop((buffer, keep));
        let is_pinned = |part: &SourcePart| matches!(part.from, CopySource::Pinned(_));
        let later = if blocks.iter().flat_map(|block| &block.parts).any(is_pinned) {
            drop(blocks);
            None
        } else {
            Some(blocks)
        };
        transfer.finish(end);
        drop(later);
    }
}

impl CopySource {
    /// The bytes to copy.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Pageable(bytes) => bytes,
            Self::Pinned(slice) => slice.bytes(),
        }
    }
}
