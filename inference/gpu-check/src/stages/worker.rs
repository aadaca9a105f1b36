//! Checks of models in a worker process, as nodes run them: recovery after the loss of the worker,
//! and the overhead of the process boundary.

use super::network::{made_up, name};
use crate::config::{CheckConfig, CheckFailure};
use crate::folder::TemporaryFolder;
use crate::goal::Goal;
use crate::outcome::{Check, Mismatch};
use crate::progress::Reporter;
use crate::stage::Stage;
use crate::timer::{Timer, nanoseconds};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_cuda::executor::form;
use weir_cuda::{Cuda, CudaConfig, GpuGroup, IntermediateLimits};
use weir_device::Arena;
use weir_device::cuda::{Devices, Library};
use weir_inference::{
    Backend, Interrupt, Job, MappedFile, Meter, ModelKey, ModelSource, Prepared, Session, Tensor,
};
use weir_types::{Batching, ModelId, Name, Precision, Shape, TenantId, Version};

const STAGE: Stage = Stage::Worker;
/// Name of the case of the first start.
const START: &str = "start";
/// Host memory for inputs and outputs, in bytes.
const ARENA_BYTES_MAX: u64 = 1 << 30;
/// Number of concurrent runs in the concurrent measurement.
const SLOTS: usize = 4;
/// Maximum overhead of the round trip to the worker.
const WAY_MAX: Duration = Duration::from_micros(30);
/// Time limit that no valid run reaches.
const RUN_TIME_MAX: Duration = Duration::from_secs(600);

pub(super) fn cases(config: &CheckConfig) -> Vec<String> {
    std::iter::once(START.to_owned()).chain(config.models.iter().map(|path| name(path))).collect()
}

pub(super) fn check(
    devices: &Devices,
    config: &CheckConfig,
    report: &mut Reporter<'_>,
) -> Result<(), CheckFailure> {
    let timer = Timer::new(devices, config);
    let arena = Arena::new(ARENA_BYTES_MAX);
    let cuda = CudaConfig {
        ordinal: config.ordinal,
        memory_bytes_max: config.memory_bytes_max,
        slots: SLOTS,
        intermediates: IntermediateLimits::default(),
        pinned_cache_bytes_max: 0,
        cublas_lt: config.library(Library::CublasLt, devices).ok(),
        nvrtc: config.library(Library::Nvrtc, devices).ok(),
        run_time_max: RUN_TIME_MAX,
        group: GpuGroup::default(),
        command: None,
    };
    let began = Instant::now();
    let cuda = Cuda::open(devices.driver_path(), cuda, arena.clone())?;
    let started = timer.since(began);
    report.single(START, || Ok(Check::passed(STAGE, START).took(started, 0, 0)))?;
    for path in &config.models {
        let name = name(path);
        report.case(&name, |report| match prepare(path, &arena) {
            Ok(prepared) => model(&cuda, &timer, &name, &prepared, report),
            Err(why) => {
                report.check(Check::failed(STAGE, &name, why));
                Ok(())
            }
        })?;
    }
    Ok(())
}

/// Model in the form in which a node stores it, with a job for it.
struct Ready {
    source: ModelSource,
    job: Job,
    _blobs: TemporaryFolder,
}

fn prepare(path: &Path, arena: &Arena) -> Result<Ready, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let upload = Bytes::from_owner(MappedFile::open(path).map_err(|error| text(&error))?);
    let signature =
        weir_graph::OnnxModel::read(upload.clone()).map_err(|error| text(&error))?.signature().clone();
    let blobs = TemporaryFolder::new().map_err(|error| text(&error))?;
    let form = form(upload, Precision::default(), blobs.path()).map_err(|error| text(&error))??;
    let tensor = |port| {
        let made = made_up(port, 1).ok_or("its inputs cannot be made up")?;
        let dims: Option<Vec<u32>> =
            made.tensor().dims().iter().map(|dim| u32::try_from(*dim).ok()).collect();
        let shape = Shape::new(&dims.ok_or("its inputs are too large")?).map_err(|error| text(&error))?;
        let data = arena.copy_of(&made.to_bytes()).map_err(|error| text(&error))?;
        Tensor::new(port.datatype, shape, data).map_err(|error| text(&error))
    };
    let inputs = signature.inputs.iter().map(tensor).collect::<Result<_, String>>()?;
    let job = Job { inputs, outputs: (0..signature.outputs.len()).collect() };
    let prepared = Prepared {
        signature,
        weight_bytes: form.weight_bytes,
        resident_bytes: form.resident_bytes,
        variants: vec![form],
        unsupported: Vec::new(),
    };
    Ok(Ready { source: source(TenantId::default(), prepared, &blobs)?, job, _blobs: blobs })
}

