//! Tests of device-resident tensors in a worker on the fake driver: ownership, location and
//! release.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use super::service::{Reply, Service};
use crate::device::{GpuConfig, IntermediateLimits};
use crate::form::form;
use crate::model::ModelFiles;
use crate::worker::message::{
    ExportedInput, FILES_MAX, GpuWorkerReply, GpuWorkerRequest, TensorRange, WorkerInput, WorkerOutput,
};
use bytes::Bytes;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use weir_fake_cuda::Fake;
use weir_inference::{InferenceError, ModelKey, ModelSource, Prepared};
use weir_types::{Batching, ModelId, Name, Precision, Shape, TenantId, Version};
use weir_worker::{ConnectionFiles, TensorFile, TensorLocation, tensor_memory};

/// Number of rows of 4 KiB in every tensor of these tests.
const ROWS: u32 = 8;
const BYTES: u64 = ROWS as u64 * 4096;

/// Worker within the test process. Fields drop in order: the fake driver last, because it checks
/// for leaks.
struct Fixture {
    service: Service,
    files: ConnectionFiles,
    blobs: TempDir,
    fake: Fake,
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

impl Fixture {
    fn new(memory_bytes_max: u64, intermediates: IntermediateLimits) -> Self {
        Self::on(0, memory_bytes_max, intermediates)
    }

    /// Creates a stage on one of two devices. Each stage has a separate driver, as each worker has.
    fn on(ordinal: u32, memory_bytes_max: u64, intermediates: IntermediateLimits) -> Self {
        let fake = Fake::new(7);
        fake.set("devices", 2);
        let service = Service::default();
        let blobs = tempfile::tempdir().unwrap();
        let file = || tensor_memory(64 << 20).unwrap();
        let files = ConnectionFiles { memory: file(), arena: Some(file()) };
        let stage = Self { service, files, blobs, fake };
        let gpu = GpuConfig {
            ordinal,
            memory_bytes_max,
            slots: 2,
            intermediates,
            pinned_cache_bytes_max: 1 << 20,
            library: None,
            compiler: None,
        };
        let opened = stage.ask(GpuWorkerRequest::Open { driver: stage.fake.path().to_owned(), gpu });
        let Ok(GpuWorkerReply::Opened(opened)) = opened else { panic!("another answer: {opened:?}") };
        assert_eq!(opened.siblings, [1 - ordinal]);
        stage
    }

    fn ask(&self, request: GpuWorkerRequest) -> Result<GpuWorkerReply, InferenceError> {
        self.reply(request, Vec::new()).map(|(answer, _)| answer)
    }

    fn reply(&self, request: GpuWorkerRequest, brought: Vec<OwnedFd>) -> Result<Reply, InferenceError> {
        self.service.reply(request, &self.files, Some(brought))
    }

    /// Exports a tensor under the number `export`.
    fn export(&self, tensor: u64, of: &str, export: u64) -> Result<Reply, InferenceError> {
        let request = GpuWorkerRequest::Export { tensor, tenant: tenant(of), export, blocks_max: FILES_MAX };
        self.reply(request, Vec::new())
    }

    /// Runs on a tensor that another stage has exported.
    fn run_on(
        &self,
        session: u64,
        (place, blocks): (TensorRange, Vec<OwnedFd>),
    ) -> Result<GpuWorkerReply, InferenceError> {
        let inputs = vec![WorkerInput::Exported(ExportedInput { ordinal: 0, shape: shape(), place })];
        let request = GpuWorkerRequest::Run {
            session,
            run: 1_000,
            inputs,
            outputs: vec![(0, None)],
            outputs_at: BYTES,
        };
        assert_eq!(request.files(), blocks.len());
        self.reply(request, blocks).map(|(answer, _)| answer)
    }

    /// Takes in a tensor that another stage has exported.
    fn take(
        &self,
        tensor: u64,
        (place, blocks): (TensorRange, Vec<OwnedFd>),
    ) -> Result<GpuWorkerReply, InferenceError> {
        let exported = ExportedInput { ordinal: 0, shape: shape(), place };
        let request = GpuWorkerRequest::Take { tensor, tenant: tenant("alice"), exported };
        assert_eq!(request.files(), blocks.len());
        self.reply(request, blocks).map(|(answer, _)| answer)
    }

