//! The sandbox of a call: components, compiled and linked; instances of them, limited and metered;
//! and the host calls of guests.
//!
//! The node provides models and objects to calls as [`Resources`].

pub mod component;
pub mod hostcalls;
pub mod instance;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod guest_memory;
pub use guest_memory::{GuestMemory, TenantMemory};

mod clock;
mod config;
pub use config::{CompileCacheConfig, ImagesConfig, SandboxConfig, SecretsConfig, WebSocketConfig};

mod engine;
pub use crate::engine::Engines;

mod images;
pub use images::{ImageDecoder, TenantImages};

pub mod sources;

mod secrets;
pub use secrets::SecretEnv;

mod resources;
pub use resources::{LoadModelError, ObjectAccessError, OpenError, OpenedModel, Resources, Runner};
