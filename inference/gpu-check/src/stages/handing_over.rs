//! Hand-over of intermediates on the device: from one run to the next run, or to a run on a peer
//! device. The checks compare the bytes and the time with a hand-over through the host.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use crate::bench::{Bench, OWNER};
use crate::config::CheckFailure;
use crate::goal::Goal;
use crate::outcome::{Check, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{MeasuredTime, Timer};
use weir_cuda::IntermediateLimits;
use weir_cuda::executor::{Gpu, GpuConfig, RunSlot};
use weir_device::Arena;
use weir_device::cuda::{
    CommError, CommIndex, CommStore, CudaError, Event, Imported, IntermediateGuard, IntermediatePlace,
    PinnedMemory, Span, Stream, TransferError,
};

const STAGE: Stage = Stage::HandingOver;
/// Minimum saving of time compared with a hand-over through the host, in per cent (StreamBox,
/// section 7.5).
const BELOW_PERCENT: f64 = 94.0;
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// Minimum size with a goal, in bytes. The time of a smaller hand-over is mostly driver calls.
const GOAL_BYTES_MIN: usize = 16 << 20;
/// Number of hand-overs between two synchronisations of the host. Each holds an intermediate until
/// then.
const IN_FLIGHT: u32 = 4;
/// Name of the case that looks for peer devices.
const SIBLINGS: &str = "siblings";

/// Hand-over method. `give` enqueues a hand-over on the streams; `finish` synchronises the streams
/// and releases the held memory.
trait Way {
    fn give(&mut self) -> Result<(), CudaError>;
    fn finish(&mut self) -> Result<(), CudaError>;
}

/// Time of a hand-over, and the first byte that differs.
type HandOverTime = (MeasuredTime, Option<Mismatch>);

pub(super) fn cases() -> Vec<String> {
    let on_sibling = SIZES.map(sibling_case);
    SIZES.map(size).into_iter().chain([SIBLINGS.to_owned()]).chain(on_sibling).collect()
}

fn size(bytes: usize) -> String {
    format!("{} KiB", bytes >> 10)
}

fn sibling_case(bytes: usize) -> String {
    format!("{} from a sibling", size(bytes))
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let gpu = &*bench.gpu;
    for bytes in SIZES {
        report.case(&size(bytes), |report| {
            let mut taken = gpu.slots.take(None);
            let slot = taken.slot().ok_or_else(no_slot)?;
            on_one(&bench.timer, gpu, slot, bytes)?.into_iter().for_each(|check| report.check(check));
            Ok(())
        })?;
    }
    let infos = bench.devices.infos();
    let ordinal = bench.config.ordinal;
    let Some(sibling) = bench.devices.siblings(ordinal)?.first().copied() else {
        let detail = match infos.len() {
            1 => "there is one GPU".to_owned(),
            count => format!("of {count} GPUs, cuda:{ordinal} reads the memory of no other"),
        };
        let none = Check { detail: format!("none: {detail}"), ..Check::passed(STAGE, SIBLINGS) };
        return report.single(SIBLINGS, || Ok(none));
    };
    if !SIZES.into_iter().any(|bytes| report.includes(&sibling_case(bytes))) {
        return Ok(());
    }
    let config = GpuConfig {
        ordinal: sibling,
        memory_bytes_max: bench.config.memory_bytes_max,
        slots: 1,
        intermediates: IntermediateLimits::default(),
        pinned_cache_bytes_max: 0,
        library: None,
        compiler: None,
    };
    let sibling = Gpu::open(bench.devices, &config, &Arena::new(0))?;
    for bytes in SIZES {
        report.case(&sibling_case(bytes), |report| {
            let mut here = gpu.slots.take(None);
            let mut there = sibling.slots.take(None);
            let (here, there) = here.slot().zip(there.slot()).ok_or_else(no_slot)?;
            let checks = on_two(&bench.timer, (gpu, here), (&sibling, there), bytes)?;
            checks.into_iter().for_each(|check| report.check(check));
            Ok(())
        })?;
    }
    Ok(())
}

fn on_one(timer: &Timer, gpu: &Gpu, slot: &mut RunSlot, bytes: usize) -> Result<[Check; 2], CheckFailure> {
    let len = bytes as u64;
    let arena = slot.memory.prepare(2 * len, OWNER, gpu.now_ns())?;
    let (from, to) = arena.slice(0, len).zip(arena.slice(len, len)).ok_or_else(too_little)?;
    let pattern = pattern(bytes);
    let stream = &slot.stream;
    stream.write(&pattern, from)?;
    let mut host = OverHost::new(gpu, (stream, from), (stream, to), bytes)?;
    let host = timed(timer, stream, to, &pattern, &mut host)?;
    let mut device =
        OnDevice { gpu, from: (stream, from), to: (stream, to), held: Vec::new(), imported: None };
    let device = timed(timer, stream, to, &pattern, &mut device)?;
    Ok(beside(("through the host", host), ("on the device", device), bytes))
}

/// Compares the hand-over from the memory of a peer device with a hand-over through the host.
fn on_two(
    timer: &Timer,
    (gpu, here): (&Gpu, &mut RunSlot),
    (sibling, there): (&Gpu, &mut RunSlot),
    bytes: usize,
) -> Result<[Check; 2], CheckFailure> {
    let len = bytes as u64;
    let to = here.memory.prepare(len, OWNER, gpu.now_ns())?;
    let from = there.memory.prepare(len, OWNER, sibling.now_ns())?;
    let pattern = pattern(bytes);
    let here = &here.stream;
    let there = &there.stream;
    there.write(&pattern, from)?;
    let mut host = OverHost::new(gpu, (there, from), (here, to), bytes)?;
    let host = timed(timer, here, to, &pattern, &mut host)?;
    let mut near = OnDevice {
        gpu: sibling,
        from: (there, from),
        to: (here, to),
        held: Vec::new(),
        imported: Some(Vec::new()),
    };
    let near = timed(timer, here, to, &pattern, &mut near)?;
    Ok(beside(("from a sibling through the host", host), ("from a sibling's memory", near), bytes))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

/// Median time of a hand-over, measured over several hand-overs without a synchronisation between
/// them.
fn timed(
    timer: &Timer,
    stream: &Stream,
    to: Span,
    pattern: &[u8],
    way: &mut dyn Way,
) -> Result<HandOverTime, CudaError> {
    let mut hand_over = |count: u32| {
        let given = (0..count).try_for_each(|_| way.give());
        // Synchronise after an error as well: no copy may be in progress when the memory is freed.
        let finished = way.finish();
        given.and(finished)
    };
    stream.fill(to, 0)?;
    stream.synchronize()?;
    // The first hand-over also maps memory.
    hand_over(1)?;
    let mut found = vec![0; pattern.len()];
    stream.read(to, &mut found)?;
    let MeasuredTime { time_ns, clocks } = timer.host(timer.repeats(), || hand_over(IN_FLIGHT))?;
    let measured = MeasuredTime { time_ns: time_ns / u64::from(IN_FLIGHT), clocks };
    Ok((measured, Mismatch::of_bytes(pattern, &found)))
}

/// Checks of the hand-over through the host, and of the faster method.
fn beside(host: (&str, HandOverTime), near: (&str, HandOverTime), bytes: usize) -> [Check; 2] {
    let check = |(way, (measured, differs)): (&str, HandOverTime)| {
        let check = Check::passed(STAGE, format!("{} handed over {way}", size(bytes)));
        check.took(measured, bytes as u64, 0).same(differs, "other bytes came")
    };
    let host_ns = host.1.0.time_ns;
    let near_ns = near.1.0.time_ns;
    #[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
    let below = 100.0 * (1.0 - near_ns as f64 / host_ns.max(1) as f64);
    let goal = Goal::at_least(below, BELOW_PERCENT, "% below the way over the host");
    [check(host), check(near).asked((bytes >= GOAL_BYTES_MIN).then_some(goal))]
}

/// Fastest possible hand-over through the host: two copies of pinned memory, and no copy between
/// processes.
struct OverHost<'a> {
    from: (&'a Stream, Span),
    to: (&'a Stream, Span),
    pinned: PinnedMemory,
    /// Recorded after the pinned memory was written, and after it was read.
    written: Event,
    read: Event,
}

impl<'a> OverHost<'a> {
    fn new(
        gpu: &Gpu,
        from: (&'a Stream, Span),
        to: (&'a Stream, Span),
        bytes: usize,
    ) -> Result<Self, CudaError> {
        let pinned = PinnedMemory::new(&gpu.context, bytes)?;
        let written = Event::new(from.0.context())?;
        let read = Event::new(to.0.context())?;
        Ok(Self { from, to, pinned, written, read })
    }
}

impl Way for OverHost<'_> {
    fn give(&mut self) -> Result<(), CudaError> {
        let Self { from: (there, from), to: (here, to), pinned, written, read } = self;
        there.wait(read)?;
        // SAFETY: the pinned memory lives until `finish` has synchronised both streams. The events
        // order reads and writes.
        unsafe { there.copy_to_host(*from, pinned.as_mut_slice().as_mut_ptr()) }?;
        there.record(written)?;
        here.wait(written)?;
        // SAFETY: as above.
        unsafe { here.copy_from_host(pinned.as_slice().as_ptr(), *to) }?;
        here.record(read)
    }

    fn finish(&mut self) -> Result<(), CudaError> {
        let synchronised = self.from.0.synchronize();
        synchronised.and(self.to.0.synchronize())
    }
}

/// Hand-over through the device's store, read in place by the same device or by a peer, as in
/// workers.
struct OnDevice<'a> {
    gpu: &'a Gpu,
    from: (&'a Stream, Span),
    to: (&'a Stream, Span),
    /// Intermediates held until `finish`.
    held: Vec<(CommIndex, IntermediateGuard)>,
    /// Mappings of the peer's memory, held until `finish`. `None` if the same device reads.
    imported: Option<Vec<Imported>>,
}

impl Way for OnDevice<'_> {
    fn give(&mut self) -> Result<(), CudaError> {
        let Self { gpu, from: (there, from), to: (here, to), held, imported } = self;
        let store: &CommStore = &gpu.intermediates;
        let index = store.put(*from, there, OWNER, gpu.now_ns()).map_err(device)?;
        let kept = store.get(index, OWNER, gpu.now_ns()).map_err(device)?;
        let IntermediatePlace::Device(span) = kept.place() else {
            return Err(CudaError::Invalid(
                "there is no room on the device to hand anything over".to_owned(),
            ));
        };
        let span = match imported {
            None => {
                kept.order(here)?;
                span
            }
            Some(imported) => {
                let exported = kept.export()?.ok_or_else(too_little)?;
                let mapped = Imported::map(here.context(), &exported)?;
                let span = mapped.span();
                imported.push(mapped);
                span
            }
        };
        held.push((index, kept));
        here.copy(span, *to)
    }

    fn finish(&mut self) -> Result<(), CudaError> {
        let synchronised = self.from.0.synchronize().and(self.to.0.synchronize());
        self.imported.iter_mut().for_each(Vec::clear);
        let removed = self.held.drain(..).try_for_each(|(index, held)| {
            drop(held);
            self.gpu.intermediates.remove(index, OWNER).map_err(device)
        });
        synchronised.and(removed)
    }
}

fn no_slot() -> CudaError {
    CudaError::Invalid("the device has no slots".to_owned())
}

fn too_little() -> CudaError {
    CudaError::Invalid("a device has less room than it said".to_owned())
}

fn device(error: CommError) -> CudaError {
    match error {
        CommError::Transfer(TransferError::Device(error)) => error,
        error => CudaError::Invalid(error.to_string()),
    }
}
