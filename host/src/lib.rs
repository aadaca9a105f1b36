//! One Weir node: everything between a socket and a model's answer.
//!
//! In the order a request meets them: the gateway reads it, dispatch admits and places it, the component it calls is loaded, an instance is
//! made and run, and the host calls it makes reach the models. Around them: the registry and blobs that survive a restart, and telemetry.

mod config;
pub use config::{
    AsyncConfig, BackendKind, ClusterConfig, DeviceConfig, DeviceName, DevicesConfig, DevicesError,
    GpuLibraries, IntermediatesConfig, KernelGraphsConfig, NodeConfig, ObjectsConfig,
};

mod node;
pub use node::Node;
pub use node::open_files::OpenFiles;

mod child;
pub use child::ChildKind;

mod gateway;

mod dispatch;

mod response_cache;

mod asynchronous;

mod objective;

mod objects;

mod intermediates;

mod profiling;

mod cluster;

mod component;

mod instance;

mod hostcalls;

mod devices;

mod models;

mod registry;

mod blobs;

mod changes;

mod follow;

mod telemetry;
pub use telemetry::SpanLog;

mod until;
mod workflows;
