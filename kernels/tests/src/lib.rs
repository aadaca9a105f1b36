//! Tests of every kernel on the emulator against the reference.
//!
//! An [`Emulator`] is a child process that runs launches on buffers, with or without
//! AddressSanitizer. [`check`] runs one operation twice: planned and on the emulator, in several
//! thread orders, and by [`weir_graph::reference`], with sums in f64. The results must agree within
//! a [`Tolerance`].

mod emulator;
pub use emulator::{Emulator, kernels};

mod compare;
pub use compare::{KernelCase, Tolerance, check};

mod values;
pub use values::Values;
