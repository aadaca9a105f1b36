//! A Weir node: everything between a socket and a model's outputs.
//!
//! The modules in the order of a request: the gateway reads it, dispatch admits and places it, its
//! component is loaded, an instance is created and run, and the instance's host calls reach the
//! models. In addition: the durable registry and blobs, and telemetry.

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
