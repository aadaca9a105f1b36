//! Image operations.

use super::{FLOATS, KernelCase, case, floats, run, tensor};
use weir_graph::{Coordinates, ImageLayout, Lrn, Nearest, Op, PoolKind, Pooling, Resize, ResizeMode};
use weir_kernels_tests::Tolerance;

const COORDINATES: [Coordinates; 6] = [
    Coordinates::HalfPixel,
    Coordinates::HalfPixelSymmetric,
    Coordinates::PytorchHalfPixel,
    Coordinates::AlignCorners,
    Coordinates::Asymmetric,
    Coordinates::TfHalfPixelForNearest,
];
const MODES: [ResizeMode; 5] = [
    ResizeMode::Nearest(Nearest::RoundPreferFloor),
    ResizeMode::Nearest(Nearest::RoundPreferCeil),
    ResizeMode::Nearest(Nearest::Floor),
    ResizeMode::Nearest(Nearest::Ceil),
    ResizeMode::Linear,
];

pub(super) fn cases() -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for precision in FLOATS {
        let storage = precision.storage();
        let tolerance = Tolerance::of_steps(precision);
        for kind in [
            PoolKind::Max,
            PoolKind::Average { count_padding: false },
            PoolKind::Average { count_padding: true },
        ] {
            let mut add =
                |x: [usize; 4], out: [usize; 2], kernel, strides, pads_begin, pads_end, dilations| {
                    for layout in [ImageLayout::ChannelsFirst, ImageLayout::ChannelsLast] {
                        let op = Pooling { kind, kernel, strides, pads_begin, pads_end, dilations, layout };
                        let output = tensor(storage, &layout.with_dims([x[0], x[1], out[0], out[1]]));
                        let images = floats(storage, &layout.with_dims(x));
                        cases.push(case(Op::Pool(op), vec![Some(images)], output, tolerance));
                    }
                };
            add([2, 3, 9, 11], [5, 6], [3, 3], [2, 2], [1, 1], [1, 1], [1, 1]);
            // Rounded up: the last windows end beyond the padded image.
            add([1, 2, 8, 8], [4, 4], [3, 3], [2, 2], [0, 0], [0, 0], [1, 1]);
            add([2, 16, 7, 6], [5, 2], [2, 3], [1, 2], [0, 1], [1, 0], [3, 2]);
            add([1, 4, 7, 6], [5, 2], [2, 3], [1, 2], [0, 1], [1, 0], [3, 2]);
        }
        for size in [1, 4, 5] {
            let op = Op::Lrn(Lrn { size, alpha: 0.02, beta: 0.75, bias: 1.5 });
            let dims = [2, 7, 5, 3];
            cases.push(case(op, vec![Some(floats(storage, &dims))], tensor(storage, &dims), tolerance));
        }
        for coordinates in COORDINATES {
            for mode in MODES {
                for (out, scales) in [([10, 14], [2.0, 2.0]), ([3, 4], [0.6, 0.62]), ([1, 9], [0.2, 1.3])] {
                    let op = Op::Resize(Resize { mode, coordinates, scales });
                    let output = tensor(storage, &[2, 3, out[0], out[1]]);
                    let tolerance = Tolerance { absolute: tolerance.absolute + 1e-5, ..tolerance };
                    cases.push(case(op, vec![Some(floats(storage, &[2, 3, 5, 7]))], output, tolerance));
                }
            }
        }
    }
    cases
}

#[test]
fn pictures() {
    run(cases());
}
