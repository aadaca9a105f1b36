//! What one run leaves for the next on the device, beside the way over the host: the same bytes, and how much sooner. And what it leaves for one on a sibling.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use super::super::device::{Gpu, GpuConfig, IntermediateLimits};
use super::super::slots::Slot;
use super::bench::OWNER;
use super::{Check, CheckConfig, CheckFailure, Goal, Stage};
use std::time::Instant;
use weir_device::Arena;
use weir_device::cuda::{
    CommError, CommStore, CudaError, Devices, Held, Imported, PinnedMemory, Place, Span, Stream,
    TransferError,
};

/// How far below the way over the host a hand-over is to be (StreamBox, section 7.5).
const BELOW_PERCENT: f64 = 94.0;
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];

pub(super) fn check(
    devices: &Devices,
    gpu: &Gpu,
    config: &CheckConfig,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    for bytes in SIZES {
        let mut taken = gpu.slots.take(None);
        let Some(slot) = taken.slot() else { return Ok(()) };
        for check in on_one(gpu, slot, bytes, config.repeats)? {
            tell(check);
        }
    }
    let Some(sibling) = devices.siblings(config.ordinal)?.first().copied() else {
        let detail = match devices.infos().len() {
            1 => "there is one GPU".to_owned(),
            count => format!("of {count} GPUs, cuda:{} reads the memory of no other", config.ordinal),
        };
        let none = Check::passed(Stage::HandingOver, "siblings");
        tell(Check { detail: format!("none: {detail}"), ..none });
        return Ok(());
    };
    let (memory_bytes_max, intermediates) = (config.memory_bytes_max, IntermediateLimits::default());
    let held = GpuConfig {
        ordinal: sibling,
        memory_bytes_max,
        slots: 1,
        intermediates,
        pinned_cache_bytes_max: 0,
        library: None,
        compiler: None,
    };
    let sibling = Gpu::open(devices, &held, &Arena::new(0))?;
    for bytes in SIZES {
        let (mut here, mut there) = (gpu.slots.take(None), sibling.slots.take(None));
        let (Some(here), Some(there)) = (here.slot(), there.slot()) else { return Ok(()) };
        for check in on_two((gpu, here), (&sibling, there), bytes, config.repeats)? {
            tell(check);
        }
    }
    Ok(())
}

fn on_one(gpu: &Gpu, slot: &mut Slot, bytes: usize, repeats: u32) -> Result<[Check; 2], CheckFailure> {
    let len = bytes as u64;
    let arena = slot.memory.prepare(2 * len, OWNER, gpu.now_ns())?;
    let (from, to) = arena.slice(0, len).zip(arena.slice(len, len)).ok_or_else(too_little)?;
    let (pattern, stream) = (pattern(bytes), &slot.stream);
    stream.write(&pattern, from)?;
    let mut pinned = PinnedMemory::new(&gpu.context, bytes)?;
    let timed = |way: &mut dyn FnMut() -> Result<(), CudaError>| timed(stream, to, &pattern, repeats, way);
    let host = timed(&mut || over_host((stream, from), (stream, to), &mut pinned))?;
    let device = timed(&mut || on_device(gpu, stream, from, to))?;
    Ok(beside(("through the host", host), ("on the device", device), len))
}

