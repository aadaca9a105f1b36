//! Data movement and elements selected by index.

use super::{KernelCase, case, floats, run, tensor};
use weir_graph::reference::ReferenceTensor;
use weir_graph::{BlockLayout, Copy, CopyPart, Gather, GatherElements, Op, Scalar, row_major};
use weir_kernels_tests::{Tolerance, Values};
use weir_types::ElementType::{self, Bf16, Fp16, Fp32, Fp64, Int8, Int32, Int64, Uint8};

fn layout(offset: usize, strides: &[isize]) -> BlockLayout {
    BlockLayout { offset, strides: strides.to_vec() }
}

/// A copy of one part, which makes up the output, from a value of `elements`.
fn copy(element_type: ElementType, elements: usize, dims: &[usize], from: BlockLayout) -> KernelCase {
    let to = row_major(dims).into_iter().map(|stride| stride as isize).collect();
    let part = CopyPart { input: 0, dims: dims.to_vec(), from, to: BlockLayout { offset: 0, strides: to } };
    let op = Op::Copy(Copy { fill: None, parts: vec![part] });
    let mut values = Values::new(elements as u64);
    let input = values.integers(&tensor(element_type, &[elements]), -100, 100);
    case(op, vec![Some(input)], tensor(element_type, dims), Tolerance::NONE)
}

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for element_type in [Int8, Fp16, Fp32, Int64] {
        // Contiguous; with strides that prevent widening; reversed; repeated.
        cases.push(copy(element_type, 4_096, &[4_096], layout(0, &[1])));
        cases.push(copy(element_type, 4_097, &[13, 31], layout(3, &[300, 1])));
        cases.push(copy(element_type, 50, &[50], layout(49, &[-1])));
        cases.push(copy(element_type, 6, &[7, 6, 5], layout(0, &[0, 1, 0])));
        // Two dimensions swapped, alone and in a batch; three dimensions permuted.
        cases.push(copy(element_type, 70 * 45, &[45, 70], layout(0, &[1, 45])));
        cases.push(copy(element_type, 3 * 33 * 40, &[3, 40, 33], layout(0, &[1320, 1, 40])));
        cases.push(copy(element_type, 6 * 10 * 12, &[12, 6, 10], layout(0, &[1, 120, 12])));
        // Heads of 8.
        cases.push(copy(element_type, 5 * 3 * 8, &[3, 5, 8], layout(0, &[8, 24, 1])));
        cases.push(copy(
            element_type,
            2 * 3 * 4 * 2 * 3 * 2,
            &[3, 2, 2, 4, 2, 3],
            layout(0, &[48, 6, 144, 12, 1, 2]),
        ));
    }
    // Padding around two parts.
    for element_type in [Int8, Fp16, Bf16, Fp32, Fp64] {
        let part = |input, offset| CopyPart {
            input,
            dims: vec![4, 5],
            from: layout(0, &[5, 1]),
            to: layout(offset, &[20, 1]),
        };
        let op = Op::Copy(Copy { fill: Some(Scalar::Float(-3.0)), parts: vec![part(0, 41), part(1, 48)] });
        let inputs = vec![Some(floats(element_type, &[20])), Some(floats(element_type, &[4, 5]))];
        cases.push(case(op, inputs, tensor(element_type, &[7, 20]), Tolerance::NONE));
    }
    for element_type in [Uint8, Int32, Int64] {
        cases.push(case(
            Op::Fill(Scalar::Integer(-2)),
            vec![],
            tensor(element_type, &[1_001]),
            Tolerance::NONE,
        ));
    }
    // Rows of every width that moves as one piece, with some indices out of range.
    for (element_type, inner) in [(Int8, 3), (Fp16, 5), (Fp32, 1), (Fp32, 2), (Fp32, 12), (Int64, 3)] {
        let x = Values::new(3).integers(&tensor(element_type, &[2, 9, inner]), -90, 90);
        for index_type in [Int64, Int32] {
            let indices = Values::new(4).integers(&tensor(index_type, &[13]), -12, 12);
            let op = Op::Gather(Gather { outer: 2, axis: 9, inner, count: 13 });
            cases.push(case(
                op,
                vec![Some(x.clone()), Some(indices)],
                tensor(element_type, &[2, 13, inner]),
                Tolerance::NONE,
            ));
        }
    }
    // Indices far out of range.
    for index_type in [Int64, Int32] {
        let ends =
            if index_type == Int64 { [i64::MIN, i64::MAX] } else { [i32::MIN, i32::MAX].map(i64::from) };
        let far = [ends[0], ends[0] + 1, -1 - (1 << 30), -10, -9, 8, 9, 1 << 30, ends[1] - 1, ends[1]];
        let indices = ReferenceTensor::integers(tensor(index_type, &[10]), far.to_vec());
        let x = Values::new(7).integers(&tensor(Fp32, &[9]), -90, 90);
        let elements = GatherElements { dims: vec![10], strides: vec![0], axis: 9, axis_stride: 1 };
        for op in
            [Op::Gather(Gather { outer: 1, axis: 9, inner: 1, count: 10 }), Op::GatherElements(elements)]
        {
            let inputs = vec![Some(x.clone()), Some(indices.clone())];
            cases.push(case(op, inputs, tensor(Fp32, &[10]), Tolerance::NONE));
        }
    }
    for element_type in [Int8, Fp16, Fp32, Int64] {
        let x = Values::new(5).integers(&tensor(element_type, &[4, 6, 5]), -90, 90);
        let indices = Values::new(6).integers(&tensor(Int64, &[4, 3, 5]), -8, 8);
        let op = GatherElements { dims: vec![4, 3, 5], strides: vec![30, 0, 1], axis: 6, axis_stride: 5 };
        let made = case(
            Op::GatherElements(op),
            vec![Some(x), Some(indices)],
            tensor(element_type, &[4, 3, 5]),
            Tolerance::NONE,
        );
        cases.push(made);
    }
    cases
}

#[test]
fn copies_and_gathers() {
    run(cases());
}
