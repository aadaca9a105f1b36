//! The copies of one direction, on the thread of the engine.
#![allow(unsafe_code, reason = "copies are given to the device, with addresses of pinned memory")]

use super::blocks::Block;
use super::gather::{GATHER_MAX, gather, helpers};
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
const FLIGHTS_MAX: usize = 8;

/// How long to wait for a block of the ring that another device's engine holds, before looking for news.
const RING_WAIT: Duration = Duration::from_millis(5);

/// Copies of one direction.
pub(super) struct Lane {
    stream: Stream,
    schedule: Schedule,
    active: HashMap<u64, Active>,
    next_id: u64,
    flights: VecDeque<Flight>,
    /// Threads that help to bring blocks together.
    helpers: usize,
}

/// A copy that has not ended.
struct Active {
    job: Job,
    /// Blocks that are with the device.
    flying: usize,
    /// Blocks that have not been given to it.
    left: usize,
    /// Why it goes no further.
    error: Option<TransferError>,
}

/// A block that goes next.
struct Pick {
    id: u64,
    number: usize,
    staging: PinnedBlock,
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
            flights: VecDeque::new(),
            helpers: helpers(),
        }
    }

    /// Begin a copy.
    pub(super) fn add(&mut self, job: Job) {
        let id = self.next_id;
        self.next_id += 1;
        self.schedule.add(id, job.blocks.iter().map(|block| block.span.bytes()).collect());
        let left = job.blocks.len();
        self.active.insert(id, Active { job, flying: 0, left, error: None });
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

    /// Give the device the next few blocks, if there are any, it has few enough, and pinned blocks are to be had. Gives whether it was so.
    pub(super) fn issue(&mut self, ring: &Arc<PinnedRing>, may_wait: bool) -> bool {
        let mut picks = self.pick(ring, may_wait);
        let staged = picks.iter_mut().filter_map(|pick| {
            let job = &self.active.get(&pick.id)?.job;
            let block = job.blocks.get(pick.number)?;
            (job.buffer.is_none() && block.direct().is_none()).then_some((block, &mut pick.staging))
        });
        gather(staged.collect(), self.helpers);
        let any = !picks.is_empty();
        for Pick { id, number, staging } in picks {
            let Some(active) = self.active.get_mut(&id) else { continue };
            active.left -= 1;
            let Some(block) = active.job.blocks.get(number).filter(|_| active.error.is_none()) else {
                continue;
            };
            match give(&self.stream, &active.job, block, staging) {
                Ok((event, staging)) => {
                    active.flying += 1;
                    self.flights.push_back(Flight { id, block: number, event, staging });
                }
                Err(error) => {
                    active.error.get_or_insert(error.into());
                    self.schedule.remove(id);
                }
            }
        }
        any
    }

    /// Choose the next few blocks, each with a pinned one.
    fn pick(&mut self, ring: &Arc<PinnedRing>, may_wait: bool) -> Vec<Pick> {
        let mut picks = Vec::new();
        while picks.len() < GATHER_MAX
            && self.flights.len() + picks.len() < FLIGHTS_MAX
            && !self.schedule.is_empty()
        {
            // Taken before the choice, which then cannot be undone any more.
            let wait = may_wait && self.flights.is_empty() && picks.is_empty();
            let Some(staging) = ring.take(if wait { RING_WAIT } else { Duration::ZERO }) else { break };
            let Some((id, number)) = self.schedule.next() else { break };
            picks.push(Pick { id, number, staging });
        }
        picks
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
        let over = |active: &Active| active.flying == 0 && (active.left == 0 || active.error.is_some());
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

    /// Whether the device has something to do.
    pub(super) fn is_flying(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }
}

impl Active {
    /// A block has arrived, or never will.
    fn land(&mut self, flight: &Flight, error: Option<CudaError>) {
        self.flying -= 1;
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

/// Give the device a block, which has been brought together in `staging` if it has to. What comes back is the point at which it has arrived, and the pinned block to keep until then, unless it was not needed.
fn give(
    stream: &Stream,
    job: &Job,
    block: &Block,
    mut staging: PinnedBlock,
) -> Result<(Arc<Event>, Option<PinnedBlock>), CudaError> {
    let event = Arc::new(Event::new(stream.context())?);
    let mut kept = None;
    if job.buffer.is_some() {
        let to = staging.as_mut_slice().as_mut_ptr();
        kept = Some(staging);
        // SAFETY: a block of a ring is as long as any block, and kept until the copy is done.
        unsafe { stream.copy_to_host(block.span, to) }?;
    } else if let Some(bytes) = block.direct() {
        // SAFETY: the job keeps its sources until all its blocks have arrived; pinned memory that is shared is not written.
        unsafe { stream.copy_from_host(bytes.as_ptr(), block.span) }?;
    } else {
        let from = staging.as_slice().as_ptr();
        kept = Some(staging);
        // SAFETY: as above; nobody writes to it meanwhile.
        unsafe { stream.copy_from_host(from, block.span) }?;
    }
    if let Err(error) = stream.record(&event) {
        // The pinned block is somebody else's as soon as this returns.
        stream.synchronize()?;
        return Err(error);
    }
    if !block.ends.is_empty() {
        job.transfer.given(block.ends.clone(), &event);
    }
    Ok((event, kept))
}
