//! The nouns that every Weir crate shares. Values only: nothing here does I/O, reads a clock or spawns.
//!
//! In the order data meets them: who asks ([`TenantId`], [`Name`]), for what ([`FunctionId`], [`ModelId`]), stored as which bytes
//! ([`ContentHash`]), allowed to do what ([`FunctionManifest`], [`Limits`], [`Reuse`]), together with what ([`Batching`]), on which data
//! ([`ElementType`], [`Shape`]), how fast ([`Profile`]), at what price ([`Cost`]), answered how ([`api`], [`ErrorCode`]).

mod ids;
pub use ids::{
    AsyncId, AsyncIdError, DeviceId, FunctionId, InvocationId, ModelId, Name, NameError, NodeId, TenantId,
    Version, WorkflowId,
};

mod hash;
pub use hash::{ContentHash, HashError, Hasher};

mod platform;
pub use platform::{DeviceChoice, Platform, Platforms};

mod precision;
pub use precision::Precision;

mod manifest;
pub use manifest::{
    CACHE_TTL_MS_MAX, FunctionKind, FunctionManifest, ManifestError, ModelManifest, ModelRef, reuse,
};

mod objects;
pub use objects::{NamePattern, NamePatternError, ObjectGrants};

mod batching;
pub use batching::{Batching, BatchingError, BatchingMode};

mod autosize;
pub use autosize::{Autosize, AutosizeError};

mod limits;
pub use limits::{Limits, Reuse};

mod tensor;
pub use tensor::{ElementType, Port, Shape, ShapeError, Signature};

mod cost;
pub use cost::Cost;

mod profile;
pub use profile::{Measured, Profile, RunningMean};

mod error;
pub use error::ErrorCode;

pub mod api;
