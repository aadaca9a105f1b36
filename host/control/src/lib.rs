//! Served content of a node: deployed functions and workflows, pushed models with the
//! devices that hold them, named objects, API keys, secrets and cached responses.
//!
//! Everything durable is in the datastore and in blobs; every node of a cluster follows the changes
//! of the others.

mod aliases;
pub use aliases::{AliasChange, AliasError};

pub mod canary;
pub mod devices;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod keys;
pub mod models;
pub mod objects;
pub use objects::ObjectsConfig;
pub mod registry;
pub mod response_cache;
pub mod secrets;
pub mod workflows;
