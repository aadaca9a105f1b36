//! What copies reach, by size: through the engine that shares the bus, beside a bare copy of pinned memory.
#![allow(unsafe_code, reason = "pinned memory is copied by address")]

use super::super::device::Gpu;
use super::bench::nanoseconds;
use super::{Check, CheckConfig, CheckFailure, Stage};
use std::time::Instant;
use weir_device::cuda::{
    CudaError, PinnedMemory, Priority, Source, Stream, TensorKey, TransferError, Wanted,
};
use weir_types::ContentHash;

const SIZES: [usize; 4] = [64 << 10, 2 << 20, 32 << 20, 256 << 20];

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
        tell(Check::passed(Stage::Transfers, what("as weights are loaded")).took(engine_ns, bytes as u64, 0));
    }
    Ok(())
}

fn device(error: &TransferError) -> CudaError {
    match error {
        TransferError::Device(error) => error.clone(),
        error => CudaError::Invalid(error.to_string()),
    }
}
