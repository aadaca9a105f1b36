//! The bodies of the management API, as the gateway writes and the command line reads them. JSON; times are Unix milliseconds.

use crate::{
    ContentHash, Cost, ErrorCode, FunctionKind, FunctionManifest, ModelManifest, Name, NodeId, Profile,
    Signature, TenantId, Version,
};
use serde::{Deserialize, Serialize};

mod invocations;
pub use invocations::{
    CallbackState, CallbackStatus, Invocation, InvocationError, InvocationKind, InvocationPage,
    InvocationResponse, InvocationStatus,
};

mod objects;
pub use objects::{DATATYPE_HEADER, Object, SHAPE_HEADER};

mod sizing;
pub use sizing::{ModelSizing, ProfileEvent, ProfileRequest};

mod usage;
pub use usage::{DeviceUsage, Usage, UsageRow};

/// The port Weir listens on unless told otherwise: W-E-I-R on a telephone.
pub const DEFAULT_PORT: u16 = 9347;

/// The header that names the request in logs and errors; echoed when the client sends one, made up otherwise.
pub const REQUEST_ID_HEADER: &str = "weir-request-id";

/// The header of an error answer that repeats its code, for clients that do not read the body.
pub const ERROR_CODE_HEADER: &str = "weir-error";

/// The header that may carry a manifest as JSON on `PUT /v1/functions/{name}`, beside the query and a multipart field.
pub const MANIFEST_HEADER: &str = "weir-manifest";

/// The header with which a request asks for its result to be posted to an address, beside `prefer: respond-async`.
pub const CALLBACK_HEADER: &str = "weir-callback";

/// In a callback: which asynchronous invocation has ended.
pub const CALLBACK_ID_HEADER: &str = "weir-invocation";

/// In a callback: how it has ended, `done` or `dead`.
pub const CALLBACK_STATUS_HEADER: &str = "weir-invocation-status";

/// In a callback of one that is done: the status of the answer, whose body is the callback's own.
pub const CALLBACK_RESPONSE_HEADER: &str = "weir-response-status";

/// Every error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong and what to do about it.
    pub error: String,
    /// The same, for programs.
    pub code: ErrorCode,
    /// The request it answers, as in the logs.
    pub request_id: String,
    /// What it would have taken, where that is why: the code is `slo-unattainable`.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<SloRefusal>,
}

/// Part of an [`ErrorBody`]: what a call that was turned away would have taken, and what it was to keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SloRefusal {
    /// From its arrival to its end, had it been let in.
    pub estimated_ns: u64,
    /// What that was to be; none where only the cost was to be kept to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ns: Option<u64>,
    /// What its device time would have cost, in the unit of the node's prices.
    pub estimated_cost: Cost,
    /// What that was to be at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
}

/// One version of a function: the answer of `GET /v1/functions/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionVersion {
    /// Who owns it.
    pub tenant: TenantId,
    /// What it is called.
    pub name: Name,
    /// Which version this is.
    pub version: Version,
    /// Whether the name points at it.
    pub active: bool,
    /// What it is.
    pub kind: FunctionKind,
    /// The component's SHA-256.
    pub digest: ContentHash,
    /// The component's size.
    pub component_bytes: u64,
    /// When it was deployed.
    pub deployed_at_ms: u64,
    /// What it is granted.
    pub manifest: FunctionManifest,
}

/// A function: the answer of `GET /v1/functions/{name}`; the list of them is that of `GET /v1/functions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// The version that the name points at.
    #[serde(flatten)]
    pub active: FunctionVersion,
    /// Every version there is, oldest first.
    pub versions: Vec<Version>,
}

/// The answer of `PUT /v1/functions/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployed {
    /// What was deployed. A component and manifest equal to the active version's make no new version.
    #[serde(flatten)]
    pub function: FunctionVersion,
    /// Whether a version was made.
    pub created: bool,
    /// Where to call it, relative to the node.
    pub path: String,
    /// How long compiling took; 0 where the artefact was there already.
    pub compile_time_ms: u64,
    /// Interfaces that the component imports and that are linked as denying: calling them fails with `not-granted`.
    pub denied_imports: Vec<String>,
    /// Advice: things that will work, but not as well as they could.
    pub warnings: Vec<String>,
}

/// The body of `POST /v1/functions/{name}/rollback`. Without a version, the one before the active one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollback {
    /// The version to go back (or forward) to.
    pub version: Option<Version>,
}

/// One version of a model: the answer of `PUT` and `GET /v1/models/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelVersion {
    /// Who owns it.
    pub tenant: TenantId,
    /// What it is called.
    pub name: Name,
    /// Which version this is.
    pub version: Version,
    /// The SHA-256 of the file as uploaded.
    pub digest: ContentHash,
    /// The size of the file as uploaded.
    pub model_bytes: u64,
    /// The weights after optimisation; equal weights of different models are stored once.
    pub weight_bytes: u64,
    /// When it was pushed.
    pub pushed_at_ms: u64,
    /// What it takes and gives.
    #[serde(flatten)]
    pub signature: Signature,
    /// How it is served.
    pub manifest: ModelManifest,
    /// Whether it is in a device's memory now.
    pub resident: bool,
    /// What it has been measured to cost, on the first of the node's devices that has run it.
    pub profile: Profile,
    /// The same on each of the node's devices.
    #[serde(default)]
    pub devices: Vec<ModelOnDevice>,
}

/// What is known of a model on one device, in [`ModelVersion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelOnDevice {
    /// The device's name.
    pub device: String,
    /// What kind it is; profiles are kept by that.
    pub kind: String,
    /// Why the model does not run there; none if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Whether it is in the device's memory now.
    pub resident: bool,
    /// How it is run there, while it is in its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<ModelRuns>,
    /// What it has been measured to cost on devices of the kind.
    pub profile: Profile,
}

