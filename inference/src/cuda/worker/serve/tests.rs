//! Tensors that stay with a worker, on the fake driver: whose they are, where they are, and when they go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use super::service::Service;
use crate::backend::{ModelKey, ModelSource};
use crate::cuda::device::{GpuConfig, IntermediateLimits};
use crate::cuda::form::form;
use crate::cuda::model::ModelFiles;
use crate::cuda::process::{Home, Part};
use crate::cuda::worker::control::Files;
use crate::cuda::worker::message::{Answer, Input, Output, Request};
use crate::error::InferenceError;
use crate::prepare::Prepared;
use bytes::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use weir_fake_cuda::Fake;
use weir_types::{Batching, ModelId, Name, Precision, Shape, TenantId, Version};

/// Rows of 4 KiB in every tensor here.
const ROWS: u32 = 8;
const BYTES: u64 = ROWS as u64 * 4096;

/// A worker in this process. Fields drop in order: the driver last, which looks for what was left.
struct Stage {
    service: Service,
    files: Files,
    blobs: TempDir,
    fake: Fake,
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

impl Stage {
    fn new(memory_bytes_max: u64, intermediates: IntermediateLimits) -> Self {
        let fake = Fake::new(7);
        let (service, blobs) = (Service::default(), tempfile::tempdir().unwrap());
        let file = || File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        let files = Files { memory: file(), arena: file() };
        let stage = Self { service, files, blobs, fake };
        let gpu = GpuConfig { ordinal: 0, memory_bytes_max, slots: 2, intermediates };
        let opened = stage.ask(Request::Open { driver: stage.fake.path().to_owned(), gpu });
        assert!(matches!(opened, Ok(Answer::Opened { .. })), "{opened:?}");
        stage
    }

    fn ask(&self, request: Request) -> Result<Answer, InferenceError> {
        self.service.answer(request, &self.files)
    }

    /// Load a model of `tests/fixtures/models` for a tenant, and open a session of the same number.
    fn load(&self, number: u64, of: &str, name: &str) {
        let path = format!("../tests/fixtures/models/good/{name}.onnx");
        let upload = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let upload = Bytes::from(upload);
        let signature = weir_graph::Model::read(upload.clone()).unwrap().signature().clone();
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
            meter: crate::Meter::default(),
        };
        let files = ModelFiles::of(&source).unwrap();
        self.ask(Request::Load { model: number, files }).unwrap();
        self.ask(Request::Session { model: number, session: number }).unwrap();
    }

    /// Run on ones in the connection's memory, or on a tensor that has stayed. The output may stay by that number.
    fn run(&self, session: u64, input: Option<u64>, stays_as: Option<u64>) -> Result<Output, InferenceError> {
        let input = input.map_or_else(
            || {
                self.files.memory.write_all_at(&ones(1.0), 0).unwrap();
                Input::Here(Part { shape: shape(), home: Home::Connection, offset: 0, bytes: BYTES })
            },
            Input::Stayed,
        );
        let (inputs, outputs) = (vec![input], vec![(0, stays_as)]);
        let request = Request::Run { session, run: 1_000 + session, inputs, outputs, outputs_at: BYTES };
        match self.ask(request)? {
            Answer::Ran { mut outputs, .. } => Ok(outputs.remove(0)),
            answer => panic!("another answer: {answer:?}"),
        }
    }

    /// Whether all elements of an output in the connection's memory are this one.
    fn is(&self, output: &Output, value: f32) -> bool {
        let Output::Here(part) = output else { panic!("it has stayed: {output:?}") };
        let mut found = vec![0; usize::try_from(part.bytes).unwrap()];
        self.files.memory.read_exact_at(&mut found, part.offset).unwrap();
        found == ones(value)
    }

    fn fetch(&self, tensor: u64, of: &str) -> Result<Vec<u8>, InferenceError> {
        match self.ask(Request::Fetch { tensor, tenant: tenant(of) })? {
            Answer::Fetched { bytes } => {
                let mut found = vec![0; usize::try_from(bytes).unwrap()];
                self.files.memory.read_exact_at(&mut found, 0).unwrap();
                Ok(found)
            }
            answer => panic!("another answer: {answer:?}"),
        }
    }

    fn release(&self, tensors: &[u64], abandoned: &[u64]) {
        let (tensors, abandoned) = (tensors.to_vec(), abandoned.to_vec());
        assert_eq!(self.ask(Request::Release { tensors, abandoned }).unwrap(), Answer::Done);
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

fn stays() -> Output {
    Output::Stays { shape: shape(), bytes: BYTES }
}

fn is_lost<T>(answer: &Result<T, InferenceError>) -> bool {
    matches!(answer, Err(InferenceError::TensorLost(_)))
}

#[test]
fn what_a_run_leaves_the_next_reads_without_the_bus() {
    let stage = Stage::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.load(2, "alice", "raised");
    // Launch by launch, captured, and repeated.
    for number in [10, 11, 12] {
        assert_eq!(stage.run(1, None, Some(number)).unwrap(), stays());
        let (up, down) = (stage.fake.count("bytes_to_device"), stage.fake.count("bytes_to_host"));
        assert_eq!(stage.run(2, Some(number), Some(100 + number)).unwrap(), stays());
        assert_eq!(stage.fake.count("bytes_to_device"), up);
        assert_eq!(stage.fake.count("bytes_to_host"), down);
        let output = stage.run(1, Some(100 + number), None).unwrap();
        assert!(stage.is(&output, 6.0));
        assert_eq!(stage.fake.count("bytes_to_host"), down + BYTES, "the last gives it to the host");
        // It is still there for others, until nobody has it.
        assert!(stage.is(&stage.run(2, Some(number), None).unwrap(), 3.0));
        stage.release(&[number, 100 + number], &[]);
        assert_eq!(stage.usage().device_bytes, 0);
        assert!(is_lost(&stage.run(2, Some(number), None)));
    }
}

#[test]
fn a_tenant_finds_nothing_of_anothers() {
    let stage = Stage::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.load(2, "bob", "twice");
    stage.run(1, None, Some(10)).unwrap();
    assert!(is_lost(&stage.run(2, Some(10), None)), "a model of bob's has read it");
    assert!(is_lost(&stage.fetch(10, "bob")));
    assert_eq!(stage.fetch(10, "alice").unwrap(), ones(2.0));
    assert!(stage.is(&stage.run(1, Some(10), None).unwrap(), 4.0));
}

#[test]
fn what_has_to_make_room_is_right_all_the_same() {
    let stage = Stage::new(256 << 20, IntermediateLimits::default());
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
fn where_there_is_no_room_it_goes_with_the_answer() {
    let none = IntermediateLimits { spilled_bytes_max: 0, ..IntermediateLimits::default() };
    for limits in [
        IntermediateLimits { len_max: 1, ..IntermediateLimits::default() },
        IntermediateLimits { free_percent_max: 0, ..none },
    ] {
        let stage = Stage::new(256 << 20, limits);
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
fn what_nobody_waits_for_is_not_kept_whenever_it_comes() {
    let stage = Stage::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    // Told of before it is there, and after.
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
fn a_run_that_fails_leaves_nothing() {
    let stage = Stage::new(256 << 20, IntermediateLimits::default());
    stage.load(1, "alice", "twice");
    stage.run(1, None, Some(10)).unwrap();
    stage.fake.fail_launch(0);
    assert!(matches!(stage.run(1, None, Some(11)), Err(InferenceError::DeviceLost(_))));
    assert!(is_lost(&stage.fetch(11, "alice")));
}
