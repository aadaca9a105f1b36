//! Worker processes of a node: how they start, the connections between the node and a worker, and
//! how workers end.
//!
//! Each engine defines the requests and replies of its workers. This crate has the parts that all
//! engines use:
//!
//! - [`Process`] is a running worker, which is killed on drop. Its standard error becomes lines of
//!   the node's log.
//! - [`Control`] is the socket that the main thread of a worker reads: new connections and
//!   cancellations ([`ControlMessage`]). The worker ends when the socket closes.
//! - [`WorkerConnection`] carries one request at a time, and [`ConnectionPool`] lends idle
//!   connections. [`ServedConnection`] is its end in the worker.
//! - [`Forecast`] decides when a thread that waits for a message polls instead of sleeping.
//! - [`send`] and [`receive`] exchange length-prefixed JSON messages; [`send_files`] and
//!   [`receive_files`] pass open files after a message.
//! - [`TensorLocation`] describes a tensor in a memory file that both processes have open.
//! - [`WireError`] is an [`InferenceError`](weir_inference::InferenceError) in a message.
//! - [`ActiveRuns`] are the runs in a worker, and their cancellation.
//! - [`Restarts`] limits the rate of restarts.

mod output;
mod process;
pub use process::{Process, WorkerProgram, command, end_at_once};

mod framing;
pub use framing::{receive, send};
mod files;
pub use files::{receive_files, send_files};

mod control;
pub use control::{ConnectionFiles, Control, ControlMessage, receive_control, wait_for_end};
mod connection;
pub use connection::{InPlaceInputs, Waker, WorkerCallError, WorkerConnection};
mod served;
pub use served::ServedConnection;
mod forecast;
pub use forecast::Forecast;
mod polling;
mod pool;
pub use pool::{ConnectionPool, PooledConnection};

mod memory;
pub use memory::{release_memory_beyond, tensor_memory, write_memory};
mod tensors;
pub use tensors::{MEMORY_BYTES_KEPT, TensorFile, TensorLocation, read_tensor, write_tensors};
mod failure;
pub use failure::WireError;
mod runs;
pub use runs::{ActiveRun, ActiveRuns};

mod restarts;
pub use restarts::Restarts;
