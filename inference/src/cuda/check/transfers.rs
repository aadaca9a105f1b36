//! What copies reach, by size: through the engine that shares the bus, beside a bare copy of pinned memory.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use super::super::device::Gpu;
use super::bench::nanoseconds;
use super::{Check, CheckConfig, CheckFailure, Goal, Stage};
use std::time::{Duration, Instant};
use weir_device::cuda::{
    CudaError, PinnedMemory, Priority, Source, Stream, Tensor, TensorKey, TransferError, Wanted,
};
use weir_types::ContentHash;

const SIZES: [usize; 4] = [64 << 10, 2 << 20, 32 << 20, 256 << 20];
/// From here on a load is held against a bare copy.
const LARGE: usize = 32 << 20;
/// What it reaches of that, at the least.
const SHARE_MIN: f64 = 0.9;
/// A short copy, the load that it comes behind, and how long it may take then.
const SHORT: usize = 64 << 10;
const LONG: usize = 1 << 30;
const BEHIND_MAX: Duration = Duration::from_millis(1);

pub(super) fn check(
    gpu: &Gpu,
    config: &CheckConfig,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    let stream = Stream::new(&gpu.context, Priority::Normal)?;
    for bytes in SIZES {
        let pattern: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
        let pinned = PinnedMemory::copy_of(&gpu.context, &pattern)?;
        let mut bare_ns = u64::MAX;
        let mut engine_ns = u64::MAX;
        let mut back = vec![0; bytes];
        for repeat in 0..config.repeats.clamp(1, 5) {
            // Contents that the store does not have yet, or it would have nothing to copy.
            let mut contents = pattern.clone();
            contents.iter_mut().zip(repeat.to_le_bytes()).for_each(|(to, from)| *to ^= from);
            let key = TensorKey { hash: ContentHash::of(&contents), layout: u32::MAX };
            let wanted = Wanted { key, source: Source::Pageable(contents.clone().into()) };
            let began = Instant::now();
            let tensors = gpu.tensors.acquire(vec![vec![wanted]]).map_err(|error| device(&error))?;
            let Some(tensor) = tensors.first().and_then(|group| group.first()) else { continue };
            tensor.wait().map_err(|error| device(&error))?;
            engine_ns = engine_ns.min(nanoseconds(began));
            stream.read(tensor.span(), &mut back)?;
            if back != contents {
                let what = format!("{} KiB to the device and back", bytes >> 10);
                tell(Check::failed(Stage::Transfers, what, "other bytes came back"));
                return Ok(());
            }
            let began = Instant::now();
            // SAFETY: the pinned memory lives until the stream is synchronised, and nobody writes to it.
            unsafe { stream.copy_from_host(pinned.as_slice().as_ptr(), tensor.span()) }?;
            stream.synchronize()?;
            bare_ns = bare_ns.min(nanoseconds(began));
            drop(tensors);
            gpu.tensors.reclaim(u64::MAX);
        }
        let what = |how: &str| format!("{} KiB to the device, {how}", bytes >> 10);
        tell(Check::passed(Stage::Transfers, what("bare copy of pinned memory")).took(
            bare_ns,
            bytes as u64,
            0,
        ));
        let loaded = Check::passed(Stage::Transfers, what("as weights are loaded"));
        let loaded = loaded.took(engine_ns, bytes as u64, 0);
        // Of a small copy most is what a copy takes to begin.
        tell(if bytes < LARGE { loaded } else { loaded.asked(beside_bare(bare_ns, engine_ns)) });
    }
    tell(behind_a_load(gpu, config)?);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no sixteen digits")]
fn beside_bare(bare_ns: u64, engine_ns: u64) -> Goal {
    Goal::at_least(bare_ns as f64 / engine_ns.max(1) as f64, SHARE_MIN, "of the rate of a bare copy")
}

/// How long a short copy takes that comes when a long one has just begun.
fn behind_a_load(gpu: &Gpu, config: &CheckConfig) -> Result<Check, CheckFailure> {
    let room_bytes = config.memory_bytes_max.min(gpu.context.info().memory_bytes);
    let long_bytes = usize::try_from(room_bytes / 4).unwrap_or(LONG).min(LONG);
    let mut shortest: Option<(u64, u64)> = None;
    for repeat in 0..config.repeats.clamp(1, 5) {
        // Nobody looks at what they are: other keys are enough to have them copied.
        let wanted = |bytes: usize, layout| {
            let key = TensorKey { hash: ContentHash::of(&repeat.to_le_bytes()), layout };
            vec![vec![Wanted { key, source: Source::Pageable(vec![1; bytes].into()) }]]
        };
        let (long, short) = (wanted(long_bytes, 1), wanted(SHORT, 2));
        let long_began = Instant::now();
        let long = gpu.tensors.acquire(long).map_err(|error| device(&error))?;
        let short_began = Instant::now();
        let short = gpu.tensors.acquire(short).map_err(|error| device(&error))?;
        short.iter().flatten().try_for_each(Tensor::wait).map_err(|error| device(&error))?;
        let short_ns = nanoseconds(short_began);
        long.iter().flatten().try_for_each(Tensor::wait).map_err(|error| device(&error))?;
        let found = (short_ns, nanoseconds(long_began));
        shortest = Some(shortest.map_or(found, |before| before.min(found)));
        drop((long, short));
        gpu.tensors.reclaim(u64::MAX);
    }
    let (short_ns, long_ns) = shortest.unwrap_or_default();
    let what = format!("{} KiB behind a load of {} MiB", SHORT >> 10, long_bytes >> 20);
    let check = Check::passed(Stage::Transfers, what).took(short_ns, SHORT as u64, 0);
    let detail = format!("the load takes {:.1} ms", long_ns as f64 / 1e6);
    Ok(Check { detail, ..check.asked(Goal::within(short_ns, BEHIND_MAX)) })
}

fn device(error: &TransferError) -> CudaError {
    match error {
        TransferError::Device(error) => error.clone(),
        error => CudaError::Invalid(error.to_string()),
    }
}
