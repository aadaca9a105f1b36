//! Memory checks: usage of a context and of streams, out of memory, isolation of two tenants, and
//! the cost of mapping.

use super::launches;
use crate::bench::{Bench, OWNER};
use crate::config::CheckFailure;
use crate::outcome::{Check, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{median, nanoseconds};
use std::time::{Duration, Instant};
use weir_cuda::executor::{Bound, Gpu, RunSlot, Weights, in_slot};
use weir_device::cuda::{BLOCK_BYTES, CudaError, MappingCost, MemoryOwner, Priority, Stream, mapping_cost};

/// The time of one of the driver's calls.
type CallTime = fn(&MappingCost) -> Duration;

const STAGE: Stage = Stage::Memory;
/// Owner of a second tenant.
const OTHER: MemoryOwner = MemoryOwner(1);
/// Number of streams for the measurement of the memory per stream.
const STREAMS: u64 = 32;
/// Memory that passes from one tenant to another, in bytes.
const HANDED_OVER_BYTES: u64 = 32 * BLOCK_BYTES;
/// Number of runs of each tenant.
const RUNS: usize = 100;
/// Sizes of the blocks whose mapping is timed, in bytes.
const MAPPED_BYTES: [u64; 5] = [2 << 20, 8 << 20, 32 << 20, 64 << 20, 256 << 20];
/// Maximum number of timed mappings.
const MAPPINGS_MAX: u32 = 20;

/// Names of the cases, with one check each.
const CONTEXT: &str = "context";
const STREAMS_CASE: &str = "streams";
const HANDED_OVER: &str = "memory handed to another tenant";
const USED_UP: &str = "out of memory";
const SHARED: &str = "two tenants at once";

pub(super) fn cases() -> Vec<String> {
    let named = [CONTEXT, STREAMS_CASE, HANDED_OVER, USED_UP, SHARED].map(str::to_owned);
    named.into_iter().chain(MAPPED_BYTES.map(mapping_case)).collect()
}

fn mapping_case(bytes: u64) -> String {
    format!("mapping {} MiB", bytes >> 20)
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let gpu = &*bench.gpu;
    report.single(CONTEXT, || Ok(context(bench.context_bytes)))?;
    report.single(STREAMS_CASE, || streams(gpu))?;
    report.single(HANDED_OVER, || handed_over(gpu))?;
    report.single(USED_UP, || used_up(gpu))?;
    report.single(SHARED, || shared(bench))?;
    for bytes in MAPPED_BYTES {
        report.single(&mapping_case(bytes), || mapping(bench, bytes))?;
    }
    Ok(())
}

/// Reports the device memory that opening the device used.
fn context(bytes: Option<u64>) -> Check {
    let size = |bytes: u64| format!("{} MiB", bytes >> 20);
    let detail = bytes.map_or_else(|| "the driver does not report the memory in use".to_owned(), size);
    let check = Check::passed(STAGE, "a context, with its pinned ring and streams");
    Check { memory_bytes: bytes, detail, ..check }
}

/// Measures the device memory that streams use.
fn streams(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let before = gpu.context.memory()?.free_bytes;
    let streams: Vec<_> =
        (0..STREAMS).map(|_| Stream::new(&gpu.context, Priority::Normal)).collect::<Result<_, _>>()?;
    let taken = before.saturating_sub(gpu.context.memory()?.free_bytes);
    drop(streams);
    let detail = format!("{} KiB each", (taken / STREAMS) >> 10);
    Ok(Check { memory_bytes: Some(taken), detail, ..Check::passed(STAGE, format!("{STREAMS} streams")) })
}

/// Median host time of the driver calls that map one block and unmap it again.
fn mapping(bench: &Bench<'_>, bytes: u64) -> Result<Check, CheckFailure> {
    let check = Check::passed(STAGE, format!("{} MiB created, mapped and opened", bytes >> 20));
    let context = &bench.gpu.context;
    let room_bytes = context.memory()?.free_bytes.min(bench.config.memory_bytes_max);
    if bytes > room_bytes {
        return Ok(Check { detail: "the device has no room for it".to_owned(), ..check });
    }
    bench.timer.warm_up(|| mapping_cost(context, bytes).map(drop))?;
    let count = bench.timer.repeats().min(MAPPINGS_MAX);
    let costs = (0..count).map(|_| mapping_cost(context, bytes)).collect::<Result<Vec<_>, _>>()?;
    let us = |of: CallTime| median(costs.iter().map(|cost| nanoseconds(of(cost))).collect());
    let calls: [(&str, CallTime); 5] = [
        ("cuMemCreate", |cost| cost.create),
        ("cuMemMap", |cost| cost.map),
        ("cuMemSetAccess", |cost| cost.set_access),
        ("cuMemUnmap", |cost| cost.unmap),
        ("cuMemRelease", |cost| cost.release),
    ];
    let detail = calls.map(|(call, of)| format!("{call} {:.1} us", us(of) as f64 / 1e3)).join(", ");
    let total = bench.timer.measured(us(MappingCost::total));
    Ok(Check { detail, ..check.took(total, bytes, 0) })
}

/// Checks that a tenant cannot read data that another tenant left in the memory of a slot.
fn handed_over(gpu: &Gpu) -> Result<Check, CheckFailure> {
    let len = usize::try_from(HANDED_OVER_BYTES).unwrap_or_default();
    let found = with_slot(gpu, |slot| {
        let span = slot.memory.prepare(HANDED_OVER_BYTES, OWNER, gpu.now_ns())?;
        slot.stream.fill(span, 0xa5)?;
        let span = slot.memory.prepare(HANDED_OVER_BYTES, OTHER, gpu.now_ns())?;
        let mut found = vec![0xff; len];
        slot.stream.read(span, &mut found)?;
        slot.memory.release()?;
        Ok(found)
    })?;
    let what = format!("{} MiB handed to another tenant", HANDED_OVER_BYTES >> 20);
    let differs = Mismatch::of_bytes(&vec![0; len], &found);
    Ok(Check::passed(STAGE, what).same(differs, "not all bytes are zero"))
}

/// Checks that a device without free memory rejects allocations, and runs again once memory is
/// free.
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
        Err(error) => return Ok(Check::failed(STAGE, what, error)),
        Ok(()) => return Ok(Check::failed(STAGE, what, "there was more than the device has")),
    }
    // Fails unless the memory was returned.
    runs(gpu, OTHER, 1)?;
    Ok(Check::passed(STAGE, what))
}

