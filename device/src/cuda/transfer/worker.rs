//! The engine's thread.

use super::Shared;
use super::job::TransferError;
use super::lane::Lane;
use crate::cuda::pinned::PinnedRing;
use crate::cuda::stream::Stream;
use std::sync::{Arc, PoisonError};

/// What the thread works with.
pub(super) struct Worker {
    shared: Arc<Shared>,
    ring: Arc<PinnedRing>,
    up: Lane,
    down: Lane,
}

impl Worker {
    /// Work on the two streams, `up` to the device and `down` from it.
    pub(super) fn new(shared: Arc<Shared>, ring: Arc<PinnedRing>, up: Stream, down: Stream) -> Self {
        Self { shared, ring, up: Lane::new(up), down: Lane::new(down) }
    }

    /// Work until told to stop.
    pub(super) fn run(mut self) {
        while self.receive() {
            // A few blocks of each direction, then news again: a copy that has just come may be next.
            let may_wait = !self.up.is_flying() && !self.down.is_flying();
            let issued = self.up.issue(&self.ring, may_wait) | self.down.issue(&self.ring, may_wait);
            let reaped = self.up.reap(false) | self.down.reap(false);
            if !issued && !reaped {
                // The device has all it may have, or the ring is with it: its next news is ours.
                let _ = self.up.reap(true) || self.down.reap(true);
            }
            self.finish();
        }
        self.stop();
    }

    /// Take up what is new, waiting for it if there is nothing to do. Gives whether to go on.
    fn receive(&mut self) -> bool {
        let nothing_to_do = self.up.is_idle() && self.down.is_idle();
        let mut inbox = self.shared.inbox();
        if nothing_to_do {
            let quiet = |inbox: &mut super::Inbox| !inbox.stop && inbox.jobs.is_empty();
            inbox = self.shared.wake.wait_while(inbox, quiet).unwrap_or_else(PoisonError::into_inner);
        }
        let jobs = std::mem::take(&mut inbox.jobs);
        let (stop, look) = (inbox.stop, std::mem::take(&mut inbox.look));
        drop(inbox);
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

    /// End everything, once the device is done with what it has.
    fn stop(&mut self) {
        for lane in [&mut self.up, &mut self.down] {
            lane.stop(Some(&TransferError::Stopped));
            while lane.reap(true) {}
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
