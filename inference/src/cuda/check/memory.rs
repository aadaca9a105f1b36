//! Memory: what a context and a stream take, what becomes of a device that has none left, and two tenants that share one.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::slots::Slot;
use super::super::weights::Weights;
use super::bench::{OWNER, in_slot, nanoseconds};
use super::{Check, CheckFailure, Stage, launches};
use std::time::Instant;
use weir_device::cuda::{BLOCK_BYTES, CudaError, Owner, Priority, Stream};

/// Somebody else than [`OWNER`].
const OTHER: Owner = Owner(1);
/// Streams that are made to see what one takes.
const STREAMS: u64 = 32;
/// Memory that changes hands.
const HANDED_OVER_BYTES: u64 = 32 * BLOCK_BYTES;
/// Runs of each tenant.
const RUNS: usize = 100;

pub(super) fn check(
    gpu: &Gpu,
    context_bytes: Option<u64>,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    tell(context(context_bytes));
    tell(streams(gpu)?);
    tell(handed_over(gpu)?);
    tell(used_up(gpu)?);
    tell(shared(gpu)?);
    Ok(())
}

/// What the device has less of since this process has it.
fn context(bytes: Option<u64>) -> Check {
    let told = |bytes: u64| format!("{} MiB", bytes >> 20);
    let detail = bytes.map_or_else(|| "the driver does not tell what is in use".to_owned(), told);
    Check { detail, ..Check::passed(Stage::Memory, "a context, with its pinned ring and streams") }
}

/// What the device has less of after streams were made.
fn streams(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let before = gpu.context.memory()?.free_bytes;
    let streams: Vec<_> =
        (0..STREAMS).map(|_| Stream::new(&gpu.context, Priority::Normal)).collect::<Result<_, _>>()?;
    let taken = before.saturating_sub(gpu.context.memory()?.free_bytes);
    drop(streams);
    let detail = format!("{} KiB each", (taken / STREAMS) >> 10);
    Ok(Check { detail, ..Check::passed(Stage::Memory, format!("{STREAMS} streams")) })
}

/// Nobody reads what another tenant has left in the memory of a slot.
fn handed_over(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let left = with_slot(gpu, |slot| {
        let span = slot.memory.prepare(HANDED_OVER_BYTES, OWNER, gpu.now_ns())?;
        slot.stream.fill(span, 0xa5)?;
        let span = slot.memory.prepare(HANDED_OVER_BYTES, OTHER, gpu.now_ns())?;
        let mut found = vec![0xff; usize::try_from(HANDED_OVER_BYTES).unwrap_or_default()];
        slot.stream.read(span, &mut found)?;
        slot.memory.release()?;
        Ok(found.iter().filter(|byte| **byte != 0).count())
    })?;
    let what = format!("{} MiB handed to another tenant", HANDED_OVER_BYTES >> 20);
    Ok(if left == 0 {
        Check::passed(Stage::Memory, what)
    } else {
        Check::failed(Stage::Memory, what, format!("{left} bytes are not zero"))
    })
}

/// Whoever asks a device for memory that it does not have is told so, and runs as ever when there is some again.
fn used_up(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let what = "no memory left, and some again";
    gpu.trim();
    let asked = with_slot(gpu, |all| {
        let usage = gpu.pool.usage();
        all.memory.prepare(usage.capacity_bytes - usage.used_bytes, OWNER, gpu.now_ns())?;
        let asked = with_slot(gpu, |more| {
            let asked = more.memory.prepare(BLOCK_BYTES, OTHER, gpu.now_ns());
            more.memory.release()?;
            Ok(asked.map(drop))
        });
        all.memory.release()?;
        asked
    })?;
    match asked {
        Err(CudaError::OutOfMemory(_)) => {}
        Err(error) => return Ok(Check::failed(Stage::Memory, what, error)),
        Ok(()) => return Ok(Check::failed(Stage::Memory, what, "there was more than the device has")),
    }
    // Memory went back, or this fails.
    runs(gpu, OTHER, 1)?;
    Ok(Check::passed(Stage::Memory, what))
}

/// Two tenants run at once what each has run alone.
fn shared(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let expected = runs(gpu, OWNER, 1)?;
    let began = Instant::now();
    runs(gpu, OWNER, RUNS)?;
    let alone_ns = nanoseconds(began);
    let began = Instant::now();
    let found = std::thread::scope(|threads| {
        let both = [OWNER, OTHER].map(|owner| threads.spawn(move || runs(gpu, owner, RUNS)));
        both.map(|thread| {
            thread.join().unwrap_or_else(|_| Err(CudaError::Invalid("a thread panicked".to_owned()).into()))
        })
    });
    let together_ns = nanoseconds(began);
    let what = format!("two tenants at once, {RUNS} runs each");
    let mut check = Check::passed(Stage::Memory, what).took(together_ns, 0, 0);
    check.detail = format!("one by itself takes {} us", alone_ns / 1000);
    for found in found {
        if found? != expected {
            check.passed = false;
            "one of them got other answers".clone_into(&mut check.detail);
        }
    }
    Ok(check)
}

/// Run a small program so often, and give what the last run made.
fn runs(gpu: &Gpu, owner: Owner, count: usize) -> Result<Vec<Vec<u8>>, CheckFailure> {
    gpu.context.make_current()?;
    let (program, input) = launches::program(gpu)?;
    let weights = Weights::none();
    let bound = Bound::new(gpu, program, &weights, owner)?;
    let made = in_slot(gpu, owner, &bound, &weights, &[input], |ready| {
        for _ in 0..count {
            ready.give_inputs()?;
            ready.run()?;
        }
        ready.outputs()
    })?;
    Ok(made)
}

fn with_slot<T>(gpu: &Gpu, work: impl FnOnce(&mut Slot) -> Result<T, CudaError>) -> Result<T, CudaError> {
    let mut taken = gpu.slots.take(None);
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let done = work(slot);
    slot.stream.synchronize()?;
    done
}
