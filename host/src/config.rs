//! How a node is set up. Defaults suit a laptop; the command line, the environment and `weir.toml` fill it in.

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

/// Settings of one node. Every queue, buffer, body, table and wait of the node has its limit here or in [`Limits`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Where to listen. Anything but loopback needs `token_file` or `insecure`.
    pub listen: SocketAddr,
    /// Where functions, models and the registry are kept.
    pub data: PathBuf,
    /// Tokens that clients must send, one `TOKEN [TENANT]` a line; the tenant `*` is the operator, who reads the metrics of all and does
    /// nothing else. None lets everyone in as tenant `default`.
    pub token_file: Option<PathBuf>,
    /// Listen beyond loopback without tokens.
    pub insecure: bool,
    /// The cluster that the node is one of. None: it is by itself.
    pub cluster: Option<ClusterConfig>,

    /// Threads that connections live on, each on one; never used by a guest for longer than one epoch tick.
    pub gateway_threads: usize,
    /// Threads that run guests.
    pub guest_threads: usize,
    /// Connections open at once; more wait in the kernel's accept queue.
    pub connections_max: usize,
    /// How long a client may take to send the head of a connection's first request.
    pub header_timeout_ms: u64,
    /// How long a connection may be open without a request, the time that the next one's head takes included.
    pub idle_timeout_ms: u64,
    /// How long requests under way may take to finish when the node shuts down.
    pub drain_timeout_ms: u64,

    /// Deploys and pushes under way at once, those that wait to be compiled or checked included; one more is answered 429.
    pub uploads_max: u32,
    /// How long a component or model may take to arrive.
    pub upload_timeout_ms: u64,

    /// Instances alive at once, over all functions.
    pub instances_max: u32,
    /// How many of them may wait for another call, of functions whose manifests say `reuse`. 0: every call has an instance of its own.
    pub instances_idle_max: u32,
    /// The largest component that can be deployed.
    pub component_bytes_max: u64,
    /// Components compiled at once for deploys, and as many again for calls that need one compiled anew.
    pub compiles_max: u32,
    /// Memory of the process that compiles a component.
    pub compile_memory_bytes_max: u64,
    /// Processor time of the process that compiles a component.
    pub compile_time_ms_max: u64,
    /// The most that a manifest may ask for.
    pub limit_caps: Limits,
    /// The most that a manifest may ask for as to how far an instance is used again.
    pub reuse_caps: Reuse,

    /// How the scheduler decides where calls run: `finish-first`, or one of the others that `weir simulate --help` lists.
    pub policy: PolicyKind,
    /// What the policy is told: the visits after which `lalb-o3` places a call whatever it costs (`o3_limit`), the busy device that `lalb` and
    /// `lalb-o3` wait for (`busy_choice`: `first` or `soonest`), whether devices go from short queues to long ones under `exclusive`
    /// (`exclusive.stealing`), and who makes room (`victims`: `least_recently_used` or `least_loss`). In a cluster, the dispatcher's counts.
    pub policy_options: PolicyOptions,
    /// How service level objectives are kept: whether calls are turned away that would miss theirs (`admission`), which of the placements is
    /// taken that keep to it (`choice`: `cheapest`, `fastest` or `random`), how many are compared (`sample_len`), which part of the time is
    /// kept back (`margin`), and what a second of each kind of device costs (`prices`). In a cluster, the dispatcher's counts.
    pub slo: SloSettings,
    /// What tenants may use, by name: `weight` against others that wait, calls that run at once (`running_max`), part of the device time
    /// (`device_share_max`, from 0 to 1) and memory of devices for their models (`resident_bytes_max`). What is left out has no cap. In a
    /// cluster, the dispatcher's count, over all nodes.
    pub tenants: BTreeMap<TenantId, TenantLimits>,
    /// The same of each tenant that is not named there.
    pub tenant_default: TenantLimits,
    /// Write down everything that the scheduler is told and says, in files whose names begin with this, up to 1 GiB each;
    /// `weir simulate --replay FILE` plays one again. None: nothing is written.
    pub scheduler_record: Option<PathBuf>,

    /// The devices that models run on: `auto` (the processor, and every GPU that is found) or a list such as `["cpu", "cuda:0"]`, whose entries
    /// may be tables with settings of their own. See docs/devices.md.
    pub devices: DevicesConfig,
    /// What runs models on the processor.
    pub backend: BackendKind,
    /// Where `libonnxruntime.so` is, if not beside the binary or in a place the loader looks.
    pub onnxruntime: Option<PathBuf>,
    /// The largest model that can be pushed.
    pub model_bytes_max: u64,
    /// Memory that resident models may take, on a device that says nothing else.
    pub model_memory_bytes_max: u64,
    /// Memory that model runs may use between their inputs and outputs, all together.
    pub run_memory_bytes_max: u64,
    /// Memory of the process that checks and optimises a model.
    pub validate_memory_bytes_max: u64,
    /// Processor time of the process that checks and optimises a model.
    pub validate_time_ms_max: u64,
    /// Model runs at once, on a device that says nothing else. None: one per core.
    pub model_slots: Option<u32>,
    /// Model runs that may wait for a slot.
    pub run_queue_len_max: usize,
    /// The largest body, decompressed, of an inference of a model by itself, and the largest answer. A tensor function has limits of its own.
    pub infer_body_bytes_max: u64,
    /// How long an inference of a model by itself may take, from its arrival to its answer; its `timeout` can only shorten this.
    pub infer_time_ms_max: u64,
    /// Memory for bodies and tensors of requests under way.
    pub arena_bytes_max: u64,
    /// Memory for answers that are kept for equal calls, of functions and models that have a `cache_ttl_ms`; one answer may take a sixteenth
    /// of it. 0: none are kept.
    pub response_cache_bytes_max: u64,

    /// How long one run on a GPU may take before the worker of the device is taken to hang, and is started anew.
    pub gpu_run_time_ms_max: u64,
    /// Memory of the host that is pinned on each GPU for copies of weights, so that models that come back load from there at the speed of the bus. 0: none. See
    /// docs/gpu.md.
    pub gpu_pinned_cache_bytes_max: u64,
    /// Whether NVIDIA's libraries (cuBLASLt, NVRTC) compute or compile what they do faster than Weir's own kernels, where they are installed: `auto`, or
    /// `none`. See docs/gpu.md.
    pub gpu_libraries: GpuLibraries,
    /// Kernels that users bring. See docs/kernel-graphs.md.
    pub kernel_graphs: KernelGraphsConfig,

    /// Invocations whose answer nobody waits for.
    #[serde(rename = "async")]
    pub asynchronous: AsyncConfig,

    /// Tensors that are kept under names.
    pub objects: ObjectsConfig,
    /// What the nodes of the cluster are connected by: for what of a workflow goes to another node.
    pub network: Network,
    /// How steps of workflows hand tensors to each other: those that are placed by themselves, and those on one GPU.
    pub intermediates: IntermediatesConfig,

    /// Log lines kept per function.
    pub log_lines_max: usize,
    /// Memory for the log lines kept per function.
    pub log_bytes_max: u64,
    /// Memory for the log lines kept of all functions; where it is used up, the largest log gives up its older half.
    pub all_logs_bytes_max: u64,
    /// The share of requests that are traced, from 0 to 1; those with a sampled `traceparent` always are. Each phase of such a request is a
    /// line of the log, with the ids of its trace and span.
    pub trace_sample_ratio: f64,
}

