//! Tests of matrix products by cuBLASLt in the executor.

use super::networks::{MINILM, assert_near};
use super::*;
use crate::bound::Bound;
use crate::libraries::LibraryState;
use crate::prepared_run::in_slot;
use crate::program::{Program, StepWork};
use crate::weights::Weights;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_graph::{
    Activation, BiasAxis, Graph, GraphNode, GraphPort, GraphValue, MatMul, Matrix, Op, TensorType, ValueId,
    ValueSource,
};

/// Opens a device whose library computes products of at least `flops_min` operations.
fn with_library(fake: Fake, precision: Precision, flops_min: u64) -> Setup {
    let library = LibraryConfig { path: fake.cublas_lt(13), flops_min };
    Setup::with_library(fake, MEMORY_BYTES_MAX, precision, Some(library))
}

impl Setup {
    fn given_to_library(&self) -> u64 {
        self.fake.count("cublasLtMatmul")
    }
}

/// Matrix product as a model may contain it.
#[derive(Debug, Clone)]
struct Case {
    precision: Precision,
    op: MatMul,
    bias: Option<ElementType>,
    residual: bool,
}

fn element_type(precision: Precision) -> ElementType {
    precision.storage()
}

/// Layout of one side's matrices, with `pad` elements between rows.
fn side(
    [rows, columns]: [usize; 2],
    batch: &[usize],
    (transposed, pad, offset, broadcasts): (bool, usize, usize, [bool; 2]),
) -> Matrix {
    let (count, length) = if transposed { (columns, rows) } else { (rows, columns) };
    let row_stride = length + pad;
    let mut strides = Vec::new();
    let mut next = count * row_stride;
    for (place, dim) in batch.iter().enumerate().rev() {
        let broadcast = broadcasts.get(place).copied().unwrap_or_default();
        strides.insert(0, if broadcast { 0 } else { next });
        next *= if broadcast { 1 } else { *dim };
    }
    Matrix { offset, batch_strides: strides, row_stride, transposed }
}

fn cases() -> impl Strategy<Value = Case> {
    let of_side = || (any::<bool>(), 0..3_usize, 0..9_usize, any::<[bool; 2]>());
    let sizes = (5..40_usize, 1..40_usize, 1..48_usize);
    let batch = prop::collection::vec(1..4_usize, 0..=2);
    let activation = prop_oneof![
        3 => Just(None),
        2 => Just(Some(Activation::Relu)),
        1 => Just(Some(Activation::Gelu)),
    ];
    let precision = prop::sample::select(Precision::ALL.to_vec());
    let rest = (activation, precision, prop::option::of(any::<bool>()), any::<bool>(), any::<[bool; 2]>());
    (sizes, batch, of_side(), of_side(), rest).prop_map(|((m, n, k), batch, a, b, rest)| {
        let (activation, precision, bias, residual, [by_rows, halves]) = rest;
        let bias = bias.map(|wide| if wide { ElementType::Fp32 } else { element_type(precision) });
        let op = MatMul {
            m,
            n,
            k,
            a: side([m, k], &batch, a),
            b: side([k, n], &batch, b),
            batch,
            alpha: if halves { 0.5 } else { 1.0 },
            bias_axis: if by_rows { BiasAxis::Rows } else { BiasAxis::Columns },
            activation,
        };
        Case { precision, op, bias, residual }
    })
}

impl Case {
    fn graph(&self) -> Graph {
        let op = &self.op;
        let float = element_type(self.precision);
        let count: usize = op.batch.iter().product();
        let reach = |matrix: &Matrix, rows: usize, columns: usize| {
            let (lines, length) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let along = op.batch.iter().zip(&matrix.batch_strides).map(|(dim, stride)| (dim - 1) * stride);
            matrix.offset + along.sum::<usize>() + (lines - 1) * matrix.row_stride + length
        };
        let bias_len = if op.bias_axis == BiasAxis::Rows { op.m } else { op.n };
        let operands = [
            Some((float, reach(&op.a, op.m, op.k))),
            Some((float, reach(&op.b, op.k, op.n))),
            self.bias.map(|element_type| (element_type, bias_len)),
            self.residual.then_some((float, count * op.m * op.n)),
        ];
        let mut graph = Graph::default();
        let mut node = GraphNode {
            name: "product".to_owned(),
            op: Op::MatMul(op.clone()),
            inputs: vec![],
            outputs: vec![],
        };
        let add = |graph: &mut Graph, tensor: TensorType, source: ValueSource| {
            let value = ValueId(u32::try_from(graph.values.len()).unwrap());
            graph.values.push(GraphValue { name: format!("v{}", value.0), tensor, source });
            (value, GraphPort { name: format!("v{}", value.0), value })
        };
        for operand in operands {
            let made = operand.map(|(element_type, elements)| {
                let tensor = TensorType::new(element_type, vec![elements]).unwrap();
                let (value, port) = add(&mut graph, tensor, ValueSource::Input);
                graph.inputs.push(port);
                value
            });
            node.inputs.push(made);
        }
        let dims: Vec<usize> = op.batch.iter().copied().chain([op.m, op.n]).collect();
        let tensor = TensorType::new(float, dims).unwrap();
        let (value, port) = add(&mut graph, tensor, ValueSource::Node { node: 0, output: 0 });
        graph.outputs.push(port);
        node.outputs.push(Some(value));
        graph.nodes.push(node);
        graph
    }

