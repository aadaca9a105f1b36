//! Copies of one direction, on the engine's thread.
#![allow(unsafe_code, reason = "copies are given to the device, with addresses of pinned memory")]

use super::blocks::CopyBlock;
use super::copy_threads::{CopyThreads, Fill, Filled};
use super::job::{CopyJob, TransferError};
use super::schedule::CopySchedule;
use super::watch::watch;
use crate::cuda::error::CudaError;
use crate::cuda::event::Event;
use crate::cuda::pinned::{PinnedBlock, PinnedRing};
use crate::cuda::stream::Stream;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The most blocks in flight on the device: enough to keep the bus busy, and few enough that a new
/// copy starts soon. A block takes some 40 microseconds at 50 GB/s.
const FLIGHTS_MAX: usize = 6;

/// The most bytes in flight, before another block begins: less than half a millisecond.
const FLIGHT_BYTES_MAX: u64 = 24 << 20;

/// The least number of blocks that may be chosen at once: while one waits for the device, the copy
/// threads fill the next.
const CHOSEN_LEN_MIN: usize = 2;

/// The longest wait for a block of the ring that another device's engine holds, before checking the
/// inbox.
const RING_WAIT: Duration = Duration::from_millis(5);

/// Copies of one direction.
pub(super) struct CopyLane {
    stream: Stream,
    schedule: CopySchedule,
    active: HashMap<u64, Active>,
    next_id: u64,
    /// Blocks that go next, in order.
    chosen: VecDeque<Chosen>,
    /// Their length together.
    chosen_bytes: u64,
    next_ticket: u64,
    flights: VecDeque<Flight>,
    /// Length of the blocks in flight together.
    flight_bytes: u64,
}

/// A copy that has not ended.
struct Active {
    job: CopyJob,
    /// Blocks that are chosen or in flight.
    under_way: usize,
    /// Blocks that are not chosen yet.
    left: usize,
    /// Why the copy stops.
    error: Option<TransferError>,
}

/// A chosen block.
struct Chosen {
    id: u64,
    number: usize,
    bytes: u64,
    ticket: u64,
    stage: CopyStage,
}

/// Progress of a chosen block on the host.
enum CopyStage {
    /// A copy thread gathers it.
    Filling,
    /// Ready for the device, with its pinned block if it needs one.
    Ready(Option<PinnedBlock>),
}

/// A block in flight on the device.
struct Flight {
    id: u64,
    block: usize,
    bytes: u64,
    event: Arc<Event>,
    staging: Option<PinnedBlock>,
}

