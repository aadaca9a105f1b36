//! The path of a call from admission to its response: gates, placements, forwarding to other nodes,
//! runs on this node, workflows, and the tensors that their steps leave for each other.

mod dispatch;
pub use dispatch::*;

pub mod intermediates;
pub use intermediates::IntermediatesConfig;

pub mod profiling;
