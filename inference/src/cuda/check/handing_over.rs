//! What one run leaves for the next on the device, beside the way over the host: the same bytes, and how much sooner.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use super::super::device::Gpu;
use super::super::slots::Slot;
use super::bench::OWNER;
use super::{Check, CheckConfig, CheckFailure, Stage};
use std::time::Instant;
use weir_device::cuda::{CommError, CudaError, PinnedMemory, Place, Span, TransferError};

const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];

pub(super) fn check(
    gpu: &Gpu,
    config: &CheckConfig,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    for bytes in SIZES {
        let mut taken = gpu.slots.take(None);
        let Some(slot) = taken.slot() else { return Ok(()) };
        for check in of_size(gpu, slot, bytes, config.repeats)? {
            tell(check);
        }
    }
    Ok(())
}

fn of_size(gpu: &Gpu, slot: &mut Slot, bytes: usize, repeats: u32) -> Result<[Check; 2], CheckFailure> {
    let len = bytes as u64;
    let arena = slot.memory.prepare(2 * len, OWNER, gpu.now_ns())?;
    let spans = arena.slice(0, len).zip(arena.slice(len, len));
    let (from, to) = spans.ok_or_else(|| CudaError::Invalid("a slot has less than it said".to_owned()))?;
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    slot.stream.write(&pattern, from)?;
    let mut pinned = PinnedMemory::new(&gpu.context, bytes)?;

    let mut is_same = true;
    let mut timed = |slot: &Slot, way: &mut dyn FnMut(&Slot) -> Result<(), CudaError>| {
        let mut times_ns = Vec::new();
        let mut found = vec![0; bytes];
        // The first is for memory that is mapped once.
        for repeat in 0..=repeats.max(1) {
            slot.stream.fill(to, 0)?;
            slot.stream.synchronize()?;
            let began = Instant::now();
            way(slot)?;
            let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if repeat == 0 {
                slot.stream.read(to, &mut found)?;
                is_same &= found == pattern;
            } else {
                times_ns.push(took_ns);
            }
        }
        times_ns.sort_unstable();
        Ok::<u64, CudaError>(times_ns.get(times_ns.len() / 2).copied().unwrap_or_default())
    };
    // The least that this way takes: two copies of pinned memory, and none between processes.
    let over_host_ns = timed(slot, &mut |slot| over_host(slot, from, to, &mut pinned))?;
    let on_device_ns = timed(slot, &mut |slot| on_device(gpu, slot, from, to))?;

    let what = |way: &str| format!("{} KiB handed over {way}", bytes >> 10);
    let host = Check::passed(Stage::HandingOver, what("through the host")).took(over_host_ns, len, 0);
    let device = Check::passed(Stage::HandingOver, what("on the device")).took(on_device_ns, len, 0);
    #[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
    let below = 100.0 * (1.0 - on_device_ns as f64 / over_host_ns.max(1) as f64);
    let detail = if is_same { format!("{below:.1} % below") } else { "other bytes came".to_owned() };
    Ok([host, Check { passed: is_same, detail, ..device }])
}

fn over_host(slot: &Slot, from: Span, to: Span, pinned: &mut PinnedMemory) -> Result<(), CudaError> {
    // SAFETY: the pinned memory lives until the stream is synchronised, and nobody else reads or writes it.
    unsafe { slot.stream.copy_to_host(from, pinned.as_mut_slice().as_mut_ptr()) }?;
    slot.stream.synchronize()?;
    // SAFETY: as above.
    unsafe { slot.stream.copy_from_host(pinned.as_slice().as_ptr(), to) }?;
    slot.stream.synchronize()
}

fn on_device(gpu: &Gpu, slot: &Slot, from: Span, to: Span) -> Result<(), CudaError> {
    let store = &gpu.intermediates;
    let index = store.put(from, &slot.stream, OWNER, gpu.now_ns()).map_err(device)?;
    slot.stream.synchronize()?;
    let held = store.get(index, OWNER, gpu.now_ns()).map_err(device)?;
    let Place::Device(span) = held.place() else {
        return Err(CudaError::Invalid("there is no room on the device to hand anything over".to_owned()));
    };
    held.order(&slot.stream)?;
    slot.stream.copy(span, to)?;
    slot.stream.synchronize()?;
    drop(held);
    store.remove(index, OWNER).map_err(device)
}

fn device(error: CommError) -> CudaError {
    match error {
        CommError::Transfer(TransferError::Device(error)) => error,
        error => CudaError::Invalid(error.to_string()),
    }
}
