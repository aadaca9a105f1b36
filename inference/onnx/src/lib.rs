//! ONNX Runtime backend for the node's processor.
//!
//! At upload, a child process with limits reads the untrusted file, optimises the graph, and writes
//! a skeleton and weights in files named by their hash ([`prepare_main`]). A resident model
//! consists of these files, each mapped into memory once, and of one session per run slot over
//! them.
//!
//! [`OnnxRuntime`] runs models in the node's process, or in one confined worker process per tenant
//! ([`CpuWorkerConfig`]). It does not know other engines: the program passes their [`FormMaker`]s to
//! [`prepare_main`].
//!
//! [`FormMaker`]: weir_inference::FormMaker

mod library;
pub use library::{LibraryError, find_onnxruntime};

mod config;
pub use config::OnnxRuntimeConfig;
mod backend;
pub use backend::OnnxRuntime;

mod child;
pub use child::{PREPARE_COMMAND, prepare_main};
mod protocol;

mod onnx;
mod operators;
pub use operators::{OperatorPattern, OperatorPatternError};
mod optimise;
mod preparer;
mod scan;
mod split;

mod memory;
mod message;
mod plan;
mod processor;
mod runtime;
mod session;
mod signature;
mod store;
mod value;
mod weights;

mod worker;
#[cfg(any(test, fuzzing))]
pub use worker::fuzz;
pub use worker::{CPU_WORKER_COMMAND, CpuWorkerConfig, cpu_worker_main};
