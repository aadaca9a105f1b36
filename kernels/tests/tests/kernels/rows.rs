//! Operations on rows of matrices.

use super::{FLOATS, KernelCase, case, floats, run, tensor};
use weir_graph::{ArgReduce, CumSum, LayerNorm, Mask, Op, Reduce, ReduceKind, Softmax, TopK};
use weir_kernels_tests::{Tolerance, Values};
use weir_types::ElementType::{Fp32, Int32, Int64};

/// Rows for one warp each, the last block of which is not full, and rows for one block each.
const SHAPES: [[usize; 2]; 6] = [[1, 1], [5, 7], [33, 49], [3, 384], [2, 1_025], [3, 4_099]];
const REDUCTIONS: [ReduceKind; 8] = [
    ReduceKind::Sum,
    ReduceKind::Mean,
    ReduceKind::Max,
    ReduceKind::Min,
    ReduceKind::Product,
    ReduceKind::L1,
    ReduceKind::L2,
    ReduceKind::SumSquares,
];

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    let mut values = Values::new(2);
    for [rows, cols] in SHAPES {
        for kind in REDUCTIONS {
            for precision in FLOATS {
                let storage = precision.storage();
                let x = values.floats(&tensor(storage, &[rows, cols]), -1.0, 1.0);
                let tolerance = Tolerance::of_sum(precision, cols);
                cases.push(case(
                    Op::Reduce(Reduce { kind, rows, cols }),
                    vec![Some(x)],
                    tensor(storage, &[rows]),
                    tolerance,
                ));
            }
            let x = values.integers(&tensor(Int64, &[rows, cols]), -3, 4);
            cases.push(case(
                Op::Reduce(Reduce { kind, rows, cols }),
                vec![Some(x)],
                tensor(Int64, &[rows]),
                Tolerance::NONE,
            ));
        }
        for largest in [true, false] {
            for last in [true, false] {
                let op = Op::ArgReduce(ArgReduce { rows, cols, largest, last });
                // Few distinct values, so that some are equal.
                let x = values.integers(&tensor(Fp32, &[rows, cols]), 0, 9);
                cases.push(case(op.clone(), vec![Some(x)], tensor(Int64, &[rows]), Tolerance::NONE));
                let x = values.integers(&tensor(Int32, &[rows, cols]), 0, 9);
                cases.push(case(op, vec![Some(x)], tensor(Int64, &[rows]), Tolerance::NONE));
            }
            let k = cols.min(6);
            let x = values.integers(&tensor(Fp32, &[rows, cols]), -4, 5);
            let places = Some(tensor(Int64, &[rows, k]));
            let op = Op::TopK(TopK { rows, cols, k, largest });
            let made = case(op, vec![Some(x)], tensor(Fp32, &[rows, k]), Tolerance::NONE);
            cases.push(KernelCase { outputs: vec![Some(tensor(Fp32, &[rows, k])), places], ..made });
        }
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let op = Op::CumSum(CumSum { rows, cols, exclusive, reverse });
            let x = values.floats(&tensor(Fp32, &[rows, cols]), -1.0, 1.0);
            let tolerance = Tolerance { absolute: 1e-3, relative: 1e-5 };
            cases.push(case(op.clone(), vec![Some(x)], tensor(Fp32, &[rows, cols]), tolerance));
            let x = values.integers(&tensor(Int64, &[rows, cols]), -9, 9);
            cases.push(case(op, vec![Some(x)], tensor(Int64, &[rows, cols]), Tolerance::NONE));
        }
        for precision in FLOATS {
            let storage = precision.storage();
            let tolerance = Tolerance::of_steps(precision);
            for log in [false, true] {
                let op = Op::Softmax(Softmax { rows, cols, scale: 1.5, log, mask: None });
                let x = values.floats(&tensor(storage, &[rows, cols]), -6.0, 6.0);
                cases.push(case(op, vec![Some(x)], tensor(storage, &[rows, cols]), tolerance));
            }
            for extras in [[false; 4], [true, true, false, false], [true; 4]] {
                let [gamma, beta, residual, sum] = extras;
                let op = Op::LayerNorm(LayerNorm { rows, cols, epsilon: 1e-5 });
                let all = tensor(storage, &[rows, cols]);
                let inputs = vec![
                    Some(values.floats(&all, -2.0, 2.0)),
                    gamma.then(|| floats(storage, &[cols])),
                    beta.then(|| floats(storage, &[cols])),
                    residual.then(|| values.floats(&all, -1.0, 1.0)),
                ];
                // A row of one element has no variance; its rounding error is divided by nearly
                // zero.
                let tolerance = if cols == 1 { Tolerance { absolute: 1e-2, ..tolerance } } else { tolerance };
                let made = case(op, inputs, all.clone(), tolerance);
                cases.push(KernelCase { outputs: vec![Some(all.clone()), sum.then_some(all)], ..made });
            }
        }
    }
    // A row too long for shared memory.
    let long = [2, 12_345];
    let op = Op::LayerNorm(LayerNorm { rows: 2, cols: 12_345, epsilon: 1e-5 });
    let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
    cases.push(case(op, vec![Some(floats(Fp32, &long))], tensor(Fp32, &long), tolerance));
    // Masks: one row for all heads and queries of a batch, with masked positions; all dimensions; a
    // row with a single unmasked position.
    for precision in FLOATS {
        let storage = precision.storage();
        let x = floats(storage, &[2, 3, 5, 11]);
        for (dims, strides, mask) in [
            (vec![2, 15, 11], vec![11, 0, 1], vec![2, 11]),
            (vec![30, 11], vec![11, 1], vec![30, 11]),
            (vec![6, 5, 11], vec![0, 11, 1], vec![5, 11]),
        ] {
            let mut steps = Values::new(9);
            let zeroes: Vec<f32> =
                (0..mask.iter().product()).map(|_| if steps.unit() < 0.4 { -1e4 } else { 0.0 }).collect();
            let mask = weir_graph::reference::ReferenceTensor::floats(tensor(storage, &mask), zeroes);
            let op = Op::Softmax(Softmax {
                rows: 30,
                cols: 11,
                scale: 0.7,
                log: false,
                mask: Some(Mask { dims, strides }),
            });
            let tolerance = Tolerance::of_steps(precision);
            cases.push(case(op, vec![Some(x.clone()), Some(mask)], tensor(storage, &[30, 11]), tolerance));
        }
    }
    cases
}

#[test]
fn rows_of_matrices() {
    run(cases());
}
