//! Kernels for NVIDIA devices, and descriptions of their launches.
//!
//! The kernels are CUDA C++ in `cuda/`, without CUDA's headers. `cargo xtask kernels` compiles them
//! to PTX (`ptx/`) and assembles the PTX for each architecture (`cubin/`). Both are checked in, so
//! that a node needs only a driver. The driver loads machine code directly; where no machine code
//! fits the device, the driver compiles the PTX first.
//!
//! An operation passes through this crate in this order: [`plan`] turns an operation of
//! [`weir_graph`], with the types of its operands, into [`Launch`]es for a [`KernelTarget`] and a
//! [`Precision`]. A launch has a [`Kernel`] and its arguments, in which buffers are symbolic
//! ([`OperandBuffer`]); [`Launch::with_buffers`] replaces them with addresses. The kernel's name in
//! its [`KernelModule`] and the module's code go to the driver.
//!
//! A kernel interprets elementwise programs. A [`Chain`] is the source of a dedicated kernel for
//! one such program, built from the same headers, for nodes that have a compiler.
//!
//! The crate does not need a device. The same sources run on the CPU in the emulator (`emulator/`),
//! which serves tests and the fake driver.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weir_graph::{Op, Reduce, ReduceKind, TensorType};
//! use weir_kernels::{KernelTarget, OperandBuffer, Operands, Precision, plan};
//! use weir_types::ElementType::Fp32;
//!
//! let op = Op::Reduce(Reduce { kind: ReduceKind::Mean, rows: 64, cols: 49 });
//! let (x, y) = (TensorType::new(Fp32, [64, 49])?, TensorType::new(Fp32, [64])?);
//! let operands = Operands { inputs: &[Some(&x)], outputs: &[Some(&y)] };
//! let plan = plan(&op, operands, Precision::Tf32, &KernelTarget::H200)?;
//!
//! let addresses = |slot: &OperandBuffer| match slot {
//!     OperandBuffer::Input(_) => 0x1000_u64,
//!     OperandBuffer::Output(_) => 0x2000,
//!     OperandBuffer::Workspace => 0x3000,
//! };
//! for launch in &plan.launches {
//!     let launch = launch.with_buffers(addresses);
//!     println!("{} {:?} {:?}", launch.kernel.name, launch.grid, launch.block);
//! }
//! # Ok(())
//! # }
//! ```

mod target;
pub use target::KernelTarget;
pub use weir_types::Precision;

mod plan;
pub use plan::{LaunchPlan, Operands, UnsupportedOperation, plan};

mod launch;
pub use launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};

mod module;
pub use module::KernelModule;

mod chain;
pub use chain::{Chain, Example};

mod fields;
