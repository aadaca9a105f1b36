//! Node configuration: defaults for a laptop, overridden by `weir.toml`, the environment and the
//! command line.

mod kernel_graphs;
pub use kernel_graphs::KernelGraphsConfig;

mod devices;
pub use devices::{DeviceConfig, DeviceName, DevicesConfig, DevicesError};

mod scheduling;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use weir_scheduler::{Network, PolicyKind, PolicyOptions, SloSettings, TenantLimits};
use weir_types::api::DEFAULT_PORT;
use weir_types::{Limits, Reuse, TenantId};

const MIB: u64 = 1 << 20;

/// Settings of one node. Each queue, buffer, body, table and wait has its limit here or in
/// [`Limits`].
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
    /// Cluster that the node belongs to. None: a single node.
    pub cluster: Option<ClusterConfig>,

    /// Threads that serve connections; each connection stays on one thread. A guest uses such a
    /// thread for at most one epoch tick.
    pub gateway_threads: usize,
    /// Threads that run guests.
    pub guest_threads: usize,
    /// Open connections at once; further connections wait in the kernel's accept queue.
    pub connections_max: usize,
    /// Longest time that a client may take to send the head of a connection's first request.
    pub header_timeout_ms: u64,
    /// Longest time that a connection may stay open without a request, including the time to
    /// receive the head of the next request.
    pub idle_timeout_ms: u64,
    /// Time that requests in progress have to finish when the node shuts down.
    pub drain_timeout_ms: u64,

    /// Deploys and pushes in progress at once, including those that wait for compilation or
    /// validation. Further uploads are answered with 429.
    pub uploads_max: u32,
    /// Longest time to receive a component or model.
    pub upload_timeout_ms: u64,

    /// Live instances at once, over all functions.
    pub instances_max: u32,
    /// Idle instances, out of `instances_max`, kept for another call of functions whose manifests
    /// set `reuse`. 0: each call gets a new instance.
    pub instances_idle_max: u32,
    /// Largest component that can be deployed.
    pub component_bytes_max: u64,
    /// Components compiled at once for deploys, and as many again for calls whose component must be
    /// recompiled.
    pub compiles_max: u32,
    /// Memory limit of the process that compiles a component.
    pub compile_memory_bytes_max: u64,
    /// CPU time limit of the process that compiles a component.
    pub compile_time_ms_max: u64,
    /// Highest limits that a manifest may request.
    pub limit_caps: Limits,
    /// Highest instance reuse that a manifest may request.
    pub reuse_caps: Reuse,

    /// Placement policy of the scheduler: `finish-first`, or another policy that `weir simulate
    /// --help` lists.
    pub policy: PolicyKind,
    /// Options of the policy: the visits after which `lalb-o3` places a call at any cost
    /// (`o3_limit`), the busy device that `lalb` and `lalb-o3` wait for (`busy_choice`: `first` or
    /// `soonest`), whether devices move from short queues to long ones under `exclusive`
    /// (`exclusive.stealing`), and the choice of eviction victims (`victims`: `least_recently_used`
    /// or `least_loss`). In a cluster, the dispatcher's setting applies.
    pub policy_options: PolicyOptions,
    /// Service level objectives: whether calls that would miss their objective are rejected
    /// (`admission`), which placement within the objective is chosen (`choice`: `cheapest`,
    /// `fastest` or `random`), how many placements are compared (`sample_len`), which fraction of
    /// the time is held back as a margin (`margin`), and the price of a second on each kind of
    /// device (`prices`). In a cluster, the dispatcher's setting applies.
    pub slo: SloSettings,
    /// Tenant quotas, by tenant name: `weight` against other waiting tenants, calls that run at
    /// once (`running_max`), fraction of the device time (`device_share_max`, from 0 to 1) and
    /// device memory for the tenant's models (`resident_bytes_max`). A missing value means no cap.
    /// In a cluster, the dispatcher's setting applies, over all nodes.
    pub tenants: BTreeMap<TenantId, TenantLimits>,
    /// Default quota, for tenants without an entry in `tenants`.
    pub tenant_default: TenantLimits,
    /// Path prefix of the scheduler recording: all inputs and decisions of the scheduler, in files
    /// of up to 1 GiB each. `weir simulate --replay FILE` replays a file. None: no recording.
    pub scheduler_record: Option<PathBuf>,

    /// Devices that run models: `auto` (the CPU and all GPUs found) or a list such as `["cpu",
    /// "cuda:0"]`, whose entries may be tables with device settings. See docs/devices.md.
    pub devices: DevicesConfig,
    /// Backend that runs models on the CPU.
    pub backend: BackendKind,
    /// Path of `libonnxruntime.so`, if the library is neither beside the binary nor in the loader's
    /// search path.
    pub onnxruntime: Option<PathBuf>,
    /// Largest model that can be pushed.
    pub model_bytes_max: u64,
    /// Memory limit of resident models, for devices that do not override it.
    pub model_memory_bytes_max: u64,
    /// Total working memory of model runs, for the tensors between their inputs and outputs.
    pub run_memory_bytes_max: u64,
    /// Memory limit of the process that validates and optimizes a model.
    pub validate_memory_bytes_max: u64,
    /// CPU time limit of the process that validates and optimizes a model.
    pub validate_time_ms_max: u64,
    /// Concurrent model runs, for devices that do not override it. None: one per core.
    pub model_slots: Option<u32>,
    /// Model runs that may wait for a run slot.
    pub run_queue_len_max: usize,
    /// Largest decompressed request body, and largest response, of a direct model inference. A
    /// tensor function has its own limits.
    pub infer_body_bytes_max: u64,
    /// Longest time of a direct model inference, from arrival to response. The request's `timeout`
    /// can only shorten it.
    pub infer_time_ms_max: u64,
    /// Memory for the bodies and tensors of requests in progress.
    pub arena_bytes_max: u64,
    /// Memory of the response cache, for functions and models with a `cache_ttl_ms`. One response
    /// may take a sixteenth of it. 0: no caching.
    pub response_cache_bytes_max: u64,

    /// Longest run on a GPU. A longer run counts as a hang, and the node restarts the device's
    /// worker.
    pub gpu_run_time_ms_max: u64,
    /// Pinned host memory per GPU that caches model weights, so that models reload at the speed of
    /// the bus. 0: no cache. See docs/gpu.md.
    pub gpu_pinned_cache_bytes_max: u64,
    /// Use of NVIDIA's libraries (cuBLASLt, NVRTC), where installed, for operations that they
    /// compute or compile faster than Weir's own kernels: `auto` or `none`. See docs/gpu.md.
    pub gpu_libraries: GpuLibraries,
    /// Kernel graphs: kernels that users provide. See docs/kernel-graphs.md.
    pub kernel_graphs: KernelGraphsConfig,

    /// Asynchronous invocations.
    #[serde(rename = "async")]
    pub asynchronous: AsyncConfig,

    /// Named objects: tensors stored under names.
    pub objects: ObjectsConfig,
    /// Inter-node bandwidth and latency, used to place workflow steps.
    pub network: Network,
    /// Workflow intermediates: tensors that steps hand to each other, on the node for steps that
    /// are placed separately and on the GPU for steps that share one.
    pub intermediates: IntermediatesConfig,

    /// Log lines kept per function.
    pub log_lines_max: usize,
    /// Memory for the log lines kept per function.
    pub log_bytes_max: u64,
    /// Memory for the log lines kept of all functions. When it is full, the largest log drops its
    /// older half.
    pub all_logs_bytes_max: u64,
    /// Fraction of requests that are traced, from 0 to 1. Requests with a sampled `traceparent` are
    /// always traced. Each phase of a traced request becomes a log line with the ids of its trace
    /// and span.
    pub trace_sample_ratio: f64,
}