impl CopyLane {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            schedule: CopySchedule::default(),
            active: HashMap::new(),
            next_id: 0,
            chosen: VecDeque::new(),
            chosen_bytes: 0,
            next_ticket: 0,
            flights: VecDeque::new(),
            flight_bytes: 0,
        }
    }

    /// Starts a copy.
    pub(super) fn add(&mut self, job: CopyJob) {
        let id = self.next_id;
        self.next_id += 1;
        self.schedule.add(id, job.blocks.iter().map(|block| block.span.bytes()).collect());
        let left = job.blocks.len();
        self.active.insert(id, Active { job, under_way: 0, left, error: None });
    }

    /// Stops cancelled copies, or all copies with the same error.
    pub(super) fn stop(&mut self, all: Option<&TransferError>) {
        for (id, active) in &mut self.active {
            let cancelled = active.job.transfer.is_cancelled().then_some(TransferError::Cancelled);
            if let Some(error) = all.cloned().or(cancelled) {
                active.error.get_or_insert(error);
                self.schedule.remove(*id);
            }
        }
    }

    /// Chooses the next blocks, as many as keep the copy threads busy, and has them gathered where
    /// necessary. Returns whether there were any.
    pub(super) fn choose(&mut self, ring: &Arc<PinnedRing>, threads: &CopyThreads) -> bool {
        let mut any = false;
        let len_max = threads.count().max(CHOSEN_LEN_MIN);
        while self.chosen.len() < len_max
            && self.chosen_bytes < threads.ahead_bytes()
            && !self.schedule.is_empty()
        {
            // Taken before the choice, which cannot be undone.
            let may_wait = self.chosen.is_empty() && self.flights.is_empty();
            let wait = if may_wait { RING_WAIT } else { Duration::ZERO };
            let Some(staging) = ring.take(wait) else { break };
            let Some((id, number)) = self.schedule.next() else { break };
            let Some(active) = self.active.get_mut(&id) else { continue };
            let Some(block) = active.job.blocks.get(number) else { continue };
            let bytes = block.span.bytes();
            active.left -= 1;
            active.under_way += 1;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let stage = if active.job.buffer.is_some() {
                CopyStage::Ready(Some(staging))
            } else if block.direct().is_some() {
                CopyStage::Ready(None)
            } else {
                let blocks = active.job.blocks.clone();
                threads.fill(Fill { ticket, blocks, number, staging });
                CopyStage::Filling
            };
            self.chosen_bytes += bytes;
            self.chosen.push_back(Chosen { id, number, bytes, ticket, stage });
            any = true;
        }
        any
    }

    /// Takes back a gathered block.
    pub(super) fn filled(&mut self, Filled { ticket, staging }: Filled) {
        if let Some(chosen) = self.chosen.iter_mut().find(|chosen| chosen.ticket == ticket) {
            chosen.stage = CopyStage::Ready(Some(staging));
        }
    }

    /// Gives the next blocks to the device, in order, while they are ready and few enough are in
    /// flight. Returns whether there were any.
    pub(super) fn give(&mut self) -> bool {
        let mut any = false;
        while self.flights.len() < FLIGHTS_MAX && self.flight_bytes < FLIGHT_BYTES_MAX {
            let ready = |chosen: &mut Chosen| matches!(chosen.stage, CopyStage::Ready(_));
            let Some(Chosen { id, number, bytes, stage: CopyStage::Ready(staging), .. }) =
                self.chosen.pop_front_if(ready)
            else {
                break;
            };
            self.chosen_bytes -= bytes;
            any = true;
            let Some(active) = self.active.get_mut(&id) else { continue };
            let block = active.job.blocks.get(number).filter(|_| active.error.is_none());
            let given = block.map(|block| give(&self.stream, &active.job, block, staging));
            match given {
                Some(Ok((event, staging))) => {
                    self.flight_bytes += bytes;
                    self.flights.push_back(Flight { id, block: number, bytes, event, staging });
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

    /// Collects the blocks that have arrived; if `wait` is set, waits for the oldest. Returns
    /// whether there were any.
    pub(super) fn reap(&mut self, wait: bool) -> bool {
        let mut any = false;
        while let Some(flight) = self.flights.front() {
            let arrived = match flight.event.is_reached() {
                Ok(false) if wait && !any => self.wait_for(flight),
                arrived => arrived,
            };
            if matches!(arrived, Ok(false)) {
                break;
            }
            let Some(flight) = self.flights.pop_front() else { break };
            self.flight_bytes -= flight.bytes;
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

    /// Waits until a block has arrived. While later blocks are in flight, the bus stays busy, and
    /// the thread may sleep. The last block ends a copy whose caller waits.
    fn wait_for(&self, flight: &Flight) -> Result<bool, CudaError> {
        if self.flights.len() == 1 {
            let mut reached = Ok(false);
            let is_over = || {
                reached = flight.event.is_reached();
                !matches!(reached, Ok(false))
            };
            if watch(is_over) {
                return reached;
            }
        }
        flight.event.synchronize().map(|()| true)
    }

    /// Ends the copies without remaining blocks, and stopped copies without blocks in flight.
    /// Returns their number.
    pub(super) fn finish(&mut self) -> usize {
        let over = |active: &Active| active.under_way == 0 && (active.left == 0 || active.error.is_some());
        let ids: Vec<u64> =
            self.active.iter().filter(|(_, active)| over(active)).map(|(id, _)| *id).collect();
        for id in &ids {
            if let Some(Active { job, error, .. }) = self.active.remove(id) {
                job.finish(error.map_or(Ok(()), Err));
            }
        }
        ids.len()
    }

    /// Whether a copy thread is gathering one of its blocks.
    pub(super) fn is_filling(&self) -> bool {
        self.chosen.iter().any(|chosen| matches!(chosen.stage, CopyStage::Filling))
    }

    /// Whether no copy is active.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }
}

impl Active {
    /// Records that a block has arrived, or has failed.
    fn land(&mut self, flight: &Flight, error: Option<CudaError>) {
        self.under_way -= 1;
        if let Some(error) = error {
            self.error.get_or_insert(error.into());
            return;
        }
        let (Some(buffer), Some(staging)) = (&self.job.buffer, &flight.staging) else { return };
        let Some(block) = self.job.blocks.get(flight.block) else { return };
        let mut buffer = buffer.lock();
        let start = usize::try_from(block.offset).unwrap_or(usize::MAX);
        let len = usize::try_from(block.span.bytes()).unwrap_or(usize::MAX);
        let to = buffer.as_mut().and_then(|buffer| buffer.get_mut(start..start.checked_add(len)?));
        if let (Some(to), Some(from)) = (to, staging.as_slice().get(..len)) {
            to.copy_from_slice(from);
        }
    }
}

/// Gives a block to the device, through `staging` unless the block is in pinned memory. Returns the
/// event of its arrival, and the pinned block to keep until then.
fn give(
    stream: &Stream,
    job: &CopyJob,
    block: &CopyBlock,
    staging: Option<PinnedBlock>,
) -> Result<(Arc<Event>, Option<PinnedBlock>), CudaError> {
    let event = Arc::new(Event::new(stream.context())?);
    let mut staging = staging;
    match &mut staging {
        Some(staging) if job.buffer.is_some() => {
            let to = staging.as_mut_slice().as_mut_ptr();
            // SAFETY: a block of a ring is as long as any block, and is kept until the copy is
            // done.
            unsafe { stream.copy_to_host(block.span, to) }?;
        }
        Some(staging) => {
            let from = staging.as_slice().as_ptr();
            // SAFETY: as above; no thread writes to it in the meantime.
            unsafe { stream.copy_from_host(from, block.span) }?;
        }
        None => {
            let bytes = block.direct().unwrap_or_default();
            // SAFETY: the job keeps its sources until all its blocks have arrived; shared pinned
            // memory is not written.
            unsafe { stream.copy_from_host(bytes.as_ptr(), block.span) }?;
        }
    }
    if let Err(error) = stream.record(&event) {
        // The pinned block can be reused as soon as this function returns.
        stream.synchronize()?;
        return Err(error);
    }
    if !block.ends.is_empty() {
        job.transfer.given(block.ends.clone(), &event);
    }
    Ok((event, staging))
}
