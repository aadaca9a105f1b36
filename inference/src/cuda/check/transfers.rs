//! Rate of copies to the device by size, through the transfer engine that loads weights, compared
//! with a bare copy of pinned memory.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use super::timer::{median, nanoseconds};
use super::{Bench, Check, CheckFailure, Goal, Mismatch, Reporter, Stage};
use std::time::{Duration, Instant};
use weir_device::cuda::{
    CudaError, PinnedMemory, Priority, Source, Stream, Tensor, TensorKey, TransferError, Wanted,
};
use weir_types::ContentHash;

const STAGE: Stage = Stage::Transfers;
const SIZES: [usize; 4] = [64 << 10, 2 << 20, 32 << 20, 256 << 20];
/// Maximum number of timed loads.
const LOADS_MAX: u32 = 5;
/// Minimum size with a goal, in bytes. The time of a smaller load is mostly the start of the copy.
const LARGE: usize = 32 << 20;
/// Minimum rate of a load, relative to the rate of a bare copy.
const SHARE_MIN: f64 = 0.9;
/// Sizes of the short copy and of the load before it in bytes, and the time limit of the short
/// copy.
const SHORT: usize = 64 << 10;
const LONG: usize = 1 << 30;
const BEHIND_MAX: Duration = Duration::from_millis(1);
/// Name of the case of the short copy.
const BEHIND: &str = "64 KiB behind a load";

pub(super) fn cases() -> Vec<String> {
    SIZES.map(size).into_iter().chain([BEHIND.to_owned()]).collect()
}

fn size(bytes: usize) -> String {
    format!("{} KiB", bytes >> 10)
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    for bytes in SIZES {
        report.case(&size(bytes), |report| of_size(bench, bytes, report))?;
    }
    report.single(BEHIND, || behind_a_load(bench))
}

fn of_size(bench: &Bench<'_>, bytes: usize, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let (gpu, timer) = (&*bench.gpu, &bench.timer);
    let stream = Stream::new(&gpu.context, Priority::Normal)?;
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    let what = |how: &str| format!("{} to the device, {how}", size(bytes));
    let mut number = 0_u32;
    // Each load needs contents that the store does not have. Hashing is excluded from the time of a
    // load.
    let mut next = || {
        let mut contents = pattern.clone();
        contents.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to ^= from);
        number += 1;
        let key = TensorKey { hash: ContentHash::of(&contents), layout: u32::MAX };
        (Wanted { key, source: Source::Pageable(contents.clone().into()) }, contents)
    };
    let load = |wanted: Wanted| -> Result<Vec<Tensor>, CudaError> {
        let tensors = gpu.tensors.acquire(vec![vec![wanted]]).map_err(|error| device(&error))?;
        let tensors: Vec<Tensor> = tensors.into_iter().flatten().collect();
        tensors.iter().try_for_each(Tensor::wait).map_err(|error| device(&error))?;
        Ok(tensors)
    };
    let release = |tensors: Vec<Tensor>| {
        drop(tensors);
        gpu.tensors.reclaim(u64::MAX);
    };
    timer.warm_up(|| load(next().0).map(&release))?;
    let (mut times, mut differs) = (Vec::new(), None);
    for _ in 0..timer.repeats().min(LOADS_MAX) {
        let (wanted, contents) = next();
        let began = Instant::now();
        let tensors = load(wanted)?;
        times.push(nanoseconds(began.elapsed()));
        let mut back = vec![0; bytes];
        tensors.iter().try_for_each(|tensor| stream.read(tensor.span(), &mut back))?;
        differs = differs.or_else(|| Mismatch::of_bytes(&contents, &back));
        release(tensors);
    }
    let loaded = timer.measured(median(times));

    let pinned = PinnedMemory::copy_of(&gpu.context, &pattern)?;
    let tensors = load(next().0)?;
    let Some(to) = tensors.first().map(Tensor::span) else { return Ok(()) };
    // SAFETY: the pinned memory lives until the timer has synchronised the stream, and is not
    // written to.
    let bare = timer.device(&stream, || unsafe { stream.copy_from_host(pinned.as_slice().as_ptr(), to) });
    // Synchronise after an error as well: no copy may be in progress when the memory is dropped.
    stream.synchronize()?;
    let bare = bare?;
    release(tensors);

    let check = |how: &str, measured| Check::passed(STAGE, what(how)).took(measured, bytes as u64, 0);
    report.check(check("bare copy of pinned memory", bare));
    let check = check("as weights are loaded", loaded).same(differs, "other bytes came back");
    report.check(if bytes < LARGE { check } else { check.asked(beside_bare(bare.time_ns, loaded.time_ns)) });
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
fn beside_bare(bare_ns: u64, engine_ns: u64) -> Goal {
    Goal::at_least(bare_ns as f64 / engine_ns.max(1) as f64, SHARE_MIN, "of the rate of a bare copy")
}

/// Measures the time of a short copy that is requested right after a long load has started.
fn behind_a_load(bench: &Bench<'_>) -> Result<Check, CheckFailure> {
    let (gpu, timer) = (&*bench.gpu, &bench.timer);
    let room_bytes = bench.config.memory_bytes_max.min(gpu.context.info().memory_bytes);
    let long_bytes = usize::try_from(room_bytes / 4).unwrap_or(LONG).min(LONG);
    let mut number = 0_u32;
    let mut both = || -> Result<(u64, u64), CudaError> {
        number += 1;
        // The contents are never read, so new keys are enough to force a copy.
        let wanted = |bytes: usize, layout| {
            let key = TensorKey { hash: ContentHash::of(&number.to_le_bytes()), layout };
            vec![vec![Wanted { key, source: Source::Pageable(vec![1; bytes].into()) }]]
        };
        let (long, short) = (wanted(long_bytes, 1), wanted(SHORT, 2));
        let long_began = Instant::now();
        let long = gpu.tensors.acquire(long).map_err(|error| device(&error))?;
        let short_began = Instant::now();
        let short = gpu.tensors.acquire(short).map_err(|error| device(&error))?;
        short.iter().flatten().try_for_each(Tensor::wait).map_err(|error| device(&error))?;
        let short_ns = nanoseconds(short_began.elapsed());
        long.iter().flatten().try_for_each(Tensor::wait).map_err(|error| device(&error))?;
        let long_ns = nanoseconds(long_began.elapsed());
        drop((long, short));
        gpu.tensors.reclaim(u64::MAX);
        Ok((short_ns, long_ns))
    };
    timer.warm_up(|| both().map(drop))?;
    let runs = (0..timer.repeats().min(LOADS_MAX)).map(|_| both()).collect::<Result<Vec<_>, _>>()?;
    let (short, long): (Vec<u64>, Vec<u64>) = runs.into_iter().unzip();
    let (short, long_ns) = (timer.measured(median(short)), median(long));
    let what = format!("{} behind a load of {} MiB", size(SHORT), long_bytes >> 20);
    let check = Check::passed(STAGE, what).took(short, SHORT as u64, 0);
    let detail = format!("the load takes {:.1} ms", long_ns as f64 / 1e6);
    Ok(Check { detail, ..check.asked(Goal::within(short.time_ns, BEHIND_MAX)) })
}

fn device(error: &TransferError) -> CudaError {
    match error {
        TransferError::Device(error) => error.clone(),
        error => CudaError::Invalid(error.to_string()),
    }
}