/// Cluster membership of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Datastore that the nodes share for coordination and deployed state:
    /// `etcd://HOST[:PORT][,HOST[:PORT]...][/ROOT]`.
    pub datastore: String,
    /// Blob store of components and models: `s3://BUCKET[/PREFIX]`, with endpoint and credentials
    /// from the `AWS_*` environment variables, or `file:///FOLDER` for a folder that all nodes
    /// share.
    pub blobs: String,
    /// Size of each of the node's two local caches, for components and for models. It must be at
    /// least the size of the largest model.
    pub cache_bytes_max: u64,
    /// Grace period of unreferenced blobs, before they are set aside and again before they are
    /// removed. It must be longer than any deploy takes. The dispatcher checks four times per grace
    /// period, at least hourly.
    pub blob_grace_ms: u64,
    /// File with the shared secret of the nodes: at least 16 characters, the same on all nodes.
    /// None is allowed only on loopback.
    pub secret_file: Option<PathBuf>,
    /// Address at which other nodes reach this node, as `HOST:PORT`. None: the listen address.
    pub advertise: Option<String>,
    /// Lease of the node: the time until the cluster drops a node that etcd does not hear from, and
    /// so the longest time that the cluster may be without a dispatcher.
    pub lease_ms: u64,
    /// Interval of the heartbeats between cooperating nodes.
    pub heartbeat_ms: u64,
    /// Silence after which a cooperating node counts as lost.
    pub heartbeat_timeout_ms: u64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            datastore: String::new(),
            blobs: String::new(),
            cache_bytes_max: 64 << 30,
            blob_grace_ms: 24 * 3_600 * 1_000,
            secret_file: None,
            advertise: None,
            lease_ms: 3_000,
            heartbeat_ms: 500,
            heartbeat_timeout_ms: 2_000,
        }
    }
}