/// The same from the memory of a sibling.
fn on_two(
    (gpu, here): (&Gpu, &mut Slot),
    (sibling, there): (&Gpu, &mut Slot),
    bytes: usize,
    repeats: u32,
) -> Result<[Check; 2], CheckFailure> {
    let len = bytes as u64;
    let to = here.memory.prepare(len, OWNER, gpu.now_ns())?;
    let from = there.memory.prepare(len, OWNER, sibling.now_ns())?;
    let pattern = pattern(bytes);
    there.stream.write(&pattern, from)?;
    let mut pinned = PinnedMemory::new(&gpu.context, bytes)?;
    let timed =
        |way: &mut dyn FnMut() -> Result<(), CudaError>| timed(&here.stream, to, &pattern, repeats, way);
    let host = timed(&mut || over_host((&there.stream, from), (&here.stream, to), &mut pinned))?;
    let near = timed(&mut || from_sibling((sibling, &there.stream, from), (&here.stream, to)))?;
    Ok(beside(("from a sibling through the host", host), ("from a sibling's memory", near), len))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

/// How long a way takes to bring a pattern to `to`, in nanoseconds, and whether it was that what came.
fn timed(
    stream: &Stream,
    to: Span,
    pattern: &[u8],
    repeats: u32,
    way: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<(u64, bool), CudaError> {
    let (mut times_ns, mut is_same) = (Vec::new(), true);
    let mut found = vec![0; pattern.len()];
    // The first is for memory that is mapped once.
    for repeat in 0..=repeats.max(1) {
        stream.fill(to, 0)?;
        stream.synchronize()?;
        let began = Instant::now();
        way()?;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if repeat == 0 {
            stream.read(to, &mut found)?;
            is_same &= found == pattern;
        } else {
            times_ns.push(took_ns);
        }
    }
    times_ns.sort_unstable();
    Ok((times_ns.get(times_ns.len() / 2).copied().unwrap_or_default(), is_same))
}

/// The way over the host, and another beside it.
fn beside(host: (&str, (u64, bool)), near: (&str, (u64, bool)), bytes: u64) -> [Check; 2] {
    let check = |(way, (time_ns, is_same)): (&str, (u64, bool))| {
        let what = format!("{} KiB handed over {way}", bytes >> 10);
        let check = Check::passed(Stage::HandingOver, what).took(time_ns, bytes, 0);
        let detail = if is_same { String::new() } else { "other bytes came".to_owned() };
        Check { passed: is_same, detail, ..check }
    };
    #[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
    let below = 100.0 * (1.0 - near.1.0 as f64 / host.1.0.max(1) as f64);
    [check(host), check(near).asked(Goal::at_least(below, BELOW_PERCENT, "% below the way over the host"))]
}

/// The least that this way takes: two copies of pinned memory, and none between processes.
fn over_host(
    (there, from): (&Stream, Span),
    (here, to): (&Stream, Span),
    pinned: &mut PinnedMemory,
) -> Result<(), CudaError> {
    // SAFETY: the pinned memory lives until the stream is synchronised, and nobody else reads or writes it.
    unsafe { there.copy_to_host(from, pinned.as_mut_slice().as_mut_ptr()) }?;
    there.synchronize()?;
    // SAFETY: as above.
    unsafe { here.copy_from_host(pinned.as_slice().as_ptr(), to) }?;
    here.synchronize()
}

fn on_device(gpu: &Gpu, stream: &Stream, from: Span, to: Span) -> Result<(), CudaError> {
    left(gpu, stream, from, |held, span| {
        held.order(stream)?;
        stream.copy(span, to)?;
        stream.synchronize()
    })
}

/// As workers do it, but for the way of the files from one to the other.
fn from_sibling(
    (sibling, there, from): (&Gpu, &Stream, Span),
    (here, to): (&Stream, Span),
) -> Result<(), CudaError> {
    left(sibling, there, from, |held, _| {
        let exported = held.export()?.ok_or_else(too_little)?;
        let imported = Imported::map(here.context(), &exported)?;
        here.copy(imported.span(), to)?;
        here.synchronize()
    })
}

/// Leave `from` on its device, have it read there, and let go of it.
fn left(
    gpu: &Gpu,
    stream: &Stream,
    from: Span,
    read: impl FnOnce(&Held, Span) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let store: &CommStore = &gpu.intermediates;
    let index = store.put(from, stream, OWNER, gpu.now_ns()).map_err(device)?;
    stream.synchronize()?;
    let held = store.get(index, OWNER, gpu.now_ns()).map_err(device)?;
    let Place::Device(span) = held.place() else {
        return Err(CudaError::Invalid("there is no room on the device to hand anything over".to_owned()));
    };
    read(&held, span)?;
    drop(held);
    store.remove(index, OWNER).map_err(device)
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
