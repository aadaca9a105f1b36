//! Transfers between host and device, with fair sharing of the bus.
//!
//! A device has one bus, and a copy of a gigabyte in one piece would block all other copies. Every
//! copy is therefore cut into blocks of 2 MiB, which still reach the bus's full speed. A few blocks
//! are in flight at a time, and the next block is chosen after each ([`schedule`]). Data in pinned
//! memory is copied directly, all other data through the blocks of a ring. A load is divided into
//! groups, such as weights that a run reads one after the other, and compute streams wait for a
//! group instead of the whole load. The blocks, the ring of pinned memory and the wait points follow
//! StreamBox (Wu et al., USENIX ATC 2024).
//!
//! ```text
//!   load()  ─► blocks ─► schedule ─► copy threads ─► ring ─► copy stream ─► device
//!                                └──── from pinned memory ──► copy stream ─► device
//!              an event after the last block of each group, which compute streams wait for
//!   fetch() ─► blocks ─► schedule ─► copy stream ─► ring ─► buffer
//! ```
//!
//! A copy ends when its last block has arrived, when it is cancelled, when the device is lost, or
//! when the engine is dropped. Until then it keeps its source and target alive.

mod blocks;
mod copy_threads;
mod lane;
mod schedule;
mod watch;
mod worker;

mod job;
pub use copy_threads::{PIECE_BYTES, copy_threads};
pub use job::{CopySource, Fetch, Segment, Transfer, TransferError};

use super::context::Context;
use super::error::CudaError;
use super::memory::Span;
use super::pinned::PinnedRing;
use super::stream::{Priority, Stream};
use crate::{Arena, BufferMut};
use copy_threads::{CopyQueue, CopyThreads, Filled};
use job::CopyJob;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use worker::TransferThread;

/// The most copies that wait or are in progress.
const TRANSFERS_MAX: usize = 4_096;

/// Copies between the host and one device, on a dedicated engine thread and its copy threads.
/// Dropping the engine joins all these threads.
pub struct TransferEngine {
    shared: Arc<TransferShared>,
    copies: Arc<CopyQueue>,
    copy_threads: usize,
    thread: Option<JoinHandle<()>>,
}

/// State that callers and the thread share.
#[derive(Default)]
struct TransferShared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    /// Number of messages in the inbox so far, for the thread to watch.
    messages: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    /// Copies that the thread has not seen yet.
    jobs: VecDeque<CopyJob>,
    /// Blocks that copy threads have filled.
    filled: Vec<Filled>,
    /// Number of copies that have not ended.
    alive: usize,
    /// Whether the thread must look for cancelled copies.
    look: bool,
    stop: bool,
}

impl TransferEngine {
    /// Starts the threads of a device, which use blocks of `ring`. `copy_threads` of them fill
    /// blocks, at least one; see [`copy_threads`].
    pub fn new(
        context: &Arc<Context>,
        ring: &Arc<PinnedRing>,
        copy_threads: usize,
    ) -> Result<Self, CudaError> {
        let up = Stream::new(context, Priority::High)?;
        let down = Stream::new(context, Priority::High)?;
        let shared = Arc::<TransferShared>::default();
        let threads = CopyThreads::start(copy_threads, &shared)?;
        let copies = threads.queue().clone();
        let copy_threads = threads.count();
        let worker = TransferThread::new(shared.clone(), ring.clone(), (up, down), threads);
        let name = format!("transfer-{}", context.info().ordinal);
        let thread = Builder::new().name(name).spawn(move || worker.run());
        let thread =
            thread.map_err(|error| CudaError::Invalid(format!("no thread for transfers: {error}")))?;
        Ok(Self { shared, copies, copy_threads, thread: Some(thread) })
    }

    /// Copies to the device, group by group, in order. If a source is shorter than its place, the
    /// rest becomes zeroes. `keep` owns the places, and is kept until the copy has ended.
    pub fn load(
        &self,
        groups: &[Vec<Segment>],
        keep: Box<dyn Any + Send>,
    ) -> Result<Arc<Transfer>, TransferError> {
        let job = CopyJob::load(groups, keep, &self.shared)?;
        let transfer = job.transfer.clone();
        let pieces = usize::try_from(job.pieces()).unwrap_or(usize::MAX);
        self.send(job)?;
        self.copies.rouse(pieces.min(self.copy_threads));
        Ok(transfer)
    }

    /// Copies the current contents of `from` to the host, without waiting for other work. `keep`
    /// owns `from`, and is kept until the copy has ended.
    pub fn fetch(
        &self,
        from: Span,
        arena: &Arena,
        keep: Box<dyn Any + Send>,
    ) -> Result<Fetch, TransferError> {
        let len = usize::try_from(from.bytes()).unwrap_or(usize::MAX);
        let buffer: BufferMut = arena.buffer(len)?;
        let job = CopyJob::fetch(from, buffer, keep, &self.shared);
        let fetch = Fetch::new(&job);
        self.send(job)?;
        Ok(fetch)
    }

    /// Number of copies that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.inbox().alive
    }

    fn send(&self, job: CopyJob) -> Result<(), TransferError> {
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
        self.shared.notify();
        Ok(())
    }
}

impl fmt::Debug for TransferEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferEngine").field("under_way", &self.under_way()).finish()
    }
}

impl Drop for TransferEngine {
    /// Ends current copies as [stopped](TransferError::Stopped), and the thread.
    fn drop(&mut self) {
        self.shared.inbox().stop = true;
        self.shared.notify();
        // The `keep` value of a copy may have been the last owner of the engine: this is then the
        // engine's own thread, which ends after the drop.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl TransferShared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Consistent between any two statements.
        self.inbox.lock()
    }

    /// Signals a new message in the inbox to the thread.
    fn notify(&self) {
        self.messages.fetch_add(1, Ordering::Release);
        self.wake.notify_one();
    }
}

impl fmt::Debug for TransferShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
