//! Shared value types of the Weir crates. Pure values: the crate does no I/O, reads no clock and
//! spawns no tasks.
//!
//! By topic: callers and names ([`TenantId`], [`TenantActivity`],
//! [`Name`]), functions and models ([`FunctionId`],
//! [`ModelId`]), content addresses ([`ContentHash`]), grants and limits ([`FunctionManifest`],
//! [`Limits`], [`Reuse`]), batching ([`Batching`]), tensors ([`ElementType`], [`Shape`]), measured
//! performance ([`Profile`]), prices ([`Cost`]), responses and errors ([`api`], [`ErrorCode`]).

mod ids;
pub use ids::{
    AsyncId, AsyncIdError, DeviceId, FunctionId, InvocationId, ModelId, Name, NameError, NodeId, Ordinal,
    TenantId, Version, WorkflowId, invocation_digits,
};

mod activity;
pub use activity::TenantActivity;

mod alias;
pub use alias::{Alias, AliasError, VersionRef, VersionRefError};

mod hash;
pub use hash::{ContentHash, HashError, Hasher};

mod platform;
pub use platform::{DeviceChoice, Platform, Platforms};

mod precision;
pub use precision::Precision;

mod manifest;
pub use manifest::{
    CACHE_TTL_MS_MAX, COPIES_MIN_MAX, FunctionKind, FunctionManifest, KEEP_ALIVE_MS_MAX, ManifestError,
    ModelManifest, ModelRef, reuse,
};

mod labels;
pub use labels::{
    LABEL_BYTES_MAX, LABELS_BYTES_MAX, LABELS_MAX, Labels, LabelsDefect, LabelsError, ModelLabels,
};

mod imports;
pub use imports::imports_whole_runtime;

mod object;
pub use object::{JsonObject, json_object};

mod outbound;
pub use outbound::{OutboundHostError, check_outbound_host};

mod objects;
pub use objects::{NamePattern, NamePatternError, ObjectGrants};

mod secrets;
pub use secrets::{SECRET_BYTES_MAX, SECRET_GRANTS_MAX, SecretGrants, SecretName, SecretNameError};

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
