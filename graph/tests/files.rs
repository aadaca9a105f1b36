//! Tests of model files: skeletons, rejected files, and damaged files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed setup fails the test")]

mod support;

use bytes::Bytes;
use proptest::prelude::*;
use std::sync::LazyLock;
use support::{file, shape};
use weir_graph::{GraphError, MemoryPlan, ModelWeight, OnnxModel, ValueSource, WeightData};
use weir_types::{ContentHash, ElementType, Shape};

fn read(path: &str) -> Result<OnnxModel, GraphError> {
    OnnxModel::read(file(path))
}

/// Shapes for all inputs of a model, with `any` for every variable dimension.
fn shapes(model: &OnnxModel, any: u32) -> Vec<Shape> {
    let dims =
        |port: &weir_types::Port| port.shape.iter().map(|dim| dim.unwrap_or(any)).collect::<Vec<u32>>();
    model.signature().inputs.iter().map(|port| shape(&dims(port))).collect()
}

#[test]
fn skeleton_makes_the_same_graph() {
    for path in [".weir/models/minilm.onnx", "functions/classify-digits/model/digits.onnx"] {
        let model = read(path).unwrap();
        let separated = model.without_weights();
        let skeleton = OnnxModel::read_skeleton(separated.skeleton.clone()).unwrap();
        assert_eq!(skeleton.signature(), model.signature());
        let graph = model.specialise(&shapes(&model, 2)).unwrap();
        assert_eq!(skeleton.specialise(&shapes(&model, 2)).unwrap(), graph, "{path}");
        assert_eq!(skeleton.weights().len(), model.weights().len());
        for (weight, whole) in skeleton.weights().iter().zip(model.weights()) {
            assert_eq!(
                (&weight.name, &weight.tensor, weight.hash()),
                (&whole.name, &whole.tensor, whole.hash())
            );
            let is_there = separated.weights.iter().any(|file| file.hash == weight.hash());
            assert_eq!(matches!(weight.data, WeightData::Elsewhere(_)), is_there, "{}", weight.name);
        }
        for weight in &separated.weights {
            assert_eq!(ContentHash::from_content(&weight.bytes), weight.hash);
        }
        // The skeleton of a skeleton is identical.
        assert_eq!(skeleton.without_weights().skeleton, separated.skeleton);
    }
    let model = read(".weir/models/minilm.onnx").unwrap();
    let kept = model.without_weights().skeleton.len();
    assert!(kept < 1 << 20, "{kept} bytes are left of 90 MB");
}

#[test]
fn skeleton_keeps_storage_type_of_weights() {
    let model = read(".weir/models/minilm.onnx").unwrap();
    let bytes = |model: &OnnxModel| model.weights().iter().map(ModelWeight::bytes).sum::<usize>();
    let stored = model.clone().with_weights_as(ElementType::Fp16).unwrap();
    let small: usize = model.weights().iter().filter_map(ModelWeight::inline).map(Bytes::len).sum();
    assert_eq!(bytes(&stored) - small, (bytes(&model) - small) / 2, "all that is large is fp32");

    let separated = stored.without_weights();
    let skeleton = OnnxModel::read_skeleton(separated.skeleton).unwrap();
    for (weight, whole) in skeleton.weights().iter().zip(stored.weights()) {
        let known = |weight: &ModelWeight| (weight.tensor.clone(), weight.stored_as, weight.hash());
        assert_eq!(known(weight), known(whole), "{}", weight.name);
    }
    let files: usize = separated.weights.iter().map(|file| file.bytes.len()).sum();
    assert_eq!(files + small, bytes(&stored), "no two of them are equal");
    // The stored type does not change the graph.
    let shapes = shapes(&model, 2);
    assert_eq!(skeleton.specialise(&shapes).unwrap(), model.specialise(&shapes).unwrap());
    assert!(matches!(model.with_weights_as(ElementType::Bytes), Err(GraphError::Refused(_))));
}

#[test]
fn external_data_is_rejected_outside_skeletons() {
    let model = read(".weir/models/minilm.onnx").unwrap();
    assert!(matches!(OnnxModel::read(model.without_weights().skeleton), Err(GraphError::Refused(_))));
    assert!(matches!(
        OnnxModel::read_skeleton(file("tests/fixtures/models/bad/external_data.onnx")),
        Err(GraphError::Refused(_))
    ));
}