    /// Loads a model of `tests/fixtures/models` for a tenant, and opens a session with the same
    /// number.
    fn load(&self, number: u64, of: &str, name: &str) {
        let path = format!("../../tests/fixtures/models/good/{name}.onnx");
        let upload = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let upload = Bytes::from(upload);
        let signature = weir_graph::OnnxModel::read(upload.clone()).unwrap().signature().clone();
        let form = form(upload, Precision::Fp32, self.blobs.path()).unwrap().unwrap();
        let id = ModelId { tenant: tenant(of), name: Name::new(name).unwrap(), version: Version(1) };
        let source = ModelSource {
            key: ModelKey { id, generation: 1 },
            prepared: Arc::new(Prepared {
                signature,
                weight_bytes: form.weight_bytes,
                resident_bytes: form.resident_bytes,
                variants: vec![form],
                unsupported: Vec::new(),
            }),
            blobs: self.blobs.path().to_owned(),
            slots: None,
            batching: Batching::default(),
            meter: weir_inference::Meter::default(),
        };
        let files = ModelFiles::for_source(&source).unwrap();
        self.ask(GpuWorkerRequest::Load { model: number, files }).unwrap();
        self.ask(GpuWorkerRequest::Session { model: number, session: number }).unwrap();
    }

    /// Runs on ones in the connection's memory, or on a device-resident tensor. `stays_as` is the
    /// number under which the output may stay.
    fn run(
        &self,
        session: u64,
        input: Option<u64>,
        stays_as: Option<u64>,
    ) -> Result<WorkerOutput, InferenceError> {
        match self.ask(self.request(session, input, stays_as))? {
            GpuWorkerReply::Ran { mut outputs, .. } => Ok(outputs.remove(0)),
            answer => panic!("another answer: {answer:?}"),
        }
    }

    fn request(&self, session: u64, input: Option<u64>, stays_as: Option<u64>) -> GpuWorkerRequest {
        let input = input.map_or_else(
            || {
                self.files.memory.write_all_at(&ones(1.0), 0).unwrap();
                WorkerInput::Here(TensorLocation {
                    shape: shape(),
                    file: TensorFile::Connection,
                    offset: 0,
                    bytes: BYTES,
                })
            },
            WorkerInput::Stayed,
        );
        let inputs = vec![input];
        let outputs = vec![(0, stays_as)];
        GpuWorkerRequest::Run { session, run: 1_000 + session, inputs, outputs, outputs_at: BYTES }
    }

    /// Returns whether all elements of an output in the connection's memory have this value.
    fn is(&self, output: &WorkerOutput, value: f32) -> bool {
        let WorkerOutput::Here(part) = output else { panic!("it has stayed: {output:?}") };
        let mut found = vec![0; usize::try_from(part.bytes).unwrap()];
        self.files.memory.read_exact_at(&mut found, part.offset).unwrap();
        found == ones(value)
    }

    fn fetch(&self, tensor: u64, of: &str) -> Result<Vec<u8>, InferenceError> {
        match self.ask(GpuWorkerRequest::Fetch { tensor, tenant: tenant(of) })? {
            GpuWorkerReply::Fetched { bytes } => {
                let mut found = vec![0; usize::try_from(bytes).unwrap()];
                self.files.memory.read_exact_at(&mut found, 0).unwrap();
                Ok(found)
            }
            answer => panic!("another answer: {answer:?}"),
        }
    }

    fn release(&self, tensors: &[u64], abandoned: &[u64]) {
        let tensors = tensors.to_vec();
        let abandoned = abandoned.to_vec();
        let exports = Vec::new();
        assert_eq!(
            self.ask(GpuWorkerRequest::Release { tensors, abandoned, exports }).unwrap(),
            GpuWorkerReply::Done
        );
    }

