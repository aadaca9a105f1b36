//! The copies of one direction, on the thread of the engine.
#![allow(unsafe_code, reason = "copies are given to the device, with addresses of pinned memory")]

use super::blocks::Block;
use super::copy_threads::{CopyThreads, Fill, Filled};
use super::job::{Job, TransferError};
use super::schedule::Schedule;
use crate::cuda::error::CudaError;
use crate::cuda::event::Event;
use crate::cuda::pinned::{PinnedBlock, PinnedRing};
use crate::cuda::stream::Stream;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How many blocks are with the device at once: enough that the bus never waits for us, few enough that a new copy does not wait long for it. A block
/// takes some 40 microseconds at 50 GB/s.
const FLIGHTS_MAX: usize = 6;

/// How long to wait for a block of the ring that another device's engine holds, before looking for news.
const RING_WAIT: Duration = Duration::from_millis(5);

/// Copies of one direction.
pub(super) struct Lane {
    stream: Stream,
    schedule: Schedule,
    active: HashMap<u64, Active>,
    next_id: u64,
    /// Blocks that go next, in order.
    chosen: VecDeque<Chosen>,
    next_ticket: u64,
    flights: VecDeque<Flight>,
}

/// A copy that has not ended.
struct Active {
    job: Job,
    /// Blocks that are chosen, or with the device.
    under_way: usize,
    /// Blocks that were not chosen yet.
    left: usize,
    /// Why it goes no further.
    error: Option<TransferError>,
}

/// A block that goes next.
struct Chosen {
    id: u64,
    number: usize,
    ticket: u64,
    stage: Stage,
}

/// How far a block has got on the host.
enum Stage {
    /// A copy thread brings it together.
    Filling,
    /// It can be given to the device, through a pinned block where it needs one.
    Ready(Option<PinnedBlock>),
}

/// A block that is with the device.
struct Flight {
    id: u64,
    block: usize,
    event: Arc<Event>,
    staging: Option<PinnedBlock>,
}

impl Lane {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            schedule: Schedule::default(),
            active: HashMap::new(),
            next_id: 0,
            chosen: VecDeque::new(),
            next_ticket: 0,
            flights: VecDeque::new(),
        }
    }

    /// Begin a copy.
    pub(super) fn add(&mut self, job: Job) {
        let id = self.next_id;
        self.next_id += 1;
        self.schedule.add(id, job.blocks.iter().map(|block| block.span.bytes()).collect());
        let left = job.blocks.len();
        self.active.insert(id, Active { job, under_way: 0, left, error: None });
    }

    /// Let go no further what has been cancelled, or everything for one reason.
    pub(super) fn stop(&mut self, all: Option<&TransferError>) {
        for (id, active) in &mut self.active {
            let cancelled = active.job.transfer.is_cancelled().then_some(TransferError::Cancelled);
            if let Some(error) = all.cloned().or(cancelled) {
                active.error.get_or_insert(error);
                self.schedule.remove(*id);
            }
        }
    }

    /// Choose the blocks that go next, as many as the copy threads can work on, and have those brought together that have to be. Gives whether there were any.
    pub(super) fn choose(&mut self, ring: &Arc<PinnedRing>, threads: &CopyThreads) -> bool {
        let mut any = false;
        while self.chosen.len() < threads.count() && !self.schedule.is_empty() {
            // Taken before the choice, which then cannot be undone any more.
            let may_wait = self.chosen.is_empty() && self.flights.is_empty();
            let wait = if may_wait { RING_WAIT } else { Duration::ZERO };
            let Some(staging) = ring.take(wait) else { break };
            let Some((id, number)) = self.schedule.next() else { break };
            let Some(active) = self.active.get_mut(&id) else { continue };
            let Some(block) = active.job.blocks.get(number) else { continue };
            active.left -= 1;
            active.under_way += 1;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let stage = if active.job.buffer.is_some() {
                Stage::Ready(Some(staging))
            } else if block.direct().is_some() {
                Stage::Ready(None)
            } else {
                let blocks = Arc::clone(&active.job.blocks);
                threads.fill(Fill { ticket, blocks, number, staging });
                Stage::Filling
            };
            self.chosen.push_back(Chosen { id, number, ticket, stage });
            any = true;
        }
        any
    }

    /// Take back a block that was brought together.
    pub(super) fn filled(&mut self, Filled { ticket, staging }: Filled) {
        if let Some(chosen) = self.chosen.iter_mut().find(|chosen| chosen.ticket == ticket) {
            chosen.stage = Stage::Ready(Some(staging));
        }
    }

    /// Give the device the next blocks, in order, as far as they are ready and it has few enough. Gives whether there were any.
    pub(super) fn give(&mut self) -> bool {
        let mut any = false;
        while self.flights.len() < FLIGHTS_MAX {
            let ready = |chosen: &mut Chosen| matches!(chosen.stage, Stage::Ready(_));
            let Some(Chosen { id, number, stage: Stage::Ready(staging), .. }) =
                self.chosen.pop_front_if(ready)
            else {
                break;
            };
            any = true;
            let Some(active) = self.active.get_mut(&id) else { continue };
            let block = active.job.blocks.get(number).filter(|_| active.error.is_none());
            let given = block.map(|block| give(&self.stream, &active.job, block, staging));
            match given {
                Some(Ok((event, staging))) => {
                    self.flights.push_back(Flight { id, block: number, event, staging });
                }
                Some(Err(error)) => {
                    active.under_way -= 1;
                    active.error.get_or_insert(error.into());
                    self.schedule.remove(id);
                }
                None => active.under_way -= 1,
            }
        }
        any
    }

    /// Take note of the blocks that have arrived, waiting for the oldest if asked to. Gives whether there were any.
    pub(super) fn reap(&mut self, wait: bool) -> bool {
        let mut any = false;
        while let Some(flight) = self.flights.front() {
            let arrived = if wait && !any {
                flight.event.synchronize().map(|()| true)
            } else {
                flight.event.is_reached()
            };
            if matches!(arrived, Ok(false)) {
                break;
            }
            let Some(flight) = self.flights.pop_front() else { break };
            any = true;
            if let Some(active) = self.active.get_mut(&flight.id) {
                active.land(&flight, arrived.err());
                if active.error.is_some() {
                    self.schedule.remove(flight.id);
                }
            }
        }
        any
    }

    /// End the copies of which nothing is left, or under way after they have been stopped. Gives how many ended.
    pub(super) fn finish(&mut self) -> usize {
        let over = |active: &Active| active.under_way == 0 && (active.left == 0 || active.error.is_some());
        let ids: Vec<u64> =
            self.active.iter().filter(|(_, active)| over(active)).map(|(id, _)| *id).collect();
        for id in &ids {
            if let Some(Active { job, error, .. }) = self.active.remove(id) {
                let transfer = Arc::clone(&job.transfer);
                // What it kept goes first: whoever waits for the end may count on that.
                drop(job);
                transfer.finish(error.map_or(Ok(()), Err));
            }
        }
        ids.len()
    }

    /// Whether a copy thread has a block of it.
    pub(super) fn is_filling(&self) -> bool {
        self.chosen.iter().any(|chosen| matches!(chosen.stage, Stage::Filling))
    }

    /// Whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }
}