/// How a node takes part in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Where the nodes meet, and keep what is deployed: `etcd://HOST[:PORT][,HOST[:PORT]...][/ROOT]`.
    pub datastore: String,
    /// Where they keep components and models: `s3://BUCKET[/PREFIX]`, with endpoint and credentials from the `AWS_*` variables of the
    /// environment, or `file:///FOLDER` for a folder that all of them see.
    pub blobs: String,
    /// What a node keeps of each, components and models, so that it need not fetch them again. At least as much as the largest model takes.
    pub cache_bytes_max: u64,
    /// How long blobs stay that nothing refers to any more before they are set aside, and then before they are removed: longer than any deploy
    /// takes. The dispatcher looks four times in that time, at least hourly.
    pub blob_grace_ms: u64,
    /// What the nodes show each other, in a file: at least 16 characters, the same on all of them. None only on loopback.
    pub secret_file: Option<PathBuf>,
    /// Where other nodes reach this one, as `HOST:PORT`. None: where it listens.
    pub advertise: Option<String>,
    /// How long the cluster goes on counting on a node that etcd does not hear of, and so how long it may be without a dispatcher.
    pub lease_ms: u64,
    /// How often nodes that work together tell each other that they are there.
    pub heartbeat_ms: u64,
    /// How long one of them may be silent before it counts as lost.
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

