//! A `libcuda.so.1` for tests, on machines without a GPU.
//!
//! It stands in at the driver's own interface, so that everything above runs as it ships. What it does as a driver may, a real one rarely does:
//! - work waits in its stream until somebody waits for it or chance has it done, and streams are drained in any order that the recorded events allow;
//!   a seed brings an order back;
//! - memory that nobody has written reads as NaN and -1, and the page behind every allocation faults;
//! - copies check what they touch, when they are asked for and when they are made; kernels, run from their own sources on the processor, end in a
//!   fault that loses the context;
//! - machine code is loaded by what its file says: which device it is for, in a format that the driver's version knows, and which kernels it has;
//! - memory runs out, launches fail and the bus is slow when a test says so;
//! - calls that are slow on a real driver are charged for, so that designs can be compared: see [`Costs`].
//!
//! Beside it is a `libnvidia-ml.so.1`, which says of the same GPUs what real ones say of themselves, and a `libcublasLt.so` of versions 12 and 13, which
//! computes products of matrices in the order of the driver's streams, and refuses what the real one does. A `libnvrtc.so` of both versions compiles for the processor, with the
//! compiler that the driver was built with, what the driver then runs in its streams.
//!
//! A test makes a [`Fake`], which is a driver of its own beside those of other tests in the process. A whole node is given [`library`] in
//! `WEIR_CUDA_LIBRARY`, and settings in `WEIR_FAKE_CUDA`, as `devices=2,seed=7`.

#![allow(clippy::expect_used, clippy::panic, reason = "a harness fails the test by panicking")]

mod costs;
pub use costs::{CopyThreads, Costs};

mod fake;
pub use fake::{Copied, Direction, Fake};

use std::path::PathBuf;

/// Where the fake driver is.
#[must_use]
pub fn library() -> PathBuf {
    PathBuf::from(env!("WEIR_FAKE_CUDA_LIBRARY"))
}

/// The kernels that the fake has besides those of `kernels/`, as PTX that a real device takes, too: `weir_test_scale_add(y, x, by, count)` does
/// `y[i] = y[i] * by + x[i]`, `weir_test_fill(to, value, count)` does `to[i] = value`, and `weir_test_spin(to)` never
/// ends.
pub const TEST_KERNELS: &str = include_str!("test_kernels.ptx");
