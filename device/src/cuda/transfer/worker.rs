//! Main loop of the engine's thread.

use super::TransferShared;
use super::copy_threads::CopyThreads;
use super::job::TransferError;
use super::lane::CopyLane;
use super::watch::watch;
use crate::cuda::pinned::PinnedRing;
use crate::cuda::stream::Stream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// State of the thread.
pub(super) struct TransferThread {
    shared: Arc<TransferShared>,
    ring: Arc<PinnedRing>,
    up: CopyLane,
    down: CopyLane,
    /// Joined when the thread ends.
    threads: CopyThreads,
    /// Number of messages that the inbox had at the last look, at most.
    seen: u64,
}

impl TransferThread {
    /// Creates the worker for two streams: `up` to the device and `down` from it.
    pub(super) fn new(
        shared: Arc<TransferShared>,
        ring: Arc<PinnedRing>,
        (up, down): (Stream, Stream),
        threads: CopyThreads,
    ) -> Self {
        Self { shared, ring, up: CopyLane::new(up), down: CopyLane::new(down), threads, seen: 0 }
    }

    /// Runs until stopped.
    pub(super) fn run(mut self) {
        while self.receive() {
            let chosen =
                self.up.choose(&self.ring, &self.threads) | self.down.choose(&self.ring, &self.threads);
            let given = self.up.give() | self.down.give();
            let reaped = self.up.reap(false) | self.down.reap(false);
            if !chosen && !given && !reaped {
                self.wait();
            }
            self.finish();
        }
        self.stop();
    }

    /// Receives new copies, and waits for one if there is nothing to do. Returns whether to
    /// continue.
    fn receive(&mut self) -> bool {
        let nothing_to_do = self.up.is_idle() && self.down.is_idle();
        let mut inbox = self.shared.inbox();
        if nothing_to_do {
            let quiet = |inbox: &mut super::Inbox| !inbox.stop && inbox.jobs.is_empty();
            self.shared.wake.wait_while(&mut inbox, quiet);
        }
        self.seen = self.shared.messages.load(Ordering::Acquire);
        let jobs = std::mem::take(&mut inbox.jobs);
        let filled = std::mem::take(&mut inbox.filled);
        let stop = inbox.stop;
        let look = std::mem::take(&mut inbox.look);
        drop(inbox);
        filled.into_iter().for_each(|filled| self.up.filled(filled));
        for job in jobs {
            if job.buffer.is_some() { self.down.add(job) } else { self.up.add(job) }
        }
        if look {
            self.up.stop(None);
            self.down.stop(None);
            self.finish();
        }
        !stop
    }

    /// Waits for a copy thread; if all are idle, waits for the device.
    fn wait(&mut self) {
        if self.up.is_filling() {
            let quiet = |inbox: &mut super::Inbox| {
                !inbox.stop && !inbox.look && inbox.jobs.is_empty() && inbox.filled.is_empty()
            };
            // The loop receives the new messages.
            if watch(|| self.shared.messages.load(Ordering::Acquire) != self.seen) {
                return;
            }
            self.shared.wake.wait_while(&mut self.shared.inbox(), quiet);
        } else {
            let _ = self.up.reap(true) || self.down.reap(true);
        }
    }

    /// Ends all copies, once the device has finished the blocks in flight.
    fn stop(&mut self) {
        for lane in [&mut self.up, &mut self.down] {
            lane.stop(Some(&TransferError::Stopped));
        }
        while self.up.is_filling() {
            let none = |inbox: &mut super::Inbox| inbox.filled.is_empty();
            let mut inbox = self.shared.inbox();
            self.shared.wake.wait_while(&mut inbox, none);
            let filled = std::mem::take(&mut inbox.filled);
            drop(inbox);
            filled.into_iter().for_each(|filled| self.up.filled(filled));
        }
        for lane in [&mut self.up, &mut self.down] {
            while lane.give() | lane.reap(true) {}
        }
        self.finish();
    }

    fn finish(&mut self) {
        let ended = self.up.finish() + self.down.finish();
        if ended > 0 {
            self.shared.inbox().alive -= ended;
        }
    }
}