impl Active {
    /// A block has arrived, or never will.
    fn land(&mut self, flight: &Flight, error: Option<CudaError>) {
        self.under_way -= 1;
        if let Some(error) = error {
            self.error.get_or_insert(error.into());
            return;
        }
        let (Some(buffer), Some(staging)) = (&self.job.buffer, &flight.staging) else { return };
        let Some(block) = self.job.blocks.get(flight.block) else { return };
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(block.offset).unwrap_or(usize::MAX);
        let len = usize::try_from(block.span.bytes()).unwrap_or(usize::MAX);
        let to = buffer.as_mut().and_then(|buffer| buffer.get_mut(start..start.checked_add(len)?));
        if let (Some(to), Some(from)) = (to, staging.as_slice().get(..len)) {
            to.copy_from_slice(from);
        }
    }
}

/// Give the device a block, through `staging` unless it lies in pinned memory. What comes back is the point at which it has arrived, and the pinned block to keep
/// until then.
fn give(
    stream: &Stream,
    job: &Job,
    block: &Block,
    staging: Option<PinnedBlock>,
) -> Result<(Arc<Event>, Option<PinnedBlock>), CudaError> {
    let event = Arc::new(Event::new(stream.context())?);
    let mut staging = staging;
    match &mut staging {
        Some(staging) if job.buffer.is_some() => {
            let to = staging.as_mut_slice().as_mut_ptr();
            // SAFETY: a block of a ring is as long as any block, and kept until the copy is done.
            unsafe { stream.copy_to_host(block.span, to) }?;
        }
        Some(staging) => {
            let from = staging.as_slice().as_ptr();
            // SAFETY: as above; nobody writes to it meanwhile.
            unsafe { stream.copy_from_host(from, block.span) }?;
        }
        None => {
            let bytes = block.direct().unwrap_or_default();
            // SAFETY: the job keeps its sources until all its blocks have arrived; pinned memory that is shared is not written.
            unsafe { stream.copy_from_host(bytes.as_ptr(), block.span) }?;
        }
    }
    if let Err(error) = stream.record(&event) {
        // The pinned block is somebody else's as soon as this returns.
        stream.synchronize()?;
        return Err(error);
    }
    if !block.ends.is_empty() {
        job.transfer.given(block.ends.clone(), &event);
    }
    Ok((event, staging))
}
