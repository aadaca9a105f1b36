//! Matrix products.

use super::{KernelCase, PRECISIONS, case, device, floats, run, tensor};
use weir_graph::{Activation, BiasAxis, MatMul, Matrix, Op};
use weir_kernels::Precision;
use weir_kernels_tests::Tolerance;

fn dense(rows: usize, columns: usize, transposed: bool) -> Matrix {
    let row_stride = if transposed { rows } else { columns };
    Matrix { offset: 0, batch_strides: Vec::new(), row_stride, transposed }
}

fn plain(m: usize, n: usize, k: usize, transposed: (bool, bool)) -> MatMul {
    MatMul {
        batch: Vec::new(),
        m,
        n,
        k,
        a: dense(m, k, transposed.0),
        b: dense(k, n, transposed.1),
        alpha: 1.0,
        bias_axis: BiasAxis::Columns,
        activation: None,
    }
}

fn product(op: MatMul, precision: Precision, bias: bool, residual: bool) -> KernelCase {
    let storage = precision.storage();
    let batch: usize = op.batch.iter().product();
    let elements = |matrix: &Matrix, rows: usize, columns: usize| {
        let (lines, length) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        let along: usize =
            op.batch.iter().zip(&matrix.batch_strides).map(|(size, stride)| (size - 1) * stride).sum();
        matrix.offset + along + (lines - 1) * matrix.row_stride + length
    };
    let bias_len = if op.bias_axis == BiasAxis::Rows { op.m } else { op.n };
    let dims = [batch, op.m, op.n];
    let inputs = vec![
        Some(floats(storage, &[elements(&op.a, op.m, op.k)])),
        Some(floats(storage, &[elements(&op.b, op.k, op.n) + 1])),
        bias.then(|| floats(storage, &[bias_len])),
        residual.then(|| floats(storage, &dims)),
    ];
    let tolerance = Tolerance::of_sum(precision, op.k);
    KernelCase { precision, ..case(Op::MatMul(op), inputs, tensor(storage, &dims), tolerance) }
}

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for (precision, capability) in PRECISIONS {
        // Tile sizes: large on one multiprocessor, small on many; odd in all directions, and
        // multiples of every read width.
        for (multiprocessors, m, n, k) in [
            (1, 150, 140, 50),
            (1, 136, 144, 48),
            (4, 100, 90, 70),
            (4, 96, 88, 72),
            (132, 40, 33, 75),
            (132, 40, 40, 64),
        ] {
            for transposed in [(false, false), (false, true), (true, false), (true, true)] {
                if transposed.0 && multiprocessors == 132 {
                    continue;
                }
                let op =
                    MatMul { activation: Some(Activation::Relu), alpha: 0.5, ..plain(m, n, k, transposed) };
                let made = product(op, precision, transposed.1, !transposed.1);
                cases.push(KernelCase { target: device(capability, multiprocessors), ..made });
            }
        }
        // Few outputs of long sums are split.
        let op = MatMul {
            bias_axis: BiasAxis::Rows,
            activation: Some(Activation::Gelu),
            ..plain(20, 30, 1_500, (false, false))
        };
        cases.push(KernelCase { target: device(capability, 132), ..product(op, precision, true, true) });
        let op = plain(70, 30, 1_536, (false, true));
        cases.push(KernelCase { target: device(capability, 132), ..product(op, precision, false, false) });
        // Few rows.
        for (m, n, k) in [(1, 77, 200), (3, 10, 83), (4, 9, 1)] {
            let op = MatMul { activation: Some(Activation::Tanh), ..plain(m, n, k, (false, true)) };
            cases.push(KernelCase { target: device(capability, 132), ..product(op, precision, true, m > 1) });
        }
        // A batch that broadcasts, of matrices interleaved with others.
        let op = MatMul {
            batch: vec![2, 3],
            a: Matrix { offset: 5, batch_strides: vec![700, 210], row_stride: 12, transposed: false },
            b: Matrix { offset: 3, batch_strides: vec![0, 300], row_stride: 25, transposed: false },
            ..plain(17, 19, 11, (false, false))
        };
        cases.push(KernelCase { target: device(capability, 132), ..product(op, precision, true, true) });
        // A batch that shares the right operand.
        let op = MatMul {
            batch: vec![3],
            a: Matrix { batch_strides: vec![7 * 24], ..dense(7, 24, false) },
            b: Matrix { batch_strides: vec![0], ..dense(24, 16, false) },
            ..plain(7, 16, 24, (false, false))
        };
        cases.push(KernelCase { target: device(capability, 132), ..product(op, precision, true, false) });
    }
    cases
}

#[test]
fn products_of_matrices() {
    run(cases());
}