    /// Returns whether the product meets all conditions of the library, with at most one batch
    /// dimension.
    fn is_plain(&self) -> bool {
        let activation = matches!(self.op.activation, None | Some(Activation::Relu));
        let columns = self.op.bias_axis == BiasAxis::Columns;
        let bias = self.bias.is_none_or(|bias| columns && bias == element_type(self.precision));
        activation && bias && self.op.batch.iter().filter(|dim| **dim > 1).count() <= 1
    }
}

/// The error of the worst element, relative to the expected value or to 1, whichever is larger.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error = |(found, expected): (&f32, &f32)| {
        let found = f64::from(*found);
        let expected = f64::from(*expected);
        let error = (found - expected).abs() / expected.abs().max(1.0);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    found.iter().zip(expected).map(error).fold(0.0, f64::max)
}

#[test]
fn library_products_match_reference() {
    let setup = with_library(Fake::new(3), Precision::Fp32, 0);
    let mut runner = TestRunner::new(Config { cases: 160, ..Config::default() });
    let given = runner.run(&cases(), |case| {
        let graph = case.graph();
        let tier = setup.gpu.products.tier();
        let program = Program::from_graph(&graph, case.precision, &setup.gpu.target, tier).unwrap();
        let works: Vec<_> = program.steps.iter().map(|step| &step.work).collect();
        let is_given = matches!(works[..], [StepWork::Product { .. }]);
        prop_assert!(is_given || !case.is_plain(), "the kernels are to compute it");
        let inputs: Vec<reference::ReferenceTensor> = graph
            .inputs
            .iter()
            .map(|port| {
                let tensor = graph.value(port.value).tensor.clone();
                let number = |at: usize| ((at * 37 + port.value.0 as usize * 11) % 101) as f32 / 50.0 - 1.0;
                let elements = (0..tensor.elements()).map(number).collect();
                reference::ReferenceTensor::floats(tensor, elements)
            })
            .collect();
        let expected = reference::run(&graph, &inputs, &|_| None).unwrap().remove(0);
        let weights = Weights::none();
        let bound = Bound::new(&setup.gpu, program, &weights, OWNER).unwrap();
        prop_assert_eq!(bound.library_steps(), usize::from(is_given));
        let ways =
            in_slot(&setup.gpu, OWNER, &bound, &weights, &inputs, |ready| Ok(ready.outputs_both_ways()?.0));
        let [launched, captured] = ways.unwrap();
        prop_assert_eq!(&launched, &captured, "captured, it is the same to the bit");
        let found = reference::ReferenceTensor::from_bytes(expected.tensor().clone(), &launched[0]);
        let off = error(&found.unwrap().to_floats(), &expected.to_floats());
        let tolerance = match case.precision {
            Precision::Fp32 => 1e-5,
            Precision::Tf32 => 5e-3,
            Precision::Fp16 => 1e-2,
            Precision::Bf16 => 8e-2,
        };
        prop_assert!(off <= tolerance, "off by {off}");
        Ok(())
    });
    given.unwrap();
    assert!(setup.given_to_library() > 100, "{} of them were the library's", setup.given_to_library());
}

/// Runs MiniLM with all products that the library accepts. Checks the outputs against the
/// reference, and that every run gives the same bits. Returns the number of these products.
#[track_caller]
fn minilm_by_library(precision: Precision) -> u64 {
    let setup = with_library(Fake::new(2), precision, 0);
    let upload = read(MINILM);
    let model = setup.load("minilm", upload.clone());
    let mut session = model.session(1).unwrap();
    let signature = weir_graph::OnnxModel::read(upload.clone()).unwrap().signature().clone();
    let port = |port: &weir_types::Port| {
        let is_ids = port.name == "input_ids";
        setup.integers(&[2, 9], |at| if is_ids { 100 + (at as i64 * 37) % 20_000 } else { 1 })
    };
    let inputs: Vec<Tensor> = signature.inputs.iter().map(port).collect();
    let first = run_all(&mut *session, &inputs).unwrap().remove(0);
    let given = setup.given_to_library();
    assert_near("minilm", precision, &values(&first), &expected_of_all(upload, &inputs));
    for _ in 0..2 {
        assert_eq!(run_all(&mut *session, &inputs).unwrap().remove(0), first);
    }
    assert!(setup.fake.count("graph_launches") > 0, "the library's part is captured, too");
    given
}