    fn usage(&self) -> weir_device::cuda::CommUsage {
        self.service.gpu().unwrap().intermediates.usage()
    }
}

fn shape() -> Shape {
    Shape::new(&[ROWS, 32, 32]).unwrap()
}

fn ones(value: f32) -> Vec<u8> {
    value.to_le_bytes().repeat(usize::try_from(BYTES / 4).unwrap())
}

fn stays() -> WorkerOutput {
    WorkerOutput::Stays { shape: shape(), bytes: BYTES }
}

fn is_lost<T>(answer: &Result<T, InferenceError>) -> bool {
    matches!(answer, Err(InferenceError::TensorLost(_)))
}

#[test]
fn next_run_reads_device_tensor_without_host_copy() {
    let stage = Fixture::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.load(2, "alice", "raised");
    // Loads may end as late as the first runs.
    stage.run(1, None, None).unwrap();
    stage.run(2, None, None).unwrap();
    // The runs are launched kernel by kernel, captured, and repeated.
    for number in [10, 11, 12] {
        assert_eq!(stage.run(1, None, Some(number)).unwrap(), stays());
        let up = stage.fake.count("bytes_to_device");
        let down = stage.fake.count("bytes_to_host");
        assert_eq!(stage.run(2, Some(number), Some(100 + number)).unwrap(), stays());
        assert_eq!(stage.fake.count("bytes_to_device"), up);
        assert_eq!(stage.fake.count("bytes_to_host"), down);
        let output = stage.run(1, Some(100 + number), None).unwrap();
        assert!(stage.is(&output, 6.0));
        assert_eq!(stage.fake.count("bytes_to_host"), down + BYTES, "the last gives it to the host");
        // The tensor stays available until it is released.
        assert!(stage.is(&stage.run(2, Some(number), None).unwrap(), 3.0));
        stage.release(&[number, 100 + number], &[]);
        assert_eq!(stage.usage().device_bytes, 0);
        assert!(is_lost(&stage.run(2, Some(number), None)));
    }
}

#[test]
fn tenant_cannot_access_tensors_of_another_tenant() {
    let stage = Fixture::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.load(2, "bob", "twice");
    stage.run(1, None, Some(10)).unwrap();
    assert!(is_lost(&stage.run(2, Some(10), None)), "a model of bob's has read it");
    assert!(is_lost(&stage.fetch(10, "bob")));
    assert_eq!(stage.fetch(10, "alice").unwrap(), ones(2.0));
    assert!(stage.is(&stage.run(1, Some(10), None).unwrap(), 4.0));
}

#[test]
fn spilled_tensor_keeps_its_contents() {
    let stage = Fixture::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    for number in [10, 11] {
        stage.run(1, None, Some(number)).unwrap();
    }
    let gpu = stage.service.gpu().unwrap();
    assert!(gpu.give_up(u64::MAX));
    let usage = stage.usage();
    assert_eq!((usage.device_bytes, usage.mapped_bytes, usage.host_bytes), (0, 0, 2 * BYTES));
    assert_eq!(stage.fetch(10, "alice").unwrap(), ones(2.0));
    assert!(stage.is(&stage.run(1, Some(11), None).unwrap(), 4.0));
    stage.release(&[10, 11], &[]);
    assert_eq!(stage.usage().host_bytes, 0);
}

#[test]
fn output_without_room_on_device_is_returned_with_the_answer() {
    let none = IntermediateLimits { spilled_bytes_max: 0, ..IntermediateLimits::default() };
    for limits in [
        IntermediateLimits { len_max: 1, ..IntermediateLimits::default() },
        IntermediateLimits { free_percent_max: 0, ..none },
    ] {
        let stage = Fixture::new(256 << 20, limits);
        stage.load(1, "alice", "twice");
        let first = stage.run(1, None, Some(10)).unwrap();
        let second = stage.run(1, None, Some(11)).unwrap();
        assert_eq!(first == stays(), limits.len_max == 1);
        assert!(stage.is(&second, 2.0));
        assert!(is_lost(&stage.fetch(11, "alice")));
        assert!(stage.usage().device_bytes <= BYTES);
    }
}

#[test]
fn abandoned_output_is_not_kept() {
    let stage = Fixture::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    // Abandoned before the run produces the tensor, and after.
    stage.release(&[], &[10]);
    stage.run(1, None, Some(10)).unwrap();
    assert_eq!(stage.usage().device_bytes, 0);
    stage.run(1, None, Some(11)).unwrap();
    stage.release(&[], &[11]);
    assert_eq!(stage.usage().device_bytes, 0);
    stage.run(1, None, Some(12)).unwrap();
    assert_eq!(stage.usage().device_bytes, BYTES);
}

#[test]
fn failed_run_keeps_no_outputs() {
    let stage = Fixture::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.run(1, None, Some(10)).unwrap();
    stage.fake.fail_launch(0);
    assert!(matches!(stage.run(1, None, Some(11)), Err(InferenceError::DeviceLost(_))));
    assert!(is_lost(&stage.fetch(11, "alice")));
}

/// Creates two stages, with a tensor of alice on the first device that the second device can read.
fn siblings() -> (Fixture, Fixture) {
    let stages = [0, 1].map(|ordinal| Fixture::on(ordinal, 256 << 20, IntermediateLimits::default()));
    let [first, second] = stages;
    first.load(1, "alice", "twice");
    second.load(2, "alice", "raised");
    // The tests count the bytes to the device, and weights must not arrive meanwhile.
    assert_eq!(second.ask(GpuWorkerRequest::Arrive { model: 2 }).unwrap(), GpuWorkerReply::Done);
    first.run(1, None, Some(10)).unwrap();
    (first, second)
}

fn exported(reply: Result<Reply, InferenceError>) -> (TensorRange, Vec<OwnedFd>) {
    match reply {
        Ok((GpuWorkerReply::Exported(place), blocks)) => (place, blocks),
        other => panic!("it is not exported: {other:?}"),
    }
}

#[test]
fn sibling_run_reads_device_tensor_without_host_copy() {
    let (first, second) = siblings();
    for export in 100..103 {
        let up = second.fake.count("bytes_to_device");
        let down = first.fake.count("bytes_to_host");
        let lent = exported(first.export(10, "alice", export));
        assert_eq!((lent.0.blocks, lent.0.bytes), (1, BYTES));
        let answer = second.run_on(2, lent).unwrap();
        let GpuWorkerReply::Ran { mut outputs, through_host_bytes: 0, .. } = answer else {
            panic!("{answer:?}")
        };
        assert!(second.is(&outputs.remove(0), 3.0));
        assert_eq!((second.fake.count("bytes_to_device"), first.fake.count("bytes_to_host")), (up, down));
        assert_eq!(second.fake.count("bytes_between_devices"), (export - 99) * BYTES);
        let mapped = second.fake.count("live_blocks") * (2 << 20);
        assert_eq!(mapped, second.fake.count("used_bytes"), "something of the sibling is still mapped");
    }
}

#[test]
fn exported_tensor_stays_until_sibling_has_read_it() {
    let (first, second) = siblings();
    let lent = exported(first.export(10, "alice", 100));
    // Neither memory pressure nor the end of the workflow evicts an exported tensor.
    first.service.gpu().unwrap().give_up(u64::MAX);
    first.release(&[10], &[]);
    assert_eq!(first.usage().device_bytes, BYTES);
    assert!(matches!(second.run_on(2, lent), Ok(GpuWorkerReply::Ran { .. })));
    let request =
        GpuWorkerRequest::Release { tensors: Vec::new(), abandoned: Vec::new(), exports: vec![100] };
    assert_eq!(first.ask(request).unwrap(), GpuWorkerReply::Done);
    assert_eq!(first.usage().device_bytes, 0);
    assert!(is_lost(&first.export(10, "alice", 101)));
}

#[test]
fn tensor_taken_in_by_sibling_outlives_the_original() {
    let (first, second) = siblings();
    let up = second.fake.count("bytes_to_device");
    let down = first.fake.count("bytes_to_host");
    let taken = second.take(20, exported(first.export(10, "alice", 100)));
    assert_eq!(taken.unwrap(), GpuWorkerReply::Done);
    assert_eq!((second.fake.count("bytes_to_device"), first.fake.count("bytes_to_host")), (up, down));
    let request = GpuWorkerRequest::Release { tensors: vec![10], abandoned: Vec::new(), exports: vec![100] };
    assert_eq!(first.ask(request).unwrap(), GpuWorkerReply::Done);
    assert_eq!((first.usage().device_bytes, second.usage().device_bytes), (0, BYTES));
    assert!(is_lost(&second.fetch(20, "bob")), "it is alice's there, too");
    assert_eq!(second.fetch(20, "alice").unwrap(), ones(2.0));
    assert!(second.is(&second.run(2, Some(20), None).unwrap(), 3.0));
    // Under memory pressure, the tensor is spilled to the host instead of its first device.
    second.service.gpu().unwrap().give_up(u64::MAX);
    assert_eq!(second.usage().host_bytes, BYTES);
    assert!(second.is(&second.run(2, Some(20), None).unwrap(), 3.0));
    second.release(&[20], &[]);
    assert_eq!((second.usage().device_bytes, second.usage().host_bytes), (0, 0));
}

#[test]
fn sibling_without_room_takes_in_no_tensor() {
    let (first, _) = siblings();
    let full = IntermediateLimits { free_percent_max: 0, ..IntermediateLimits::default() };
    let second = Fixture::on(1, 256 << 20, full);
    let taken = second.take(20, exported(first.export(10, "alice", 100)));
    assert!(matches!(taken, Ok(GpuWorkerReply::NotTaken { .. })), "{taken:?}");
    second.fake.set("peer_access", 0);
    let taken = second.take(21, exported(first.export(10, "alice", 101)));
    assert!(matches!(taken, Ok(GpuWorkerReply::NotReached { ordinal: 0, .. })), "{taken:?}");
    assert!(is_lost(&second.fetch(20, "alice")) && is_lost(&second.fetch(21, "alice")));
}

#[test]
fn run_reports_tensors_that_should_move() {
    // A limit that admits only some tensors.
    let share = IntermediateLimits { free_percent_max: 1, ..IntermediateLimits::default() };
    let stage = Fixture::new(32 << 20, share);
    stage.load(1, "alice", "twice");
    let beyond = |number| {
        let request = stage.request(1, None, Some(number));
        let Ok(GpuWorkerReply::Ran { room, .. }) = stage.ask(request) else { panic!("it has not run") };
        room
    };
    let rooms: Vec<_> = (0..12).map(beyond).collect();
    let first = rooms.iter().position(|room| !room.beyond.is_empty()).unwrap();
    assert!(first > 1, "there is room at first: {rooms:?}");
    assert_eq!(rooms[first].beyond, [0], "what was unused for longest");
    assert!(rooms[..=first].iter().all(|room| room.spilled_bytes == 0), "ahead of need: {rooms:?}");
    // No peer has taken a tensor, so the oldest one is spilled to the host.
    assert_eq!(rooms[11].spilled_bytes, BYTES);
    assert_eq!(stage.usage().host_bytes, rooms.iter().map(|room| room.spilled_bytes).sum::<u64>());
}

#[test]
fn unreadable_tensor_is_not_exported_to_sibling() {
    let (first, second) = siblings();
    assert!(is_lost(&first.export(10, "bob", 100)), "it is alice's");
    let in_no_more =
        GpuWorkerRequest::Export { tensor: 10, tenant: tenant("alice"), export: 101, blocks_max: 0 };
    assert!(matches!(first.ask(in_no_more), Ok(GpuWorkerReply::NotExported { .. })));
    first.service.gpu().unwrap().give_up(u64::MAX);
    assert_eq!(first.usage().host_bytes, BYTES, "nobody holds it");
    assert!(
        matches!(first.export(10, "alice", 102), Ok((GpuWorkerReply::NotExported { .. }, files)) if files.is_empty())
    );
    assert_eq!(first.fetch(10, "alice").unwrap(), ones(2.0));
    drop(second);
}

#[test]
fn unreachable_device_is_reported_before_the_run() {
    let (first, second) = siblings();
    second.fake.set("peer_access", 0);
    let lent = exported(first.export(10, "alice", 100));
    assert!(matches!(second.run_on(2, lent), Ok(GpuWorkerReply::NotReached { ordinal: 0, .. })));
    let (place, blocks) = exported(first.export(10, "alice", 101));
    drop(blocks);
    // Same as when the process cannot open all files.
    let inputs = vec![WorkerInput::Exported(ExportedInput { ordinal: 0, shape: shape(), place })];
    let request =
        GpuWorkerRequest::Run { session: 2, run: 1_000, inputs, outputs: vec![(0, None)], outputs_at: BYTES };
    let reply = second.service.reply(request, &second.files, None);
    assert!(matches!(reply, Ok((GpuWorkerReply::NotReached { ordinal: 0, .. }, _))));
    assert!(second.is(&second.run(2, None, None).unwrap(), 2.0), "it works on");
}
