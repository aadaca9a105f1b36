//! A `libcuda.so.1` for tests, on machines without a GPU.
//!
//! The fake implements the driver's interface, so that all code above the driver runs as in
//! production. Its behaviour is legal for a driver, but rare on a real one:
//! - Work stays queued in its stream until a caller waits for it or a random choice runs it.
//!   Streams are drained in any order that the recorded events allow; a seed reproduces an order.
//! - Uninitialised memory reads as NaN and -1, and the page after every allocation faults.
//! - Copies check their ranges when they are submitted and when they run. Kernels run on the CPU
//!   from their original sources; an invalid access faults and loses the context.
//! - The file of machine code decides whether it loads: its target device, its format, which the
//!   driver's version must support, and its kernels.
//! - Tests can make memory run out, launches fail and the bus slow.
//! - Calls that are slow on a real driver accumulate costs, so that designs can be compared: see
//!   [`DriverCosts`].
//!
//! Its folder also has a `libnvidia-ml.so.1`, which reports the same GPUs as a real management
//! library. A `libcublasLt.so` of versions 12 and 13 computes matrix products in the order of the
//! driver's streams, and rejects the same arguments as the real library. A `libnvrtc.so` of both
//! versions compiles kernels for the CPU, with the compiler that built the driver, and the driver
//! runs them in its streams.
//!
//! A test creates a [`Fake`], a driver that is independent of the drivers of other tests in the
//! process. A whole node takes [`library`] in `WEIR_CUDA_LIBRARY`, and settings in
//! `WEIR_FAKE_CUDA`, such as `devices=2,seed=7`.

#![allow(clippy::expect_used, clippy::panic, reason = "a harness fails the test by panicking")]

mod costs;
pub use costs::{CopyThreadCosts, DriverCosts};

mod fake;
pub use fake::{Copied, Direction, Fake};

use std::path::PathBuf;

/// Path of the fake driver.
#[must_use]
pub fn library() -> PathBuf {
    PathBuf::from(env!("WEIR_FAKE_CUDA_LIBRARY"))
}

/// PTX of the fake's additional kernels, which real devices can load, too:
/// `weir_test_scale_add(y, x, by, count)` computes `y[i] = y[i] * by + x[i]`,
/// `weir_test_fill(to, value, count)` sets `to[i] = value`, and `weir_test_spin(to)` never ends.
pub const TEST_KERNELS: &str = include_str!("test_kernels.ptx");
