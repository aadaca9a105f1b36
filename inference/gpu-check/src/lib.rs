//! Checks of `weir doctor --gpu`: correctness and speed of a GPU.
//!
//! ```text
//!   Stage ──cases──► Reporter ──StageProgress──► the process that watches this process
//!     case: its name, launches and checks, in this order, so that a fatal case is known
//! ```
//!
//! Checks use the same code path as models. They compare results with the reference interpreter of
//! `weir-graph`, so they need only a driver. On a machine without a GPU, they run on the fake
//! driver, where the measured times have no meaning.

mod stage;
pub use stage::{CaseSelection, Stage};
mod config;
pub use config::{CheckConfig, CheckFailure, WARM_UP_MS};
pub use weir_cuda::executor::FLOPS_MIN;

mod goal;
pub use goal::{Goal, GoalBound};
mod outcome;
pub use outcome::{Check, LaunchParameters, Mismatch, OperationTier};
mod progress;
pub use progress::StageProgress;

mod ahead;
mod answers;
mod bench;
mod compare;
mod floor;
mod folder;
mod timer;

mod stages;
pub use stages::check;
