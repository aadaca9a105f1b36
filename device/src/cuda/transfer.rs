//! Sharing the bus.
//!
//! A device has one bus, and whoever copies a gigabyte over it in one piece keeps everybody else waiting. So every copy is cut into blocks of 2 MiB, which
//! still reach the bus's full speed, a few of them are under way at a time, and after each the next is chosen anew ([`schedule`]). What lies in pinned memory is
//! copied from there, everything else through the blocks of a ring. The batches, the shared pinned buffer and one point to wait for per layer are
//! StreamBox's (Wu et al., USENIX ATC 2024).
//!
//! ```text
//!   load()  ─► blocks ─► schedule ─► copy threads ─► ring ─► copy stream ─► device   an event after the last block of each
//!                                └──── from pinned memory ──► copy stream ─► device   group, which compute streams wait for
//!   fetch() ─► blocks ─► schedule ─► copy stream ─► ring ─► buffer
//! ```
//!
//! What ends a copy: its last block has arrived; it is cancelled; the device is lost; the engine is dropped. Until then it keeps what
//! it copies from and to.

mod blocks;
mod copy_threads;
mod lane;
mod schedule;
mod worker;

mod job;
pub use copy_threads::copy_threads;
pub use job::{Fetch, Segment, Source, Transfer, TransferError};

use super::context::Context;
use super::error::CudaError;
use super::memory::Span;
use super::pinned::PinnedRing;
use super::stream::{Priority, Stream};
use crate::{Arena, BufferMut};
use copy_threads::{CopyThreads, Filled};
use job::Job;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use worker::Worker;

/// The most copies that wait or are under way.
const TRANSFERS_MAX: usize = 4_096;

/// Copies between the host and one device, on a thread of its own with copy threads behind it. All of them are joined when the engine is dropped.
pub struct TransferEngine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What callers and the thread share.
struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

#[derive(Default)]
struct Inbox {
    /// Copies that the thread has not seen yet.
    jobs: VecDeque<Job>,
    /// Blocks that copy threads have brought together.
    filled: Vec<Filled>,
    /// Copies that have not ended.
    alive: usize,
    /// Something may have been cancelled.
    look: bool,
    stop: bool,
}

impl TransferEngine {
    /// Start the threads of a device, which use blocks of `ring`: [`copy_threads`] of them bring blocks together, or another number, at least one.
    pub fn new(
        context: &Arc<Context>,
        ring: &Arc<PinnedRing>,
        copy_threads: usize,
    ) -> Result<Self, CudaError> {
        let up = Stream::new(context, Priority::High)?;
        let down = Stream::new(context, Priority::High)?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake: Condvar::new() });
        let threads = CopyThreads::start(copy_threads, &shared)?;
        let worker = Worker::new(Arc::clone(&shared), Arc::clone(ring), (up, down), threads);
        let name = format!("transfer-{}", context.info().ordinal);
        let thread = Builder::new().name(name).spawn(move || worker.run());
        let thread =
            thread.map_err(|error| CudaError::Invalid(format!("no thread for transfers: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Copy to the device, group by group, in order. Where a source is shorter than its place, the rest becomes zeroes. `keep` is kept until the
    /// copy has ended: what the places belong to.
    pub fn load(
        &self,
        groups: &[Vec<Segment>],
        keep: Box<dyn Any + Send>,
    ) -> Result<Arc<Transfer>, TransferError> {
        let job = Job::load(groups, keep, &self.shared)?;
        let transfer = Arc::clone(&job.transfer);
        self.send(job)?;
        Ok(transfer)
    }

    /// Copy to the host, what is there now: nothing is waited for. `keep` is kept until the copy has ended: what `from` belongs to.
    pub fn fetch(
        &self,
        from: Span,
        arena: &Arena,
        keep: Box<dyn Any + Send>,
    ) -> Result<Fetch, TransferError> {
        let len = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
        let buffer: BufferMut = arena.buffer(len)?;
        let job = Job::fetch(from, buffer, keep, &self.shared);
        let fetch = Fetch::of(&job);
        self.send(job)?;
        Ok(fetch)
    }

    /// How many copies have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.inbox().alive
    }

    fn send(&self, job: Job) -> Result<(), TransferError> {
        let mut inbox = self.shared.inbox();
        if inbox.stop {
            return Err(TransferError::Stopped);
        }
        if inbox.alive >= TRANSFERS_MAX {
            return Err(TransferError::TooMany { transfers_max: TRANSFERS_MAX });
        }
        inbox.alive += 1;
        inbox.jobs.push_back(job);
        drop(inbox);
        self.shared.wake.notify_one();
        Ok(())
    }
}

impl fmt::Debug for TransferEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferEngine").field("under_way", &self.under_way()).finish()
    }
}

impl Drop for TransferEngine {
    /// End what is under way, as [stopped](TransferError::Stopped), and the thread.
    fn drop(&mut self) {
        self.shared.inbox().stop = true;
        self.shared.wake.notify_one();
        // What a copy kept may have been the last to hold the engine: then this is its own thread, which ends by itself.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Whole between any two statements.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