#[test]
fn invalid_models_are_rejected_by_name() {
    let text = |path: &str| {
        let path = format!("tests/fixtures/models/bad/{path}.onnx");
        let made = read(&path).and_then(|model| model.specialise(&shapes(&model, 1)));
        made.err().unwrap_or_else(|| panic!("{path} is taken")).to_string()
    };
    for (path, part) in [
        ("cyclic", "circle"),
        ("self_loop", "circle"),
        ("undefined_input", "which nothing makes"),
        ("external_data", "in another file"),
        ("future_opset", "7 to 26 are supported"),
        ("unsupported_op", "not supported on the GPU: run the model on the CPU"),
        ("unknown_domain", "not supported on the GPU: run the model on the CPU"),
        ("truncated", "not an ONNX model"),
        ("wrong_magic", "not an ONNX model"),
        ("empty", "not an ONNX model"),
        ("negative_dimension", "has the dimensions"),
        ("recursive_function", "functions that call each other"),
        ("type_mismatch", "differ in type"),
        ("huge_dimension", "than the 1099511627776 bytes"),
    ] {
        let text = text(path);
        assert!(text.contains(part), "{path}: {text}");
    }
}

#[test]
fn control_flow_is_unsupported_for_any_shape() {
    let model = read("inference/onnx/tests/fixtures/branches.onnx").unwrap();
    let [error] = model.unsupported().try_into().unwrap();
    assert!(matches!(&error, GraphError::UnknownOperator { operator, .. } if operator == "If"), "{error}");
}

#[test]
fn mismatched_shapes_are_rejected() {
    let model = read("functions/classify-digits/model/digits.onnx").unwrap();
    for wrong in [vec![], vec![shape(&[1, 1, 8])], vec![shape(&[1, 1, 8, 9])]] {
        assert!(matches!(model.specialise(&wrong), Err(GraphError::Inputs(_))), "{wrong:?}");
    }
    // Both dimensions share one name.
    let model = read(".weir/models/minilm.onnx").unwrap();
    let unequal = [shape(&[1, 5]), shape(&[1, 6]), shape(&[1, 5])];
    let count = model.signature().inputs.len();
    assert!(model.specialise(&unequal[..count]).is_err());
}

#[test]
fn input_as_output_needs_no_nodes() {
    let model = read("tests/fixtures/models/good/identity_bf16.onnx").unwrap();
    let graph = model.specialise(&shapes(&model, 3)).unwrap().fuse().unwrap();
    assert!(graph.nodes.is_empty());
    assert!(graph.outputs.iter().all(|port| graph.value(port.value).source == ValueSource::Input));
}

/// Small real files.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let paths = [
        "functions/classify-digits/model/digits.onnx",
        ".weir/models/light_squeezenet.onnx",
        ".weir/models/light_shufflenet.onnx",
        "tests/fixtures/models/good/matmul.onnx",
        "inference/onnx/tests/fixtures/masked_mean.onnx",
        "inference/onnx/tests/fixtures/gather.onnx",
    ];
    paths.iter().map(|path| file(path).to_vec()).collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Reading a damaged file never panics, and its graph is sound.
    #[test]
    fn damaged_files_do_not_panic(
        which in 0_usize..6,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        any in 0_u32..4,
    ) {
        let mut bytes = FILES[which].clone();
        for (at, byte) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let Ok(model) = OnnxModel::read(bytes.into()) else { return Ok(()) };
        let skeleton = OnnxModel::read_skeleton(model.without_weights().skeleton);
        prop_assert_eq!(skeleton.map(|skeleton| skeleton.weights().len()), Ok(model.weights().len()));
        // A damaged shape may be too large to specialise, which is not an error here.
        if let Ok(graph) = model.specialise(&shapes(&model, any)) {
            let fused = graph.fuse();
            prop_assert!(fused.is_ok(), "{:?}", fused.err());
            if let Ok(graph) = fused {
                let plan = MemoryPlan::new(&graph);
                prop_assert!(graph.ids().all(|id| plan.place(id) == plan.place(graph.buffer(id))));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = OnnxModel::read(bytes.into());
    }
}
