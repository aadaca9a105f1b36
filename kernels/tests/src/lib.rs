//! Tests of the kernels: every one of them on the emulator, beside the reference.
//!
//! An [`Emulator`] is a program of its own that runs launches on buffers, one with AddressSanitizer and one without. [`check`] runs one operation
//! both ways: planned and on the emulator, in several orders of its threads, and by [`weir_graph::reference`], whose sums are in f64. They must
//! agree within a [`Tolerance`].

mod emulator;
pub use emulator::{Emulator, kernels};

mod compare;
pub use compare::{Case, Tolerance, check};

mod values;
pub use values::Values;
