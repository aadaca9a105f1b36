//! Tests of the executor on the fake driver: real networks, run with the source code of the
//! kernels.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod captures;
mod chains;
mod cold;
mod elastic;
mod kernels;
mod loading;
mod networks;
mod outside;
mod products;

use crate::chains::CompilerConfig;
use crate::device::{Gpu, GpuConfig, IntermediateLimits};
use crate::form::form;
use crate::model::{CudaModel, ModelFiles};
use crate::products::LibraryConfig;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use weir_device::Arena;
use weir_device::cuda::{Devices, MemoryOwner, Search};
use weir_fake_cuda::Fake;
use weir_graph::reference;
use weir_inference::{
    ErrorKind, InferenceError, Interrupt, Job, MappedFile, Model, ModelKey, ModelSource, Prepared, Session,
    Tensor,
};
use weir_kernels::Precision;
use weir_types::{Batching, ElementType, ModelId, Name, Shape, TenantId, Version};

const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Owner of the memory of programs that no model has.
const OWNER: MemoryOwner = MemoryOwner(0);
/// Less than the weights of MiniLM, and more than the weights of the other models.
const PINNED_CACHE_BYTES_MAX: u64 = 64 << 20;
const DIGITS: &str = "functions/classify-digits/model/digits.onnx";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> Bytes {
    let path = repository(path);
    Bytes::from_owner(
        MappedFile::open(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask models` makes it", path.display())),
    )
}

/// Fields drop in order: the fake driver last, because it checks for leaks.
struct Setup {
    gpu: Arc<Gpu>,
    arena: Arena,
    precision: Precision,
    blobs: TempDir,
    fake: Fake,
}

impl Setup {
    fn new(seed: u64) -> Self {
        Self::with(Fake::new(seed), MEMORY_BYTES_MAX, Precision::Fp32)
    }

    fn with(fake: Fake, memory_bytes_max: u64, precision: Precision) -> Self {
        Self::with_library(fake, memory_bytes_max, precision, None)
    }

    fn with_library(
        fake: Fake,
        memory_bytes_max: u64,
        precision: Precision,
        library: Option<LibraryConfig>,
    ) -> Self {
        Self::with_libraries(fake, memory_bytes_max, precision, library, None)
    }

    fn with_libraries(
        fake: Fake,
        memory_bytes_max: u64,
        precision: Precision,
        library: Option<LibraryConfig>,
        compiler: Option<CompilerConfig>,
    ) -> Self {
        let search = Search { driver: Some(fake.path().to_owned()), ..Search::default() };
        let devices = Arc::new(Devices::discover(&search).unwrap());
        let arena = Arena::new(1 << 30);
        let config = GpuConfig {
            ordinal: 0,
            memory_bytes_max,
            slots: 2,
            intermediates: IntermediateLimits::default(),
            pinned_cache_bytes_max: PINNED_CACHE_BYTES_MAX,
            library,
            compiler,
        };
        let gpu = Arc::new(Gpu::open(&devices, &config, &arena).unwrap());
        Self { gpu, arena, precision, blobs: tempfile::tempdir().unwrap(), fake }
    }

    fn source(&self, name: &str, upload: Bytes) -> ModelSource {
        let signature = weir_graph::OnnxModel::read(upload.clone()).unwrap().signature().clone();
        let form = form(upload, self.precision, self.blobs.path()).unwrap().unwrap();
        let weight_bytes = form.weight_bytes;
        let resident_bytes = form.resident_bytes;
        let id = ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) };
        ModelSource {
            key: ModelKey { id, generation: 1 },
            prepared: Arc::new(Prepared {
                signature,
                weight_bytes,
                resident_bytes,
                variants: vec![form],
                unsupported: Vec::new(),
            }),
            blobs: self.blobs.path().to_owned(),
            slots: None,
            batching: Batching::default(),
            meter: weir_inference::Meter::default(),
        }
    }

    /// Returns the device memory in use, in bytes.
    fn held_bytes(&self) -> u64 {
        self.fake.count("used_bytes") - self.gpu.tensors.usage().spare_bytes
    }

    /// Loads a model, and waits until its weights have arrived.
    fn load(&self, name: &str, upload: Bytes) -> Box<dyn Model> {
        let model = self.begin_load(name, upload);
        model.arrive().unwrap();
        assert!(!model.is_arriving());
        model
    }

    /// Loads a model, whose weights may still be in transfer.
    fn begin_load(&self, name: &str, upload: Bytes) -> Box<dyn Model> {
        let files = ModelFiles::for_source(&self.source(name, upload)).unwrap();
        Box::new(CudaModel::load(self.gpu.clone(), &files).unwrap())
    }

    fn floats(&self, dims: &[u32], element: impl Fn(usize) -> f32) -> Tensor {
        let shape = Shape::new(dims).unwrap();
        let count = usize::try_from(shape.element_count()).unwrap();
        let bytes: Vec<u8> = (0..count).flat_map(|at| element(at).to_le_bytes()).collect();
        Tensor::new(ElementType::Fp32, shape, self.arena.copy_of(&bytes).unwrap()).unwrap()
    }
}

impl Setup {
    fn integers(&self, dims: &[u32], element: impl Fn(usize) -> i64) -> Tensor {
        let shape = Shape::new(dims).unwrap();
        let count = usize::try_from(shape.element_count()).unwrap();
        let bytes: Vec<u8> = (0..count).flat_map(|at| element(at).to_le_bytes()).collect();
        Tensor::new(ElementType::Int64, shape, self.arena.copy_of(&bytes).unwrap()).unwrap()
    }
}

fn run(session: &mut dyn Session, input: &Tensor) -> Result<Vec<Tensor>, InferenceError> {
    run_all(session, std::slice::from_ref(input))
}

fn run_all(session: &mut dyn Session, inputs: &[Tensor]) -> Result<Vec<Tensor>, InferenceError> {
    let job = Job { inputs: inputs.to_vec(), outputs: vec![0] };
    session.run(&job, &Interrupt::default())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Computes the output of the reference for the same file and input.
fn expected(upload: Bytes, input: &Tensor) -> Vec<f32> {
    expected_of_all(upload, std::slice::from_ref(input))
}

fn expected_of_all(upload: Bytes, inputs: &[Tensor]) -> Vec<f32> {
    let model = weir_graph::OnnxModel::read(upload).unwrap();
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape().clone()).collect();
    let graph = model.specialise(&shapes).unwrap();
    let weight = |index: u32| {
        let weight = &model.weights()[index as usize];
        match &weight.data {
            weir_graph::WeightData::Bytes(bytes) => {
                reference::ReferenceTensor::from_bytes(weight.tensor.clone(), bytes)
            }
            weir_graph::WeightData::Elsewhere(_) => None,
        }
    };
    let inputs = graph.inputs.iter().zip(inputs).map(|(port, input)| {
        let wanted = graph.value(port.value).tensor.clone();
        reference::ReferenceTensor::from_bytes(wanted, input.data()).unwrap()
    });
    reference::run(&graph, &inputs.collect::<Vec<_>>(), &weight).unwrap().remove(0).to_floats()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], tolerance: f64) {
    let off = reference::distance(found, expected);
    assert!(off <= tolerance, "{off:e} off: {found:?} for {expected:?}");
    // A saturated classifier gives the same output for wrong intermediate values. A large spread of
    // the expected output excludes that case.
    assert!(reference::spread(expected) >= 5.0 * tolerance, "nothing is shown by {expected:?}");
}

#[test]
fn digits_match_reference_in_every_batch_launched_and_captured() {
    for seed in 0..4 {
        let setup = Setup::new(seed);
        let model = setup.load("digits", read(DIGITS));
        let mut session = model.session(1).unwrap();
        for batch in [1, 3, 1] {
            let input = setup.floats(&[batch, 1, 8, 8], |at| (at * 7 % 17) as f32 / 17.0);
            let expected = expected(read(DIGITS), &input);
            let runs: Vec<_> = (0..3).map(|_| run(&mut *session, &input).unwrap().remove(0)).collect();
            assert_close(&values(&runs[0]), &expected, 1e-5);
            assert!(runs.iter().all(|output| *output == runs[0]), "a captured run is the same to the bit");
        }
        assert!(setup.fake.count("graph_launches") >= 4, "runs are captured");
    }
}

#[test]
fn two_sessions_run_concurrently() {
    let setup = Setup::new(5);
    let model = setup.load("digits", read(DIGITS));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let setup = &setup;
            let model = &model;
            scope.spawn(move || {
                let mut session = model.session(1).unwrap();
                for at in 0..5 {
                    let input = setup.floats(&[2, 1, 8, 8], |i| ((i + at) * (seed + 3) % 17) as f32 / 17.0);
                    let found = run(&mut *session, &input).unwrap().remove(0);
                    assert_close(&values(&found), &expected(read(DIGITS), &input), 1e-5);
                }
            });
        }
    });
}

#[test]
fn half_precision_takes_half_the_memory() {
    let held = |precision| {
        let setup = Setup::with(Fake::new(0), MEMORY_BYTES_MAX, precision);
        let source = setup.source("minilm", read(".weir/models/minilm.onnx"));
        let files = ModelFiles::for_source(&source).unwrap();
        let model = CudaModel::load(setup.gpu.clone(), &files).unwrap();
        // The estimate that placement uses must match the actual memory.
        let (before, after) =
            (crate::backend::estimate(&source).total_bytes(), model.footprint().total_bytes());
        assert!(after.abs_diff(before) * 50 < before, "{before} bytes were told of, and it has {after}");
        setup.held_bytes()
    };
    let whole = held(Precision::Tf32);
    let half = held(Precision::Fp16);
    assert!(half * 100 < whole * 55, "{half} bytes rather than {whole}");
}

#[test]
fn equal_weights_of_models_are_stored_once() {
    let setup = Setup::new(0);
    let one = setup.load("a", read(".weir/models/minilm.onnx"));
    let held = setup.held_bytes();
    let other = setup.load("b", read(".weir/models/minilm.onnx"));
    assert_eq!(setup.held_bytes(), held, "the second takes nothing more");
    assert_eq!(one.footprint(), other.footprint());
    drop((one, other));
    setup.gpu.trim();
    assert!(setup.held_bytes() < held / 4, "what nobody needs is given back");
}

#[test]
fn kernel_fault_is_reported_as_device_loss() {
    let setup = Setup::new(0);
    let model = setup.load("digits", read(DIGITS));
    let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
    let mut session = model.session(1).unwrap();
    run(&mut *session, &input).unwrap();
    setup.fake.fail_launch(1);
    let errors: Vec<_> = (0..3).filter_map(|_| run(&mut *session, &input).err()).collect();
    assert!(!errors.is_empty());
    assert!(errors.iter().all(|error| error.kind() == ErrorKind::Unavailable), "{errors:?}");
}

#[test]
fn run_out_of_memory_fails_and_next_run_succeeds() {
    let setup = Setup::new(0);
    let model = setup.load("digits", read(DIGITS));
    let mut session = model.session(1).unwrap();
    let input = setup.floats(&[1, 1, 8, 8], |at| at as f32 / 64.0);
    // No unused memory is left to free.
    setup.gpu.tensors.reclaim(u64::MAX);
    setup.gpu.pool.trim(0);
    setup.fake.fail_allocations(0, 1);
    let error = run(&mut *session, &input).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert_close(&values(&run(&mut *session, &input).unwrap()[0]), &expected(read(DIGITS), &input), 1e-5);
}

#[test]
fn unsupported_operation_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let why =
        form(Bytes::from_static(b"not a model"), Precision::default(), folder.path()).unwrap().unwrap_err();
    assert!(why.contains("not an ONNX model"), "{why}");
    let arcs = std::fs::read(repository("tests/fixtures/models/good/atan.onnx")).unwrap();
    let why = form(arcs.into(), Precision::default(), folder.path()).unwrap().unwrap_err();
    assert!(why.contains("not supported on the GPU"), "{why}");
}
