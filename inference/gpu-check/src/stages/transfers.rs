//! Rate of copies to the device by size, through the transfer engine that loads weights, compared
//! with a bare copy of pinned memory. Also the rate of loads from the page cache and from the
//! pinned cache.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use crate::bench::Bench;
use crate::config::CheckFailure;
use crate::folder::TemporaryFolder;
use crate::goal::Goal;
use crate::outcome::{Check, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{MeasuredTime, median, nanoseconds};
use bytes::Bytes;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use weir_device::cuda::{
    CopySource, CudaError, PIECE_BYTES, PinnedCache, PinnedMemory, Priority, Stream, TensorGuard, TensorKey,
    TransferError, Wanted, copy_threads,
};
use weir_inference::{InferenceError, MappedFile};
use weir_types::ContentHash;

const STAGE: Stage = Stage::Transfers;
const SIZES: [usize; 4] = [64 << 10, 2 << 20, 32 << 20, 256 << 20];
/// Maximum number of timed loads.
const LOADS_MAX: u32 = 5;
/// Minimum size with a goal, in bytes. The time of a smaller load is mostly the start of the copy.
const LARGE: usize = 32 << 20;
/// Minimum rate of a load, relative to the rate of a bare copy.
const SHARE_MIN: f64 = 0.9;
/// Case of the loads from the page cache and from the pinned cache.
const LOADS: &str = "loads from host memory";
/// Size of these loads in bytes: about a ResNet-50 in FP32.
const LOAD_BYTES: usize = 100 << 20;
/// Size of the pinned memory into which copies of the host are timed, as large as a device's ring.
const RING_BYTES: usize = 48 << 20;
/// Failure of a load.
const OTHER_BYTES: &str = "other bytes came back";
/// Sizes of the short copy and of the load before it in bytes, and the time limit of the short
/// copy.
const SHORT: usize = 64 << 10;
const LONG: usize = 1 << 30;
const BEHIND_MAX: Duration = Duration::from_millis(1);
/// Name of the case of the short copy.
const BEHIND: &str = "64 KiB behind a load";

pub(super) fn cases() -> Vec<String> {
    SIZES.map(size).into_iter().chain([LOADS, BEHIND].map(str::to_owned)).collect()
}

fn size(bytes: usize) -> String {
    format!("{} KiB", bytes >> 10)
}

pub(super) fn check(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    for bytes in SIZES {
        report.case(&size(bytes), |report| of_size(bench, bytes, report))?;
    }
    report.case(LOADS, |report| from_host_memory(bench, report))?;
    report.single(BEHIND, || behind_a_load(bench))
}

fn of_size(bench: &Bench<'_>, bytes: usize, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let mut loads = Loads::new(bench, bytes)?;
    let what = |how: &str| format!("{} to the device, {how}", size(bytes));
    let contents = loads.contents.clone();
    let (loaded, differs) = loads.measure(&|| Ok(CopySource::Pageable(contents.clone())))?;
    let bare = loads.bare_copy()?;
    let check = |how: &str, measured| Check::passed(STAGE, what(how)).took(measured, bytes as u64, 0);
    report.check(check("bare copy of pinned memory", bare));
    let check = check("as weights are loaded", loaded).same(differs, OTHER_BYTES);
    report.check(if bytes < LARGE { check } else { check.asked(beside_bare(bare.time_ns, loaded.time_ns)) });
    Ok(())
}

/// Measures loads of a weight from a mapped file in the page cache, as the first load of a model,
/// and from the pinned cache, as later loads.
fn from_host_memory(bench: &Bench<'_>, report: &mut Reporter<'_>) -> Result<(), CheckFailure> {
    let mut loads = Loads::new(bench, LOAD_BYTES)?;
    let contents = loads.contents.clone();
    let folder = TemporaryFolder::new().map_err(|error| host(&error))?;
    let file = folder.path().join("weight");
    std::fs::write(&file, &contents).map_err(|error| host(&error))?;
    // A new mapping for each load, as in a worker: each load has the page faults.
    let in_file = || {
        let mapping = MappedFile::unread(&file).map_err(|error| host(&error))?;
        Ok(CopySource::Pageable(Bytes::from_owner(mapping)))
    };
    let hash = ContentHash::from_content(&contents);
    let cache = PinnedCache::new(&bench.gpu.context, LOAD_BYTES as u64)?;
    cache.offer([(hash, contents)]);
    cache.settle();
    let in_cache =
        || cache.get(&hash).map(CopySource::Pinned).ok_or_else(|| host(&"the pinned cache has no memory"));

    let bare = loads.bare_copy()?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no sixteen digits")]
    let host_gb = LOAD_BYTES as f64 / host_copy_ns(bench, &loads.contents)?.max(1) as f64;
    let sources: [(&str, &LoadSource<'_>); 2] =
        [("the page cache", &in_file), ("the pinned cache", &in_cache)];
    for (from, source) in sources {
        let (loaded, differs) = loads.measure(source)?;
        let check = Check::passed(STAGE, format!("{} to the device, from {from}", size(LOAD_BYTES)));
        let check = check.took(loaded, LOAD_BYTES as u64, 0).asked(beside_bare(bare.time_ns, loaded.time_ns));
        let detail = format!("{} copy threads, which copy at most {host_gb:.1} GB/s", copy_threads());
        report.check(Check { detail, ..check }.same(differs, OTHER_BYTES));
    }
    Ok(())
}

/// Provides the bytes of a load.
type LoadSource<'a> = dyn Fn() -> Result<CopySource, CheckFailure> + 'a;

/// Timed loads of the same bytes.
struct Loads<'a> {
    bench: &'a Bench<'a>,
    stream: Stream,
    contents: Bytes,
    /// Number of loads so far. Each has its own key, which the store does not have.
    count: u32,
}

impl<'a> Loads<'a> {
    fn new(bench: &'a Bench<'a>, bytes: usize) -> Result<Self, CudaError> {
        let stream = Stream::new(&bench.gpu.context, Priority::Normal)?;
        let contents: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
        Ok(Self { bench, stream, contents: contents.into(), count: 0 })
    }

    /// Measures loads after a warm-up. Returns the median time, and the first byte that differs
    /// after a load.
    fn measure(&mut self, source: &LoadSource<'_>) -> Result<(MeasuredTime, Option<Mismatch>), CheckFailure> {
        let timer = &self.bench.timer;
        timer.warm_up(|| {
            let loaded = self.load(source()?)?;
            Ok::<_, CheckFailure>(self.release(loaded)?)
        })?;
        let mut times = Vec::new();
        let mut differs = None;
        for _ in 0..timer.repeats().min(LOADS_MAX) {
            let began = Instant::now();
            let loaded = self.load(source()?)?;
            times.push(nanoseconds(began.elapsed()));
            let mut back = vec![0; self.contents.len()];
            self.stream.read(loaded.span(), &mut back)?;
            differs = differs.or_else(|| Mismatch::of_bytes(&self.contents, &back));
            self.release(loaded)?;
        }
        Ok((timer.measured(median(times)), differs))
    }

    /// Measures a bare copy from pinned memory.
    fn bare_copy(&mut self) -> Result<MeasuredTime, CudaError> {
        let pinned = PinnedMemory::copy_of(&self.bench.gpu.context, &self.contents)?;
        let loaded = self.load(CopySource::Pageable(self.contents.clone()))?;
        let stream = &self.stream;
        let to = loaded.span();
        // SAFETY: the pinned memory lives until the stream is synchronised, and is not written to.
        let copy = || unsafe { stream.copy_from_host(pinned.as_slice().as_ptr(), to) };
        let measured = self.bench.timer.device(stream, copy);
        // Synchronise after an error as well: no copy may be in progress when the memory is
        // dropped.
        stream.synchronize()?;
        self.release(loaded)?;
        measured
    }

    fn load(&mut self, source: CopySource) -> Result<TensorGuard, CudaError> {
        let key = TensorKey { hash: ContentHash::from_content(&self.count.to_le_bytes()), layout: u32::MAX };
        self.count += 1;
        let loaded = self.bench.gpu.tensors.acquire(vec![vec![Wanted { key, source }]]);
        let loaded = loaded.map_err(|error| device(&error))?.into_iter().flatten().next();
        let loaded = loaded.ok_or_else(|| CudaError::Invalid("a load has no tensor".to_owned()))?;
        loaded.wait().map_err(|error| device(&error))?;
        Ok(loaded)
    }

    /// Drops a loaded tensor, and overwrites its memory, which stays mapped for the next load.
    fn release(&self, loaded: TensorGuard) -> Result<(), CudaError> {
        self.stream.fill(loaded.span(), u8::MAX)?;
        self.stream.synchronize()?;
        drop(loaded);
        self.bench.gpu.tensors.trim();
        Ok(())
    }
}

/// Median time in which as many threads as a load has copy the contents into a ring of pinned
/// memory, in nanoseconds: the bound of the host on a load.
fn host_copy_ns(bench: &Bench<'_>, contents: &[u8]) -> Result<u64, CudaError> {
    let threads = copy_threads();
    let mut pinned = PinnedMemory::new(&bench.gpu.context, RING_BYTES)?;
    let mut places: Vec<Vec<&mut [u8]>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, place) in pinned.as_mut_slice().chunks_exact_mut(PIECE_BYTES).enumerate() {
        if let Some(places) = places.get_mut(at % threads) {
            places.push(place);
        }
    }
    let begin = Barrier::new(threads + 1);
    let end = Barrier::new(threads + 1);
    let times = thread::scope(|scope| {
        for (number, mut places) in places.into_iter().enumerate() {
            let begin = &begin;
            let end = &end;
            scope.spawn(move || {
                for _ in 0..LOADS_MAX {
                    begin.wait();
                    let pieces = contents.chunks_exact(PIECE_BYTES).skip(number).step_by(threads);
                    let len = places.len().max(1);
                    for (at, piece) in pieces.enumerate() {
                        if let Some(place) = places.get_mut(at % len) {
                            place.copy_from_slice(piece);
                        }
                    }
                    end.wait();
                }
            });
        }
        let round = |_| {
            begin.wait();
            let began = Instant::now();
            end.wait();
            nanoseconds(began.elapsed())
        };
        (0..LOADS_MAX).map(round).collect()
    });
    Ok(median(times))
}

/// Error of the host's files or memory.
fn host(why: &dyn std::fmt::Display) -> CheckFailure {
    InferenceError::Run(why.to_string().into()).into()
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
fn beside_bare(bare_ns: u64, engine_ns: u64) -> Goal {
    Goal::at_least(bare_ns as f64 / engine_ns.max(1) as f64, SHARE_MIN, "of the rate of a bare copy")
}

/// Measures the time of a short copy that is requested right after a long load has started.
fn behind_a_load(bench: &Bench<'_>) -> Result<Check, CheckFailure> {
    let gpu = &*bench.gpu;
    let timer = &bench.timer;
    let room_bytes = bench.config.memory_bytes_max.min(gpu.context.info().memory_bytes);
    let long_bytes = usize::try_from(room_bytes / 4).unwrap_or(LONG).min(LONG);
    let mut number = 0_u32;
    let mut both = || -> Result<(u64, u64), CudaError> {
        number += 1;
        // The contents are never read, so new keys are enough to force a copy.
        let wanted = |bytes: usize, layout| {
            let key = TensorKey { hash: ContentHash::from_content(&number.to_le_bytes()), layout };
            vec![vec![Wanted { key, source: CopySource::Pageable(vec![1; bytes].into()) }]]
        };
        let long = wanted(long_bytes, 1);
        let short = wanted(SHORT, 2);
        let long_began = Instant::now();
        let long = gpu.tensors.acquire(long).map_err(|error| device(&error))?;
        let short_began = Instant::now();
        let short = gpu.tensors.acquire(short).map_err(|error| device(&error))?;
        short.iter().flatten().try_for_each(TensorGuard::wait).map_err(|error| device(&error))?;
        let short_ns = nanoseconds(short_began.elapsed());
        long.iter().flatten().try_for_each(TensorGuard::wait).map_err(|error| device(&error))?;
        let long_ns = nanoseconds(long_began.elapsed());
        drop((long, short));
        gpu.tensors.reclaim(u64::MAX);
        Ok((short_ns, long_ns))
    };
    timer.warm_up(|| both().map(drop))?;
    let runs = (0..timer.repeats().min(LOADS_MAX)).map(|_| both()).collect::<Result<Vec<_>, _>>()?;
    let (short, long): (Vec<u64>, Vec<u64>) = runs.into_iter().unzip();
    let short = timer.measured(median(short));
    let long_ns = median(long);
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