#[test]
fn minilm_by_cublaslt_matches_reference() {
    // Each of the six layers has three products for the library: the input of attention, its
    // output, and the projection back to the width of the model. The product with GELU stays with
    // the kernels.
    assert!(minilm_by_library(Precision::Fp32) >= 6 * 3);
    assert!(minilm_by_library(Precision::Fp16) >= 6 * 3);
}

/// Runs the digits model with a batch that is large enough for the library.
fn digits(setup: &Setup) -> Result<(), InferenceError> {
    let model = setup.load("digits", read(DIGITS));
    let input = setup.floats(&[8, 1, 8, 8], |at| (at * 7 % 17) as f32 / 17.0);
    let found = run(&mut *model.session(1).unwrap(), &input)?;
    assert_close(&values(&found[0]), &expected(read(DIGITS), &input), 1e-5);
    Ok(())
}

#[test]
fn small_products_stay_with_the_kernels() {
    let setup = with_library(Fake::new(1), Precision::Fp32, crate::program::FLOPS_MIN);
    digits(&setup).unwrap();
    assert_eq!(setup.given_to_library(), 0);
    let setup = with_library(Fake::new(1), Precision::Fp32, 0);
    digits(&setup).unwrap();
    assert_eq!(setup.given_to_library(), 2);
}

/// Returns the reason why a library is unusable. Checks that the answers are right without the
/// library.
fn unused(prepare: impl FnOnce(&Fake) -> PathBuf) -> String {
    let fake = Fake::new(1);
    let library = Some(LibraryConfig { path: prepare(&fake), flops_min: 0 });
    let setup = Setup::with_library(fake, MEMORY_BYTES_MAX, Precision::Fp32, library);
    digits(&setup).unwrap();
    assert_eq!(setup.given_to_library(), 0);
    match setup.gpu.products.state() {
        LibraryState::Unusable(why) => why.clone(),
        state => panic!("{state:?}"),
    }
}

#[test]
fn unusable_library_is_reported_and_kernels_compute_products() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcublasLt.so.12");
    std::fs::write(&file, "not a library").unwrap();
    let why = unused(|_| file);
    assert!(why.contains("libcublasLt.so.12 cannot be used"), "{why}");
    let why = unused(|fake| fake.path().to_owned());
    assert!(why.contains("it lacks cublasLtGetProperty, cublasLtCreate"), "{why}");
    let why = unused(|fake| fake.set("cublaslt_major", 11).cublas_lt(12));
    assert!(why.contains("of version 11, Weir knows 12 and 13"), "{why}");
    let why = unused(|fake| fake.set("cublaslt_create", 1).cublas_lt(12));
    assert!(why.contains("(version 12.4.5) does not start: cublasLtCreate failed"), "{why}");
    assert!(why.contains("CUBLAS_STATUS_NOT_INITIALIZED"), "{why}");
}

#[test]
fn product_declined_by_library_is_computed_by_kernels() {
    let fake = Fake::new(1);
    fake.set("cublaslt_declines", 1);
    let setup = with_library(fake, Precision::Fp32, 0);
    digits(&setup).unwrap();
    assert_eq!(setup.given_to_library(), 0);
    assert_eq!(*setup.gpu.products.state(), LibraryState::Used("13.4.5".to_owned()));
}

#[test]
fn failed_product_fails_only_its_run() {
    let setup = with_library(Fake::new(1), Precision::Fp32, 0);
    setup.fake.set("cublaslt_matmul", 13);
    let error = digits(&setup).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    assert!(error.to_string().contains("cublasLtMatmul failed: CUBLAS_STATUS_EXECUTION_FAILED"), "{error}");
    setup.fake.set("cublaslt_matmul", 0);
    digits(&setup).unwrap();
}

#[test]
fn library_workspace_scales_with_device_memory() {
    let workspace_bytes = |memory_bytes_max| {
        let fake = Fake::new(1);
        let library = Some(LibraryConfig { path: fake.cublas_lt(12), flops_min: 0 });
        let setup = Setup::with_library(fake, memory_bytes_max, Precision::Fp32, library);
        digits(&setup).unwrap();
        assert_eq!(setup.given_to_library(), 2);
        match setup.gpu.products.tier() {
            crate::program::ProductTier::CublasLt { workspace_bytes, .. } => workspace_bytes,
            tier => panic!("{tier:?}"),
        }
    };
    assert_eq!((workspace_bytes(8 << 20), workspace_bytes(64 << 20)), (32 << 10, 256 << 10));
}
