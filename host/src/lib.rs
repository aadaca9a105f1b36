//! A Weir node: everything between a socket and a model's outputs.
//!
//! The modules in the order of a request: the gateway reads it, dispatch admits and places it, its
//! component is loaded, an instance is created and run, and the instance's host calls reach the
//! models. In addition: the durable registry and blobs, and telemetry.

mod config;
pub use config::{
    DeviceConfig, DeviceName, DevicesConfig, DevicesError, GpuLibraries, GpusConfig, KernelGraphsConfig,
    NodeConfig, TenantConfig,
};

mod node;
pub use node::Node;
pub use node::open_files::OpenFiles;

mod child;
pub use child::ChildKind;
pub use weir_child::{MissingLayer, missing_layers};

pub use weir_asynchronous::AsyncConfig;
pub use weir_backup as backup;
pub use weir_cluster::{ClusterConfig, SchedulerConfig};
pub use weir_control::ObjectsConfig;
pub use weir_control::models::{BackendKind, ModelsConfig};
pub use weir_control::secrets::{
    KeyringError, add_key as add_secrets_key, make_key_file as make_secrets_key,
};
pub use weir_dispatch::IntermediatesConfig;
pub use weir_gateway::GatewayConfig;
pub use weir_otlp::{OtlpConfig, OtlpProtocol, TracesConfig};
pub use weir_outbound::OutboundConfig;
pub use weir_sandbox::SandboxConfig;
/// Files in buckets, from which models are imported.
pub mod remote {
    pub use weir_storage::blobs::{RemoteError, RemoteFile, RemoteFolder};
}
pub use weir_telemetry::logs::LogsConfig;