/// Returns the source of a tenant's model whose files are in this folder.
pub(super) fn source(
    tenant: TenantId,
    prepared: Prepared,
    blobs: &TemporaryFolder,
) -> Result<ModelSource, String> {
    let name = Name::new("doctor").map_err(|error| error.to_string())?;
    let id = ModelId { tenant, name, version: Version(1) };
    Ok(ModelSource {
        key: ModelKey { id, generation: 1 },
        prepared: Arc::new(prepared),
        blobs: blobs.path().to_owned(),
        slots: None,
        batching: Batching::default(),
        meter: Meter::default(),
    })
}

fn model(
    cuda: &Cuda,
    timer: &Timer,
    name: &str,
    ready: &Ready,
    report: &mut Reporter<'_>,
) -> Result<(), CheckFailure> {
    let Ready { source, job, .. } = ready;
    let model = cuda.load(source)?;
    model.arrive()?;
    let mut sessions = (0..SLOTS).map(|_| model.session(1)).collect::<Result<Vec<_>, _>>()?;
    // After three runs, every session repeats a captured run.
    for _ in 0..3 {
        sessions.iter_mut().try_for_each(|session| session.run(job, &Interrupt::default()).map(|_| ()))?;
    }
    let Some(alone) = sessions.first_mut() else { return Ok(()) };
    let before = alone.run(job, &Interrupt::default())?;
    let times = overheads(&mut **alone, job, timer)?;
    let there = overhead(format!("{name}: there and back, beside the run"), times, timer);
    let goal = Goal::within(there.time_ns.unwrap_or_default(), WAY_MAX);
    report.check(there.asked(goal));
    let together = std::thread::scope(|scope| {
        let run = |session: &mut Box<dyn Session>| overheads(&mut **session, job, timer);
        let threads: Vec<_> = sessions.iter_mut().map(|session| scope.spawn(move || run(session))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Ok(Vec::new())));
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    report.check(overhead(format!("{name}: there and back, {SLOTS} at once"), together.concat(), timer));
    drop((sessions, model));

    let began = Instant::now();
    cuda.recover()?;
    let recovered = timer.since(began);
    report.check(Check::passed(STAGE, format!("{name}: the worker anew")).took(recovered, 0, 0));
    let model = cuda.load(source)?;
    let after = model.session(1)?.run(job, &Interrupt::default())?;
    let bytes = |outputs: &[Tensor]| -> Vec<Vec<u8>> {
        outputs.iter().map(|output| output.data().to_vec()).collect()
    };
    let differs = Mismatch::of_outputs(&bytes(&before), &bytes(&after));
    let check = Check::passed(STAGE, format!("{name}: the same answers"));
    report.check(check.same(differs, "the new worker gives other answers"));
    Ok(())
}

/// Returns the time of each run minus the time that the worker reports for the run, in nanoseconds,
/// after a warm-up.
fn overheads(session: &mut dyn Session, job: &Job, timer: &Timer) -> Result<Vec<u64>, CheckFailure> {
    let mut run = || -> Result<u64, CheckFailure> {
        let began = Instant::now();
        session.run(job, &Interrupt::default())?;
        Ok(nanoseconds(began.elapsed().saturating_sub(session.device_time().unwrap_or_default())))
    };
    timer.warm_up(|| run().map(drop))?;
    (0..timer.repeats()).map(|_| run()).collect()
}

fn overhead(what: String, mut times: Vec<u64>, timer: &Timer) -> Check {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    let detail = format!("p99 {:.1} us", Duration::from_nanos(at(99)).as_secs_f64() * 1e6);
    Check { detail, ..Check::passed(STAGE, what).took(timer.measured(at(50)), 0, 0) }
}
