//! One Weir node: everything between a socket and a model's answer.

mod config;
pub use config::{BackendKind, NodeConfig};