/// How a model is run on one device, in [`ModelOnDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRuns {
    /// Threads of each run.
    pub threads: u32,
    /// Runs at once, at most.
    pub at_once_max: u64,
    /// Sessions that have been made for them, those that are kept for a while included.
    pub sessions: u64,
}

/// A model: the answer of `GET /v1/models/{name}`; the list of them is that of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The newest version: the one a plain name opens.
    #[serde(flatten)]
    pub newest: ModelVersion,
    /// Every version there is, oldest first.
    pub versions: Vec<Version>,
}

/// One version of a workflow: the answer of `GET /v1/workflows/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowVersion {
    /// Who owns it.
    pub tenant: TenantId,
    /// What it is called.
    pub name: Name,
    /// Which version this is.
    pub version: Version,
    /// Whether the name points at it.
    pub active: bool,
    /// When it was deployed.
    pub deployed_at_ms: u64,
    /// Its author's words.
    pub description: String,
    /// How long a call may take, in milliseconds; see [`FunctionManifest::slo_ms`](crate::FunctionManifest::slo_ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// What the device time of a call may cost, in the unit of the node's prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// What it takes and gives.
    #[serde(flatten)]
    pub signature: Signature,
    /// Its steps, each after those it reads from.
    pub steps: Vec<WorkflowStep>,
    /// Whether everything that it runs is there.
    pub ready: bool,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The document as it was deployed.
    pub document: String,
}

/// One step in [`WorkflowVersion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowStep {
    /// What it is called.
    pub name: String,
    /// What it does: `run NAME:VERSION`, `combine HOW` or `split PARTS`.
    pub action: String,
    /// The steps and inputs that it reads from.
    pub reads: Vec<String>,
    /// When it is taken; none for always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Of a step with `hedge`: what has come of that on the node that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<StepHedge>,
}

/// The second copies of one step in [`WorkflowStep`], since the node was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHedge {
    /// After how long a run gets a second copy; none while too few runs were measured.
    pub after_ns: Option<u64>,
    /// Runs of the step.
    pub runs: u64,
    /// Second copies that were started.
    pub started: u64,
    /// Those that answered first.
    pub won: u64,
}

/// A workflow: the answer of `GET /v1/workflows/{name}`; the list of them is that of `GET /v1/workflows`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// The version that the name points at.
    #[serde(flatten)]
    pub active: WorkflowVersion,
    /// Every version there is, oldest first.
    pub versions: Vec<Version>,
}

/// The answer of `PUT /v1/workflows/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowDeployed {
    /// What was deployed; or would be, for a dry run. A document equal to the active version's, whose steps run the same, makes no new version.
    #[serde(flatten)]
    pub workflow: WorkflowVersion,
    /// Whether a version was made.
    pub created: bool,
    /// Where to ask for an inference, relative to the node.
    pub path: String,
}

/// One line that a function, or the node about a function, wrote: a line of the answer of `GET /v1/functions/{name}/logs`, which is
/// newline-delimited JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When.
    pub at_ms: u64,
    /// Which version wrote it.
    pub version: Version,
    /// During which request.
    pub request_id: String,
    /// `stdout`, `stderr`, or `weir` for the node's own word on an invocation.
    pub stream: String,
    /// What it says, without the newline.
    pub text: String,
}

/// The answer of `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of Weir.
    pub version: String,
    /// `ready`, or why not.
    pub state: String,
    /// How long the process has run.
    pub uptime_ms: u64,
    /// Functions deployed, over all of the tenant's names.
    pub functions: u64,
    /// Models pushed.
    pub models: u64,
    /// Invocations running now.
    pub running: u64,
    /// Invocations waiting now.
    pub queued: u64,
    /// Asynchronous invocations that have not ended, on all nodes of the cluster.
    #[serde(default)]
    pub async_queued: u64,
    /// The tenant's functions and models that cannot be read, and why. Deployed or pushed again, they are repaired.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// The node's devices.
    pub devices: Vec<DeviceStatus>,
    /// The cluster that the node is one of; none if it is by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// The cluster in [`Status`], as the node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// What the cluster calls this node.
    pub node: NodeId,
    /// Where the others reach it.
    pub address: String,
    /// The node whose scheduler decides where calls run; none while there is no such node.
    pub dispatcher: Option<NodeId>,
    /// Whether this node asks another where calls run. One that neither does nor is the dispatcher runs them all itself.
    pub asks_dispatcher: bool,
    /// The nodes that ask this one.
    pub linked: Vec<NodeId>,
    /// Every node there is.
    pub nodes: Vec<MemberStatus>,
}

/// One node in [`ClusterStatus`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// What the cluster calls it.
    pub node: NodeId,
    /// Where it is reached.
    pub address: String,
    /// Its version of Weir.
    #[serde(default)]
    pub version: String,
    /// Invocations running there, as it reported a moment ago.
    pub running: u64,
    /// Invocations waiting there.
    pub queued: u64,
    /// Its devices; none until it has reported.
    pub devices: Vec<DeviceStatus>,
}

/// One device in [`Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// `cpu`, `cuda:0`, ...
    pub name: String,
    /// What profiles and prices are kept by: `cpu`, or the name of a GPU.
    #[serde(default)]
    pub kind: String,
    /// The backend that runs models on it.
    pub backend: String,
    /// Runs that may go on at once.
    pub slots: u32,
    /// Runs that wait for a slot.
    #[serde(default)]
    pub runs_waiting: u64,
    /// Memory that models may take.
    pub capacity_bytes: u64,
    /// Memory that models take.
    pub used_bytes: u64,
    /// The models in its memory, as `name:version`.
    pub resident: Vec<String>,
    /// Why it is lost, while it is: nothing is placed there until it is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}