/// Runs two tenants concurrently, and compares the answers with the answers of each tenant alone.
fn shared(bench: &Bench<'_>) -> Result<Check, CheckFailure> {
    let gpu = &*bench.gpu;
    let expected = runs(gpu, OWNER, 1)?;
    bench.timer.warm_up(|| runs(gpu, OWNER, RUNS).map(drop))?;
    let began = Instant::now();
    runs(gpu, OWNER, RUNS)?;
    let alone_ns = nanoseconds(began.elapsed());
    let began = Instant::now();
    let found = std::thread::scope(|threads| {
        let both = [OWNER, OTHER].map(|owner| threads.spawn(move || runs(gpu, owner, RUNS)));
        both.map(|thread| {
            thread.join().unwrap_or_else(|_| Err(CudaError::Invalid("a thread panicked".to_owned()).into()))
        })
    });
    let together = bench.timer.since(began);
    let what = format!("two tenants at once, {RUNS} runs each");
    let check = Check::passed(STAGE, what).took(together, 0, 0);
    let mut check = Check { detail: format!("one by itself takes {} us", alone_ns / 1000), ..check };
    for found in found {
        check = check.same(
            Mismatch::of_outputs(&expected, &found?),
            "a tenant got other answers than when it ran alone",
        );
    }
    Ok(check)
}

/// Returns the outputs of a small program after `count` runs.
fn runs(gpu: &Gpu, owner: MemoryOwner, count: usize) -> Result<Vec<Vec<u8>>, CheckFailure> {
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

fn with_slot<T>(gpu: &Gpu, work: impl FnOnce(&mut RunSlot) -> Result<T, CudaError>) -> Result<T, CudaError> {
    let mut taken = gpu.slots.take(None);
    let slot = taken.slot().ok_or_else(|| CudaError::Invalid("the device has no slots".to_owned()))?;
    let done = work(slot);
    slot.stream.synchronize()?;
    done
}
