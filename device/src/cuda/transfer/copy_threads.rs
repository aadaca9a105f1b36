//! Copy threads: they gather blocks in pinned memory for the lifetime of the engine.
//!
//! One core copies at a fifth of the bus's speed or less, so several threads copy. The engine's
//! thread hands blocks over, and meanwhile gives finished blocks to the device.

use super::Shared;
use super::blocks::Block;
use crate::cuda::error::CudaError;
use crate::cuda::pinned::PinnedBlock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, available_parallelism};

/// The most copy threads: together they are faster than the bus.
const COPY_THREADS_MAX: usize = 12;

/// The number of copy threads for this machine: half of its cores, since the others run functions;
/// at least 1 and at most 12.
#[must_use]
pub fn copy_threads() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, COPY_THREADS_MAX)
}

/// The copy threads of an engine. Joined on drop.
pub(super) struct CopyThreads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

/// A block to gather.
pub(super) struct Fill {
    /// Number under which the block comes back.
    pub(super) ticket: u64,
    pub(super) blocks: Arc<[Block]>,
    /// Index of the block.
    pub(super) number: usize,
    pub(super) staging: PinnedBlock,
}

/// A gathered block.
pub(super) struct Filled {
    pub(super) ticket: u64,
    pub(super) staging: PinnedBlock,
}

#[derive(Default)]
struct Queue {
    work: Mutex<Work>,
    wake: Condvar,
}

#[derive(Default)]
struct Work {
    fills: VecDeque<Fill>,
    stop: bool,
}

impl CopyThreads {
    /// Starts `count` threads, at least one, which send finished blocks to the inbox of `shared`.
    pub(super) fn start(count: usize, shared: &Arc<Shared>) -> Result<Self, CudaError> {
        let mut started = Self { queue: Arc::default(), threads: Vec::new() };
        for _ in 0..count.max(1) {
            let (queue, shared) = (Arc::clone(&started.queue), Arc::clone(shared));
            let thread = Builder::new().name("copy".to_owned()).spawn(move || queue.work(&shared));
            let thread =
                thread.map_err(|error| CudaError::Invalid(format!("no thread for copies: {error}")))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// Number of threads.
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Queues a block for gathering, behind earlier ones.
    pub(super) fn fill(&self, fill: Fill) {
        self.queue.lock().fills.push_back(fill);
        self.queue.wake.notify_one();
    }
}

impl Drop for CopyThreads {
    fn drop(&mut self) {
        self.queue.lock().stop = true;
        self.queue.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Gathers blocks until stopped.
    fn work(&self, shared: &Shared) {
        while let Some(Fill { ticket, blocks, number, mut staging }) = self.next() {
            if let Some(block) = blocks.get(number) {
                block.gather(staging.as_mut_slice());
            }
            drop(blocks);
            shared.inbox().filled.push(Filled { ticket, staging });
            shared.wake.notify_one();
        }
    }

    fn next(&self) -> Option<Fill> {
        let waits = |work: &mut Work| work.fills.is_empty() && !work.stop;
        let work = self.wake.wait_while(self.lock(), waits);
        work.unwrap_or_else(PoisonError::into_inner).fills.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        // Consistent between any two statements.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::cut;
    use super::super::job::{Segment, Source};
    use super::*;
    use crate::cuda::memory::{BLOCK_BYTES, Span};
    use crate::cuda::{Devices, PinnedRing, Search};
    use bytes::Bytes;
    use weir_fake_cuda::Fake;

    const BLOCKS: usize = 6;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared { inbox: Mutex::default(), wake: Condvar::new() })
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
        let blocks: Arc<[Block]> =
            cut(&[vec![Segment { from: Source::Pageable(Bytes::from(bytes)), to }]]).into();
        for count in 1..=4 {
            let shared = shared();
            let threads = CopyThreads::start(count, &shared).unwrap();
            for number in 0..BLOCKS {
                let (blocks, staging) = (Arc::clone(&blocks), ring.try_take().unwrap());
                threads.fill(Fill { ticket: number as u64, blocks, number, staging });
            }
            let all = |inbox: &mut super::super::Inbox| inbox.filled.len() < BLOCKS;
            let filled = std::mem::take(&mut shared.wake.wait_while(shared.inbox(), all).unwrap().filled);
            for Filled { ticket, staging } in &filled {
                let expected = vec![*ticket as u8 + 1; block_bytes];
                assert!(staging.as_slice() == expected, "{count} threads, block {ticket}");
            }
        }
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