/// How asynchronous invocations are kept and run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsyncConfig {
    /// Invocations and callbacks that this node works on at once; 0 accepts them and works on none.
    pub running_max: u32,
    /// Those of one tenant among them, so that there is room for others' at any time.
    pub tenant_running_max: u32,
    /// Invocations accepted by this node that have not ended; one more is answered 429.
    pub queue_len_max: u32,
    /// The same of one tenant, over all nodes.
    pub tenant_queue_len_max: u32,
    /// What the requests and results of one tenant may take on disk: with more, results are forgotten before their time, the oldest first.
    pub tenant_bytes_max: u64,
    /// Ended invocations of one tenant that are kept; with more, the oldest are forgotten before their time.
    pub tenant_kept_max: u32,
    /// How long an invocation and its result are kept after its end.
    pub retention_ms: u64,
    /// How often an invocation is begun until it is given up as dead; once at least.
    pub attempts_max: u32,
    /// For how long an invocation is tried that could not begin, because of full queues or a node that shuts down.
    pub age_ms_max: u64,
    /// The pause before the second attempt, of an invocation or a callback; it doubles with each.
    pub backoff_ms: u64,
    /// The longest such pause.
    pub backoff_ms_max: u64,
    /// How long a node may be silent before others take over what it had accepted.
    pub lease_ms: u64,
    /// Clients that wait for the end of invocations at once.
    pub waiters_max: u32,
    /// How long one of them may wait, with `wait_ms` or `Prefer: wait=`.
    pub wait_ms_max: u64,
    /// Hosts that may be called back with the results of models by themselves and of workflows, as in `outbound_hosts` of a function's manifest.
    pub callback_hosts: Vec<String>,
    /// How often a callback is tried.
    pub callback_attempts_max: u32,
    /// How long one callback may take.
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

/// How named objects are kept. See docs/objects.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectsConfig {
    /// The largest object.
    pub object_bytes_max: u64,
    /// Objects of one tenant.
    pub tenant_len_max: usize,
    /// What the objects of one tenant may take together.
    pub tenant_bytes_max: u64,
    /// How long an object is kept of which nobody says how long.
    pub ttl_ms_default: u64,
    /// How long an object may be kept.
    pub ttl_ms_max: u64,
    /// The share of the *free* memory for bodies and tensors that objects may be in, in per cent, so that they need not be read from disk.
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

/// What steps of workflows leave for each other: on the node where they are placed by themselves, and on a GPU where the next runs there, too. See
/// docs/workflows.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntermediatesConfig {
    /// The share of the *free* memory that they may take, in per cent: of that for bodies and tensors, and of each GPU's. What does not fit goes back with
    /// the answer. At 0 all do.
    pub free_percent_max: u64,
    /// The most of them on this node, and on each GPU.
    pub len_max: usize,
    /// Memory of the host for those on a GPU that had to make room there; for each GPU.
    pub spilled_bytes_max: u64,
}

impl Default for IntermediatesConfig {
    fn default() -> Self {
        Self { free_percent_max: 50, len_max: 4_096, spilled_bytes_max: 256 * MIB }
    }
}

/// Which of NVIDIA's libraries are used on GPUs, besides the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuLibraries {
    /// Those that are found.
    #[default]
    Auto,
    /// None.
    None,
}

/// What runs models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// ONNX Runtime on the CPU.
    #[default]
    Onnxruntime,
    /// Models that declare their own load and run times; for tests and for trying out the scheduler.
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
