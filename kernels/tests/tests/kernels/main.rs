//! Every kernel against the reference, with odd shapes, in several thread orders, and with
//! AddressSanitizer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod attention;
mod conv;
mod copy;
mod elementwise;
mod matmul;
mod picture;
mod rows;

use std::collections::BTreeSet;
use weir_graph::reference::ReferenceTensor;
use weir_graph::{Op, TensorType};
use weir_kernels::{KernelTarget, Operands, Precision};
use weir_kernels_tests::{KernelCase, Tolerance, Values, check};
use weir_types::ElementType;

/// A device with the properties that select a kernel: the number of multiprocessors, and the
/// compute capability, which decides on tensor cores.
fn device(compute_capability: u32, multiprocessors: u32) -> KernelTarget {
    KernelTarget { compute_capability, multiprocessors, ..KernelTarget::H200 }
}

/// All precisions, and devices before compute capability 8.0, for which kernels of f16 and bf16
/// have variants.
const PRECISIONS: [(Precision, u32); 6] = [
    (Precision::Fp32, 90),
    (Precision::Tf32, 90),
    (Precision::Fp16, 90),
    (Precision::Bf16, 90),
    (Precision::Fp16, 75),
    (Precision::Bf16, 75),
];

/// Precisions of kernels that do not depend on the device.
const FLOATS: [Precision; 3] = [Precision::Fp32, Precision::Fp16, Precision::Bf16];

fn tensor(element_type: ElementType, dims: &[usize]) -> TensorType {
    TensorType::new(element_type, dims).unwrap()
}

/// Floats from -1 to 1, determined by the dimensions.
fn floats(element_type: ElementType, dims: &[usize]) -> ReferenceTensor {
    let seed = dims.iter().fold(17, |seed, dim| seed * 31 + *dim as u64);
    Values::new(seed).floats(&tensor(element_type, dims), -1.0, 1.0)
}

/// A case with one output on a device of compute capability 9.0.
fn case(
    op: Op,
    inputs: Vec<Option<ReferenceTensor>>,
    output: TensorType,
    tolerance: Tolerance,
) -> KernelCase {
    KernelCase {
        op,
        inputs,
        outputs: vec![Some(output)],
        precision: Precision::Fp32,
        target: device(90, 4),
        tolerance,
    }
}

fn run(cases: Vec<KernelCase>) {
    for case in cases {
        if let Err(error) = check(&case) {
            let inputs: Vec<_> =
                case.inputs.iter().flatten().map(|input| input.tensor().to_string()).collect();
            panic!("{:?} of {inputs:?} in {:?}: {error:#}", case.op, case.precision);
        }
    }
}

/// A kernel that no case runs is untested.
#[test]
fn every_kernel_is_run() {
    let all = [
        attention::cases(),
        conv::cases(),
        copy::cases(),
        elementwise::cases(),
        matmul::cases(),
        picture::cases(),
        rows::cases(),
    ];
    let mut run = BTreeSet::new();
    for case in all.iter().flatten() {
        let inputs: Vec<_> =
            case.inputs.iter().map(|input| input.as_ref().map(ReferenceTensor::tensor)).collect();
        let outputs: Vec<_> = case.outputs.iter().map(Option::as_ref).collect();
        let operands = Operands { inputs: &inputs, outputs: &outputs };
        let plan = weir_kernels::plan(&case.op, operands, case.precision, &case.target).unwrap();
        run.extend(plan.launches.into_iter().map(|launch| launch.kernel.name));
    }
    let compiled = weir_kernels_tests::kernels().unwrap().into_iter();
    let compiled: BTreeSet<_> = compiled.filter(|name| !name.starts_with("faulty_")).collect();
    assert_eq!(compiled.difference(&run).collect::<Vec<_>>(), Vec::<&String>::new(), "not run");
    assert_eq!(run.difference(&compiled).collect::<Vec<_>>(), Vec::<&String>::new(), "not compiled");
}
