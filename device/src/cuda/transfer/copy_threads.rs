//! Copy threads: they gather blocks in pinned memory for the lifetime of the engine.
//!
//! One core copies at a fifth of the bus's speed or less, so several threads copy. All threads copy
//! pieces of the same block, the oldest one first: the bus waits for one piece at the start of a
//! load, and then receives blocks at the rate of all threads together. If each thread copied a
//! separate block, the bus would wait until one thread has copied a whole block. The engine's
//! thread hands blocks over, and meanwhile gives finished blocks to the device.
//!
//! A thread without a piece watches the queue for a moment before it sleeps: a block takes the bus
//! some 40 microseconds, and to wake a thread can take longer, above all on a virtual machine. A
//! load that will need the threads wakes them at its start, while the engine's thread wakes.

use super::TransferShared;
use super::blocks::CopyBlock;
use super::watch::watch;
use crate::cuda::error::CudaError;
use crate::cuda::memory::BLOCK_BYTES;
use crate::cuda::pinned::{PinnedBlock, PinnedPiece};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle, available_parallelism};

/// The most copy threads: together they are faster than the bus.
const COPY_THREADS_MAX: usize = 12;

/// Bytes that a copy thread copies at a time: some 50 microseconds, ten times as long as waking a
/// thread.
pub const PIECE_BYTES: usize = 256 << 10;

/// The number of copy threads for this machine: half of its cores, since the others run functions;
/// at least 1 and at most 12. More were slower on a virtual machine of 16 cores
/// (docs/measurements.md, "Loads of weights").
#[must_use]
pub fn copy_threads() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, COPY_THREADS_MAX)
}

/// The copy threads of an engine. Joined on drop.
pub(super) struct CopyThreads {
    queue: Arc<CopyQueue>,
    threads: Vec<JoinHandle<()>>,
}

/// A block to gather.
pub(super) struct Fill {
    /// Number under which the block comes back.
    pub(super) ticket: u64,
    pub(super) blocks: Arc<[CopyBlock]>,
    /// Index of the block.
    pub(super) number: usize,
    pub(super) staging: PinnedBlock,
}

/// A gathered block.
pub(super) struct Filled {
    pub(super) ticket: u64,
    pub(super) staging: PinnedBlock,
}

/// A piece of a block to gather.
struct FillPiece {
    ticket: u64,
    blocks: Arc<[CopyBlock]>,
    number: usize,
    piece: PinnedPiece,
}

#[derive(Default)]
pub(super) struct CopyQueue {
    work: Mutex<CopyWork>,
    wake: Condvar,
    /// Length of the queue, for threads that watch it.
    len: AtomicUsize,
}

#[derive(Default)]
struct CopyWork {
    pieces: VecDeque<FillPiece>,
    stop: bool,
}

