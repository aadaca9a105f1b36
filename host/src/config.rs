//! Node configuration: defaults for a laptop, overridden by `weir.toml`, the environment and the
//! command line.
//!
//! Each part of the node has a table, which the crate of that part defines.

mod devices;
pub use devices::{DeviceConfig, DeviceName, DevicesConfig, DevicesError};

mod gpu;
pub use gpu::{GpuLibraries, GpusConfig};

mod kernel_graphs;
pub use kernel_graphs::KernelGraphsConfig;

mod scheduling;

mod tenants;
pub use tenants::TenantConfig;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use weir_asynchronous::AsyncConfig;
use weir_cluster::{ClusterConfig, SchedulerConfig};
use weir_control::ObjectsConfig;
use weir_control::models::ModelsConfig;
use weir_dispatch::IntermediatesConfig;
use weir_gateway::GatewayConfig;
use weir_otlp::TracesConfig;
use weir_outbound::OutboundConfig;
use weir_sandbox::SandboxConfig;
use weir_telemetry::logs::LogsConfig;
use weir_types::TenantId;
use weir_types::api::DEFAULT_PORT;

/// Settings of one node. Each queue, buffer, body, table and wait has its limit here or in
/// [`Limits`](weir_types::Limits).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Address to listen on. An address beyond loopback requires `token_file` or `insecure`.
    pub listen: SocketAddr,
    /// Folder of the functions, the models and the registry.
    pub data: PathBuf,
    /// File of client tokens, one `TOKEN [TENANT]` per line. The tenant `*` is the operator, who
    /// may only read the metrics of all tenants. None: every client has access, as tenant
    /// `default`.
    pub token_file: Option<PathBuf>,
    /// Allows a listen address beyond loopback without tokens.
    pub insecure: bool,
    /// Devices that run models: `auto` (the CPU and all GPUs found) or a list such as `["cpu",
    /// "cuda:0"]`, whose entries may be tables with device settings. See docs/guides/gpu.md.
    pub devices: DevicesConfig,
    /// Cluster that the node belongs to. None: a single node.
    pub cluster: Option<ClusterConfig>,

    /// Gateway: threads, connections, uploads, direct inferences, and the memory of requests.
    pub gateway: GatewayConfig,
    /// Sandbox: threads of guests, instances, compilation, and the caps of manifests.
    pub sandbox: SandboxConfig,
    /// Models: the backend, validation, and the memory and concurrency of runs.
    pub models: ModelsConfig,
    /// GPUs: the run time limit, the cache in pinned memory, and NVIDIA's libraries.
    pub gpu: GpusConfig,
    /// Kernel graphs: kernels that users provide. See docs/guides/kernel-graphs.md.
    pub kernel_graphs: KernelGraphsConfig,

    /// Scheduler: the placement policy, service level objectives and the recording.
    pub scheduler: SchedulerConfig,
    /// Tenant quotas, by tenant name: `weight` against other waiting tenants, calls that run at
    /// once (`running_max`), fraction of the device time (`device_share_max`, from 0 to 1), and
    /// device memory for the tenant's models (`resident_bytes_max`) and for the copies of them that
    /// are always in memory (`required_bytes_max`). A missing value means no cap.
    /// In a cluster, the dispatcher's setting applies, over all nodes. Each node counts requests
    /// (`requests_per_s`, `requests_burst`, `requests_running_max`), names (`names_max`), stored bytes
    /// (`stored_bytes_max`), the instances of functions (`instances_max`) with their memory
    /// (`guest_memory_bytes_max`), and the memory of bodies and tensors (`arena_bytes_max`).
    pub tenants: BTreeMap<TenantId, TenantConfig>,
    /// Default quota, for tenants without an entry in `tenants`.
    pub tenant_default: TenantConfig,

    /// Asynchronous invocations.
    #[serde(rename = "async")]
    pub asynchronous: AsyncConfig,
    /// Named objects: tensors stored under names.
    pub objects: ObjectsConfig,
    /// Outbound requests of guests, and callbacks: the destinations that they may reach.
    pub outbound: OutboundConfig,
    /// Workflow intermediates: tensors that steps hand to each other, on the node for steps that
    /// are placed separately and on the GPU for steps that share one.
    pub intermediates: IntermediatesConfig,

    /// Logs of functions, and the audit log.
    pub logs: LogsConfig,
    /// Traces of requests, and the OpenTelemetry collector for traces and metrics.
    pub traces: TracesConfig,
}

impl NodeConfig {
    /// Whether only the user who runs the node can reach it: it has one tenant, no cluster and a
    /// loopback address.
    pub(crate) fn is_private(&self) -> bool {
        self.token_file.is_none() && self.cluster.is_none() && self.listen.ip().is_loopback()
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            data: PathBuf::from("weir-data"),
            token_file: None,
            insecure: false,
            devices: DevicesConfig::default(),
            cluster: None,
            gateway: GatewayConfig::default(),
            sandbox: SandboxConfig::default(),
            models: ModelsConfig::default(),
            gpu: GpusConfig::default(),
            kernel_graphs: KernelGraphsConfig::default(),
            scheduler: SchedulerConfig::default(),
            tenants: BTreeMap::new(),
            tenant_default: TenantConfig::default(),
            asynchronous: AsyncConfig::default(),
            objects: ObjectsConfig::default(),
            outbound: OutboundConfig::default(),
            intermediates: IntermediatesConfig::default(),
            logs: LogsConfig::default(),
            traces: TracesConfig::default(),
        }
    }
}
