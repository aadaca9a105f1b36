//! Kernels for NVIDIA's devices, and descriptions of how to launch them.
//!
//! The kernels are CUDA C++ in `cuda/`, without any header of CUDA's. `cargo xtask kernels` compiles them to PTX (`ptx/`) and assembles the PTX for each
//! architecture (`cubin/`). Both are checked in, so that a node with nothing but a driver can run them: machine code at once, and PTX where no machine code fits, once the
//! driver has compiled it. In the order an operation meets this crate: [`plan`] makes
//! [`Launch`]es of an operation of [`weir_graph`] and the types of its operands, for a [`Target`] and in a [`Precision`]. A launch names its
//! [`Kernel`] and what the kernel is given, in which buffers are only places yet ([`Slot`]); [`Launch::with_buffers`] puts addresses there. What a kernel
//! is called in its [`Module`], and the module's code, go to the driver.
//!
//! Elementwise programs are interpreted by their kernel. A [`Chain`] is such a program by itself: the source of a kernel that does it alone, from the same files, for those who
//! have a compiler.
//!
//! Nothing here needs a device. Without one the same sources run on the processor, in the emulator (`emulator/`): that is how they are
//! tested, and how a model runs on the fake driver.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weir_graph::{Op, Reduce, ReduceKind, TensorType};
//! use weir_kernels::{Operands, Precision, Slot, Target, plan};
//! use weir_types::ElementType::Fp32;
//!
//! let op = Op::Reduce(Reduce { kind: ReduceKind::Mean, rows: 64, cols: 49 });
//! let (x, y) = (TensorType::new(Fp32, [64, 49])?, TensorType::new(Fp32, [64])?);
//! let operands = Operands { inputs: &[Some(&x)], outputs: &[Some(&y)] };
//! let plan = plan(&op, operands, Precision::Tf32, &Target::H200)?;
//!
//! let addresses = |slot: &Slot| match slot {
//!     Slot::Input(_) => 0x1000_u64,
//!     Slot::Output(_) => 0x2000,
//!     Slot::Workspace => 0x3000,
//! };
//! for launch in &plan.launches {
//!     let launch = launch.with_buffers(addresses);
//!     println!("{} {:?} {:?}", launch.kernel.name, launch.grid, launch.block);
//! }
//! # Ok(())
//! # }
//! ```

mod target;
pub use target::Target;
pub use weir_types::Precision;

mod plan;
pub use plan::{Operands, Plan, Unsupported, plan};

mod launch;
pub use launch::{Argument, Cost, Kernel, Launch, Slot};

mod module;
pub use module::Module;

mod chain;
pub use chain::{Chain, Example};

mod fields;