impl CopyThreads {
    /// Starts `count` threads, at least one, which send finished blocks to the inbox of `shared`.
    pub(super) fn start(count: usize, shared: &Arc<TransferShared>) -> Result<Self, CudaError> {
        let mut started = Self { queue: Arc::default(), threads: Vec::new() };
        for _ in 0..count.max(1) {
            let queue = started.queue.clone();
            let shared = shared.clone();
            let thread = Builder::new().name("copy".to_owned()).spawn(move || queue.work(&shared));
            let thread =
                thread.map_err(|error| CudaError::Invalid(format!("no thread for copies: {error}")))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// The queue of the threads.
    pub(super) fn queue(&self) -> &Arc<CopyQueue> {
        &self.queue
    }

    /// Number of threads.
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Bytes to hand over at a time: a piece for each thread, and the blocks that become ready
    /// meanwhile. More would delay the blocks of copies that start later.
    pub(super) fn ahead_bytes(&self) -> u64 {
        (self.count() * PIECE_BYTES) as u64 + 2 * BLOCK_BYTES
    }

    /// Queues a block for gathering, after earlier blocks.
    pub(super) fn fill(&self, fill: Fill) {
        self.queue.push(fill);
    }
}

impl Drop for CopyThreads {
    fn drop(&mut self) {
        self.queue.work.lock().stop = true;
        self.queue.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl CopyQueue {
    fn push(&self, Fill { ticket, blocks, number, staging }: Fill) {
        let bytes = blocks.get(number).map_or(0, |block| block.span.bytes());
        let pieces = staging.split(usize::try_from(bytes).unwrap_or(usize::MAX), PIECE_BYTES);
        let count = pieces.len();
        let fill = |piece| FillPiece { ticket, blocks: blocks.clone(), number, piece };
        let mut work = self.work.lock();
        work.pieces.extend(pieces.into_iter().map(fill));
        self.len.store(work.pieces.len(), Ordering::Release);
        drop(work);
        self.rouse(count);
    }

    /// Wakes up to `count` sleeping threads, which watch for pieces. Costs little if none sleeps.
    pub(super) fn rouse(&self, count: usize) {
        // Not all at once, which would wake each thread only after the one before.
        for _ in 0..count {
            if !self.wake.notify_one() {
                return;
            }
        }
    }

    /// Gathers pieces until stopped.
    fn work(&self, shared: &TransferShared) {
        while let Some(FillPiece { ticket, blocks, number, mut piece }) = self.next() {
            if let Some(block) = blocks.get(number) {
                block.gather(piece.offset(), piece.as_mut_slice());
            }
            drop(blocks);
            if let Some(staging) = piece.finish() {
                shared.inbox().filled.push(Filled { ticket, staging });
                shared.notify();
            }
        }
    }

    fn next(&self) -> Option<FillPiece> {
        loop {
            watch(|| self.len.load(Ordering::Acquire) > 0);
            let mut work = self.work.lock();
            if let Some(piece) = work.pieces.pop_front() {
                self.len.store(work.pieces.len(), Ordering::Release);
                return Some(piece);
            }
            if work.stop {
                return None;
            }
            self.wake.wait(&mut work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::cut;
    use super::super::job::{CopySource, Segment};
    use super::*;
    use crate::cuda::memory::{BLOCK_BYTES, Span};
    use crate::cuda::{Devices, PinnedRing, Search};
    use bytes::Bytes;
    use weir_fake_cuda::Fake;

    const BLOCKS: usize = 6;

    fn shared() -> Arc<TransferShared> {
        Arc::default()
    }

    #[test]
    fn blocks_are_gathered_intact_by_any_number_of_threads() {
        let fake = Fake::new(0);
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let context = Devices::discover(&search).unwrap().open(0).unwrap();
        let ring = PinnedRing::new(&context, BLOCKS).unwrap();
        let block_bytes = BLOCK_BYTES as usize;
        let bytes: Vec<u8> = (1..=BLOCKS as u8).flat_map(|block| vec![block; block_bytes]).collect();
        let to = Span::new(0, bytes.len() as u64);
        let blocks: Arc<[CopyBlock]> =
            cut(&[vec![Segment { from: CopySource::Pageable(Bytes::from(bytes)), to }]]).into();
        for count in 1..=4 {
            let shared = shared();
            let threads = CopyThreads::start(count, &shared).unwrap();
            for number in 0..BLOCKS {
                let blocks = blocks.clone();
                let staging = ring.try_take().unwrap();
                threads.fill(Fill { ticket: number as u64, blocks, number, staging });
            }
            let all = |inbox: &mut super::super::Inbox| inbox.filled.len() < BLOCKS;
            let mut inbox = shared.inbox();
            shared.wake.wait_while(&mut inbox, all);
            let filled = std::mem::take(&mut inbox.filled);
            for Filled { ticket, staging } in &filled {
                let expected = vec![*ticket as u8 + 1; block_bytes];
                assert!(staging.as_slice() == expected, "{count} threads, block {ticket}");
            }
        }
    }

    /// The bus waits for the first block: as many threads as possible must copy it.
    #[test]
    fn block_is_queued_in_pieces_for_all_threads() {
        let fake = Fake::new(0);
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let context = Devices::discover(&search).unwrap().open(0).unwrap();
        let ring = PinnedRing::new(&context, 1).unwrap();
        let bytes: Vec<u8> = (0..BLOCK_BYTES as usize + 3).map(|at| (at % 251) as u8).collect();
        let to = Span::new(0, bytes.len() as u64);
        let source = CopySource::Pageable(Bytes::from(bytes.clone()));
        let blocks: Arc<[CopyBlock]> = cut(&[vec![Segment { from: source, to }]]).into();
        for (number, count) in [(0, 8), (1, 1)] {
            let queue = CopyQueue::default();
            queue.push(Fill { ticket: 7, blocks: blocks.clone(), number, staging: ring.try_take().unwrap() });
            assert_eq!(queue.work.lock().pieces.len(), count);
            let mut whole = None;
            for _ in 0..count {
                assert!(whole.is_none(), "the block is filled before its last piece");
                let mut next = queue.next().unwrap();
                blocks[number].gather(next.piece.offset(), next.piece.as_mut_slice());
                whole = next.piece.finish();
            }
            let start = number * BLOCK_BYTES as usize;
            let end = bytes.len().min(start + BLOCK_BYTES as usize);
            assert!(whole.unwrap().as_slice()[..end - start] == bytes[start..end]);
        }
    }

    /// A piece that a panic drops must not reach the device as part of its block.
    #[test]
    fn block_with_an_unfinished_piece_returns_to_the_ring() {
        let fake = Fake::new(0);
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let context = Devices::discover(&search).unwrap().open(0).unwrap();
        let ring = PinnedRing::new(&context, 1).unwrap();
        let mut pieces = ring.try_take().unwrap().split(2 * PIECE_BYTES, PIECE_BYTES);
        let last = pieces.pop().unwrap();
        drop(pieces);
        assert!(ring.try_take().is_none());
        assert!(last.finish().is_none());
        assert!(ring.try_take().is_some());
    }

    #[test]
    fn drop_joins_the_threads() {
        let shared = shared();
        let threads = CopyThreads::start(3, &shared).unwrap();
        assert_eq!((threads.count(), Arc::strong_count(&shared)), (3, 4), "one for each thread");
        drop(threads);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn copy_threads_suit_the_machine() {
        let cores = available_parallelism().map_or(1, usize::from);
        assert!((1..=COPY_THREADS_MAX).contains(&copy_threads()) && copy_threads() <= cores);
    }
}