/// Asynchronous invocations: queues, retention, retries and callbacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Invocations and callbacks that this node runs at once. At 0 the node accepts invocations and
    /// runs none.
    pub running_max: u32,
    /// Maximum for one tenant within `running_max`, so that other tenants always have room.
    pub tenant_running_max: u32,
    /// Unfinished invocations accepted by this node. Further invocations are answered with 429.
    pub queue_len_max: u32,
    /// Unfinished invocations of one tenant, over all nodes. Further invocations are answered with
    /// 429.
    pub tenant_queue_len_max: u32,
    /// Disk space for the requests and results of one tenant. Above it, the tenant's oldest results
    /// are deleted before `retention_ms`.
    pub tenant_bytes_max: u64,
    /// Ended invocations kept for one tenant. Above it, the oldest are deleted before
    /// `retention_ms`.
    pub tenant_kept_max: u32,
    /// Retention of an invocation and its result after its end.
    pub retention_ms: u64,
    /// Attempts before an invocation is given up as dead; at least one.
    pub attempts_max: u32,
    /// Longest time to retry an invocation that could not start, because of full queues or a node
    /// that shuts down.
    pub age_ms_max: u64,
    /// Backoff before the second attempt of an invocation or a callback; it doubles with each
    /// attempt.
    pub backoff_ms: u64,
    /// Longest backoff.
    pub backoff_ms_max: u64,
    /// Lease of a node's claims: the silence after which other nodes take over the invocations that
    /// the node accepted.
    pub lease_ms: u64,
    /// Clients that may wait for the end of invocations at once.
    pub waiters_max: u32,
    /// Longest wait of one client, with `wait_ms` or `Prefer: wait=`.
    pub wait_ms_max: u64,
    /// Hosts that callbacks may reach with the results of direct model inferences and of workflows,
    /// in the syntax of `outbound_hosts` in a function's manifest.
    pub callback_hosts: Vec<String>,
    /// Attempts to deliver a callback.
    pub callback_attempts_max: u32,
    /// Time limit of one callback attempt.
    pub callback_timeout_ms: u64,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        Self {
            running_max: 32,
            tenant_running_max: 24,
            queue_len_max: 10_000,
            tenant_queue_len_max: 2_000,
            tenant_bytes_max: 4096 * MIB,
            tenant_kept_max: 10_000,
            retention_ms: 24 * 3_600_000,
            attempts_max: 3,
            age_ms_max: 6 * 3_600_000,
            backoff_ms: 1_000,
            backoff_ms_max: 60_000,
            lease_ms: 5_000,
            waiters_max: 1_000,
            wait_ms_max: 60_000,
            callback_hosts: Vec::new(),
            callback_attempts_max: 5,
            callback_timeout_ms: 10_000,
        }
    }
}

