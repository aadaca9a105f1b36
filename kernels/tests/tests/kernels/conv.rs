//! Convolutions.

use super::{KernelCase, PRECISIONS, case, device, floats, run, tensor};
use weir_graph::{Activation, Conv, ImageLayout, Op};
use weir_kernels::Precision;
use weir_kernels_tests::Tolerance;

const PLAIN: Conv = Conv {
    groups: 1,
    strides: [1, 1],
    pads_begin: [0, 0],
    pads_end: [0, 0],
    dilations: [1, 1],
    activation: None,
    images: ImageLayout::ChannelsFirst,
    filters: ImageLayout::ChannelsFirst,
};

const LAST: Conv = Conv { images: ImageLayout::ChannelsLast, filters: ImageLayout::ChannelsLast, ..PLAIN };

/// A convolution with the vectors that `extras` selects, from the bias to the residual. Dimensions
/// are given with channels first.
fn convolution(
    op: Conv,
    x: [usize; 4],
    w: [usize; 4],
    precision: Precision,
    extras: [bool; 4],
) -> KernelCase {
    let storage = precision.storage();
    let side = |along: usize| {
        let window = (w[2 + along] - 1) * op.dilations[along] + 1;
        (x[2 + along] + op.pads_begin[along] + op.pads_end[along] - window) / op.strides[along] + 1
    };
    let out = [x[0], w[0], side(0), side(1)];
    let vector = |there: bool| there.then(|| floats(storage, &[w[0]]));
    let depth = w[1] * w[2] * w[3];
    let out = op.images.with_dims(out);
    let inputs = vec![
        Some(floats(storage, &op.images.with_dims(x))),
        Some(floats(storage, &op.filters.with_dims(w))),
        vector(extras[0]),
        vector(extras[1]),
        vector(extras[2]),
        extras[3].then(|| floats(storage, &out)),
    ];
    let tolerance = Tolerance::of_sum(precision, depth);
    KernelCase { precision, ..case(Op::Conv(op), inputs, tensor(storage, &out), tolerance) }
}

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for (precision, capability) in PRECISIONS {
        let mut add = |multiprocessors: u32, op: Conv, x, w, extras| {
            let made = convolution(op, x, w, precision, extras);
            cases.push(KernelCase { target: device(capability, multiprocessors), ..made });
        };
        let padded =
            Conv { pads_begin: [1, 1], pads_end: [1, 1], activation: Some(Activation::Relu), ..PLAIN };
        let all = [true; 4];
        let none = [false; 4];
        // Filters of 3 x 3 in each tile size.
        add(1, padded.clone(), [2, 5, 9, 13], [140, 5, 3, 3], all);
        add(4, padded.clone(), [3, 7, 6, 7], [90, 7, 3, 3], [false, true, true, false]);
        add(132, padded.clone(), [1, 4, 7, 7], [20, 4, 3, 3], [true, false, false, true]);
        // Pixels as the columns of a matrix: images with and without rows that allow reads of 16
        // bytes.
        add(1, PLAIN, [2, 24, 8, 10], [136, 24, 1, 1], all);
        add(1, PLAIN, [3, 21, 7, 7], [150, 21, 1, 1], none);
        add(4, PLAIN, [2, 40, 8, 8], [96, 40, 1, 1], [false, true, true, true]);
        add(4, PLAIN, [1, 33, 9, 10], [70, 33, 1, 1], [true, false, false, false]);
        add(132, PLAIN, [1, 19, 5, 5], [21, 19, 1, 1], none);
        add(132, PLAIN, [2, 16, 4, 4], [32, 16, 1, 1], all);
        // Long sums are split, and the epilogue runs once.
        add(
            132,
            Conv { activation: Some(Activation::Silu), ..padded.clone() },
            [1, 96, 4, 5],
            [24, 96, 3, 3],
            all,
        );
        add(132, PLAIN, [1, 900, 3, 3], [33, 900, 1, 1], [true, true, true, true]);
        // Strides, dilation, and asymmetric padding; a filter of one direction; the first
        // convolution of a network.
        let odd = Conv { strides: [2, 3], pads_begin: [2, 0], pads_end: [1, 3], dilations: [2, 1], ..PLAIN };
        add(132, odd, [2, 3, 11, 14], [9, 3, 3, 5], [true, false, false, false]);
        add(132, Conv { pads_begin: [0, 3], pads_end: [0, 3], ..PLAIN }, [1, 8, 6, 6], [12, 8, 1, 7], none);
        add(
            4,
            Conv { strides: [2, 2], pads_begin: [3, 3], pads_end: [3, 3], ..PLAIN },
            [1, 3, 23, 23],
            [16, 3, 7, 7],
            none,
        );
        add(
            132,
            Conv { strides: [2, 2], ..PLAIN },
            [1, 10, 9, 9],
            [12, 10, 1, 1],
            [false, true, true, false],
        );
        // Channels last, in each tile size; whole and cut tiles; several filter elements in a step.
        let last = Conv { pads_begin: [1, 1], pads_end: [1, 1], ..LAST };
        let relu = Conv { activation: Some(Activation::Relu), ..last.clone() };
        add(1, relu.clone(), [2, 16, 9, 13], [140, 16, 3, 3], all);
        add(4, relu.clone(), [3, 40, 6, 7], [90, 40, 3, 3], [false, true, true, false]);
        add(132, relu, [1, 8, 7, 7], [20, 8, 3, 3], [true, false, false, true]);
        // Long sums are split, and the epilogue runs once.
        add(132, Conv { activation: Some(Activation::Silu), ..last }, [1, 96, 4, 5], [24, 96, 3, 3], all);
        add(1, LAST, [1, 16, 40, 40], [64, 16, 3, 3], all);
        add(132, LAST, [1, 64, 40, 40], [64, 64, 3, 3], [true, false, false, true]);
        let odd = Conv { strides: [2, 3], pads_begin: [2, 0], pads_end: [1, 3], dilations: [2, 1], ..LAST };
        add(132, odd, [2, 24, 11, 14], [9, 24, 3, 5], [true, false, false, false]);
        let strided = Conv { strides: [2, 2], ..LAST };
        add(132, strided, [1, 64, 9, 9], [72, 64, 1, 1], [false, true, true, false]);
        // Groups: large ones as matrix products, small ones by the direct kernel.
        add(4, Conv { groups: 3, ..padded.clone() }, [2, 12, 6, 6], [30, 4, 3, 3], all);
        add(4, Conv { groups: 2, ..PLAIN }, [1, 20, 5, 7], [24, 10, 1, 1], all);
        add(4, Conv { groups: 10, strides: [2, 2], ..padded.clone() }, [2, 10, 9, 8], [10, 1, 3, 3], all);
        add(4, Conv { groups: 5, ..PLAIN }, [2, 15, 4, 17], [20, 3, 1, 1], [true, false, false, false]);
    }
    cases
}

#[test]
fn convolutions() {
    run(cases());
}
