//! Kernel graphs: user-supplied GPU kernels and a graph of their launches, called like one model
//! (Kernel-as-a-Service; the KaaS thesis, chapter 5).
//!
//! The crate consists of pure functions on plain data. It depends on neither a device nor a
//! compiler. A graph passes these stages in order:
//!
//! - [`Bundle::parse`] reads an upload: a [`GraphDocument`] and its sources.
//! - [`check_source`] checks a source before a compiler reads it.
//! - [`KernelGraph::new`] validates the document against the compiled [`Ptx`]: names, sizes, data
//!   dependencies, and every argument against the kernel's parameter.
//! - [`KernelGraph::plan`] makes a [`RunPlan`] for inputs of given shapes: the launches in order,
//!   with all sizes resolved, and one memory arena in which buffers with disjoint lifetimes share
//!   memory.
//!
//! ```
//! use weir_kernel_graph::{Bundle, KernelGraph, PlanStep};
//! use weir_types::Shape;
//!
//! let ptx = ".version 7.0 .target sm_75 .address_size 64
//!     .visible .entry scale(.param .u64 y, .param .u64 x, .param .f32 by, .param .u32 count) { ret; }";
//! let upload = serde_json::json!({
//!     "graph": {
//!         "inputs": [{ "name": "x", "datatype": "FP32", "shape": ["n", 4] }],
//!         "outputs": [{ "name": "y", "datatype": "FP32", "shape": ["n", 4] }],
//!         "launches": [{
//!             "name": "half", "kernel": "scale", "grid": ["ceil_div(n * 4, 256)"], "block": [256],
//!             "arguments": [{ "out": "y" }, { "in": "x" }, { "f32": 0.5 }, { "u32": "n * 4" }]
//!         }]
//!     },
//!     "sources": { "scale.ptx": ptx }
//! });
//! let graph = KernelGraph::new(Bundle::parse(upload.to_string().as_bytes())?)?;
//! assert_eq!(graph.signature().inputs[0].shape, [None, Some(4)]);
//! let plan = graph.plan(&[Shape::new(&[1_000, 4])?], 1 << 20)?;
//! let Some(PlanStep::Launch(half)) = plan.steps.first() else { panic!("it launches something") };
//! assert_eq!(half.grid, [16, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod limits;
pub use limits::{ALIGNMENT_BYTES, STEPS_MAX, UPLOAD_BYTES_MAX};

mod expression;
pub use expression::{Expression, ExpressionError};

mod document;
pub use document::{
    Bundle, Constant, GraphBuffer, GraphDocument, GraphInput, LaunchArgument, LaunchSpec, Repeat,
};

mod error;
pub use error::{KernelGraphError, RunPlanError};

mod source;
pub use source::{SourceError, check_source};

mod ptx;
pub use ptx::{Parameter, Ptx, PtxError, PtxKernel};

mod bounds;
mod buffers;
mod check;
mod order;
pub use check::KernelGraph;

mod plan;
pub use plan::{ArenaRegion, ArgumentValue, PlanStep, PlannedLaunch, PlannedOutput, RunPlan};