/// Named objects: sizes, quotas and lifetimes. See docs/objects.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectsConfig {
    /// Largest object.
    pub object_bytes_max: u64,
    /// Number of objects of one tenant.
    pub tenant_len_max: usize,
    /// Total size of one tenant's objects.
    pub tenant_bytes_max: u64,
    /// Time to live of an object whose request sets none.
    pub ttl_ms_default: u64,
    /// Longest time to live of an object.
    pub ttl_ms_max: u64,
    /// Percentage of the *free* memory for bodies and tensors that may cache objects, so that
    /// reading them needs no disk access.
    pub free_percent_max: u64,
}

impl Default for ObjectsConfig {
    fn default() -> Self {
        Self {
            object_bytes_max: 256 * MIB,
            tenant_len_max: 10_000,
            tenant_bytes_max: 4096 * MIB,
            ttl_ms_default: 24 * 3_600_000,
            ttl_ms_max: 365 * 24 * 3_600_000,
            free_percent_max: 25,
        }
    }
}

/// Workflow intermediates: tensors that a step leaves for the next step, on a node for steps that
/// are placed separately and on a GPU when the next step runs there too. See docs/workflows.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntermediatesConfig {
    /// Percentage of the *free* memory that intermediates may take: of the memory for bodies and
    /// tensors, and of each GPU's memory. Tensors that do not fit return with the response. At 0
    /// all tensors do.
    pub free_percent_max: u64,
    /// Number of intermediates on this node, and on each GPU.
    pub len_max: usize,
    /// Host memory, per GPU, for intermediates that were evicted from the GPU.
    pub spilled_bytes_max: u64,
}

impl Default for IntermediatesConfig {
    fn default() -> Self {
        Self { free_percent_max: 50, len_max: 4_096, spilled_bytes_max: 256 * MIB }
    }
}

/// NVIDIA libraries used on GPUs, besides the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuLibraries {
    /// All libraries found.
    #[default]
    Auto,
    /// No libraries.
    None,
}

/// Model backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// ONNX Runtime on the CPU.
    #[default]
    Onnxruntime,
    /// Models that declare their own load and run times; for tests and scheduler experiments.
    Fake,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            data: PathBuf::from("weir-data"),
            token_file: None,
            insecure: false,
            cluster: None,
            gateway_threads: cores,
            guest_threads: cores,
            connections_max: 10_000,
            header_timeout_ms: 30_000,
            idle_timeout_ms: 120_000,
            drain_timeout_ms: 30_000,
            uploads_max: 64,
            upload_timeout_ms: 600_000,
            instances_max: 1_000,
            instances_idle_max: 100,
            component_bytes_max: 128 * MIB,
            compiles_max: 2,
            compile_memory_bytes_max: 2048 * MIB,
            compile_time_ms_max: 120_000,
            limit_caps: Limits::default_caps(),
            reuse_caps: Reuse::default_caps(),
            policy: PolicyKind::default(),
            policy_options: PolicyOptions::default(),
            slo: SloSettings::default(),
            tenants: BTreeMap::new(),
            tenant_default: TenantLimits::default(),
            scheduler_record: None,
            devices: DevicesConfig::default(),
            backend: BackendKind::default(),
            onnxruntime: None,
            model_bytes_max: 4096 * MIB,
            model_memory_bytes_max: 4096 * MIB,
            run_memory_bytes_max: 2048 * MIB,
            validate_memory_bytes_max: 8192 * MIB,
            validate_time_ms_max: 300_000,
            model_slots: None,
            run_queue_len_max: 4_096,
            infer_body_bytes_max: 64 * MIB,
            infer_time_ms_max: 60_000,
            arena_bytes_max: 1024 * MIB,
            response_cache_bytes_max: 64 * MIB,
            gpu_run_time_ms_max: 60_000,
            gpu_pinned_cache_bytes_max: 256 * MIB,
            gpu_libraries: GpuLibraries::default(),
            kernel_graphs: KernelGraphsConfig::default(),
            asynchronous: AsyncConfig::default(),
            objects: ObjectsConfig::default(),
            network: Network::default(),
            intermediates: IntermediatesConfig::default(),
            log_lines_max: 1_000,
            log_bytes_max: MIB,
            all_logs_bytes_max: 64 * MIB,
            trace_sample_ratio: 0.01,
        }
    }
}
