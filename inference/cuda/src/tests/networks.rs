//! Tests of whole networks on the executor, compared with ONNX Runtime on the CPU.

#[path = "../../../../graph/tests/onnxruntime/mod.rs"]
mod onnxruntime;
#[path = "../../../../graph/tests/varied/mod.rs"]
mod varied;

use super::*;
use onnxruntime::onnxruntime;
use serde::Deserialize;
use varied::{Random, varied};
use weir_graph::TensorType;
use weir_graph::reference::{distance, spread};

pub(super) const MINILM: &str = ".weir/models/minilm.onnx";

/// Returns one of the small networks, with varied weights.
pub(super) fn light(name: &str) -> Bytes {
    varied(&read(&format!(".weir/models/light_{name}.onnx")))
}

/// Maximum error in a precision relative to the largest element: several times the measured error
/// (docs/concepts/gpu.md), and a fraction of the error that a wrong weight causes.
pub(super) fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 => 1e-5,
        Precision::Tf32 => 2e-3,
        Precision::Fp16 => 5e-3,
        Precision::Bf16 => 4e-2,
    }
}

/// Asserts that answers match ONNX Runtime, whose answers must be spread enough to reveal errors.
#[track_caller]
pub(super) fn assert_near(what: &str, precision: Precision, found: &[f32], expected: &[f32]) {
    let off = distance(found, expected);
    let spread = spread(expected);
    let tolerance = tolerance(precision);
    println!("{what}, {precision}: {off:.1e} off, {spread:.2} apart");
    assert!(off <= tolerance, "{what}, {precision}: {off:e} off");
    assert!(spread >= 5.0 * tolerance, "{what}: nothing is shown by answers that are {spread} apart");
}

impl Setup {
    fn upload(&self, tensor: &reference::ReferenceTensor) -> Tensor {
        let dims: Vec<u32> = tensor.tensor().dims().iter().map(|dim| *dim as u32).collect();
        let data = self.arena.copy_of(&tensor.to_bytes()).unwrap();
        Tensor::new(tensor.tensor().element_type(), Shape::new(&dims).unwrap(), data).unwrap()
    }
}

#[track_caller]
fn network(name: &str, precisions: &[Precision]) {
    let upload = light(name);
    let mut random = Random(2);
    let image = TensorType::new(ElementType::Fp32, [1, 3, 224, 224]).unwrap();
    let pixels = (0..image.elements()).map(|_| random.next()).collect();
    let image = reference::ReferenceTensor::floats(image, pixels);
    let expected = onnxruntime(&upload, std::slice::from_ref(&image));
    for precision in precisions.iter().copied() {
        let setup = Setup::with(Fake::new(1), MEMORY_BYTES_MAX, precision);
        let model = setup.load(name, upload.clone());
        let found = run(&mut *model.session(1).unwrap(), &setup.upload(&image)).unwrap().remove(0);
        assert_near(name, precision, &values(&found), &expected);
    }
}

#[test]
fn squeezenet_matches_onnx_runtime() {
    network("squeezenet", &Precision::ALL);
}

#[test]
fn resnet50_matches_onnx_runtime() {
    network("resnet50", &[Precision::Fp32, Precision::Tf32]);
}

#[test]
fn densenet121_matches_onnx_runtime() {
    network("densenet121", &[Precision::Fp32, Precision::Tf32]);
}

/// Inputs of MiniLM for sentences given as word numbers. Shorter sentences are padded and masked.
fn sentences(ids: &[Vec<i64>]) -> Vec<reference::ReferenceTensor> {
    let length = ids.iter().map(Vec::len).max().unwrap();
    let tensor = |element: &dyn Fn(Option<&i64>) -> i64| {
        let all = ids.iter().flat_map(|ids| (0..length).map(move |at| element(ids.get(at)))).collect();
        reference::ReferenceTensor::integers(
            TensorType::new(ElementType::Int64, [ids.len(), length]).unwrap(),
            all,
        )
    };
    // The value of padding must not affect the result.
    vec![tensor(&|id| id.copied().unwrap_or(2024)), tensor(&|id| i64::from(id.is_some()))]
}

#[test]
fn minilm_matches_onnx_runtime_at_every_length() {
    let upload = read(MINILM);
    let made_up = |lengths: &[i64]| -> Vec<Vec<i64>> {
        let ids = |length: i64| (0..length).map(|at| 100 + (length + at * 37) % 20_000).collect();
        lengths.iter().copied().map(ids).collect()
    };
    for precision in Precision::ALL {
        let setup = Setup::with(Fake::new(2), MEMORY_BYTES_MAX, precision);
        let model = setup.load("minilm", upload.clone());
        let mut session = model.session(1).unwrap();
        for lengths in [&[7][..], &[12, 9], &[5, 21, 17]] {
            let inputs = sentences(&made_up(lengths));
            let uploaded: Vec<Tensor> = inputs.iter().map(|input| setup.upload(input)).collect();
            let found = run_all(&mut *session, &uploaded).unwrap().remove(0);
            let expected = onnxruntime(&upload, &inputs);
            assert_near(&format!("minilm {lengths:?}"), precision, &values(&found), &expected);
        }
    }
}

/// Subset of `reference.json` that the test uses.
#[derive(Deserialize)]
struct Embeddings {
    sentences: Vec<Sentence>,
}

#[derive(Deserialize)]
struct Sentence {
    text: String,
    ids: Vec<i64>,
    embedding: Vec<f32>,
}

#[test]
fn minilm_matches_its_checkpoint() {
    let Embeddings { sentences: all } =
        serde_json::from_slice(&read("functions/embed-text/model/reference.json")).unwrap();
    let upload = read(MINILM);
    for precision in Precision::ALL {
        let setup = Setup::with(Fake::new(3), MEMORY_BYTES_MAX, precision);
        let model = setup.load("minilm", upload.clone());
        let mut session = model.session(1).unwrap();
        // The long sentence takes as much time as all other sentences together.
        let is_short = |sentence: &&Sentence| precision == Precision::Fp32 || sentence.ids.len() < 20;
        for Sentence { text, ids, embedding } in all.iter().filter(is_short) {
            let inputs = sentences(std::slice::from_ref(ids));
            let uploaded: Vec<Tensor> = inputs.iter().map(|input| setup.upload(input)).collect();
            let found = run_all(&mut *session, &uploaded).unwrap().remove(0);
            assert_near(text, precision, &values(&found), embedding);
        }
    }
}
