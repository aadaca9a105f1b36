//! JSON bodies of the management API: the gateway writes them and the command line reads them.
//! Times are Unix milliseconds.

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

mod calls;
pub use calls::{CallKind, CallSpan, CallTimeline, RecentCall, RecentCallPage};

mod canary;
pub use canary::{Canary, CanaryReport, VersionCalls};

mod shadow;
pub use shadow::{ComparedCalls, Shadow, ShadowReport};

mod aliases;
pub use aliases::{AliasRequest, AliasTarget, Aliases};

mod events;
pub use events::{Event, EventKind, EventPage, EventResource, UnknownEventKind};

mod objects;
pub use objects::{DATATYPE_HEADER, Object, SHAPE_HEADER};

mod keys;
pub use keys::{ApiKey, CreatedApiKey, KEY_TTL_MS_DEFAULT, KEY_TTL_MS_MAX, NewApiKey, Scope};

mod secrets;
pub use secrets::{Secret, SecretRotation};

mod triggers;
pub use triggers::{
    AcceptedEvents, EventsSource, MISSED_AGE_MS_DEFAULT, MissedPolicy, NatsSource, OverlapPolicy,
    SCHEDULED_AT_HEADER, StreamStart, TRIGGER_HEADER, TickCounts, TickOutcome, Trigger, TriggerRequest,
    TriggerSource, TriggerSpec, TriggerTarget, TriggerTick,
};

mod status;
pub use status::{ClusterStatus, DeviceStatus, MemberStatus, MemoryMap, ModelBytes, Status};

mod capacity;
pub use capacity::{ModelCapacity, ProfileEvent, ProfileRequest};

mod tenants;
pub use tenants::{QuotaScope, QuotaUsage, TenantPage, TenantUsage};

mod usage;
pub use usage::{DeviceUsage, Usage, UsageRow};

/// Default port: W-E-I-R on a telephone keypad.
pub const DEFAULT_PORT: u16 = 9347;

/// Request ID header, repeated in logs and errors. The gateway echoes the client's value and
/// generates an ID for requests without one.
pub const REQUEST_ID_HEADER: &str = "weir-request-id";

/// Header of an error response that repeats the error code, for clients that do not read the body.
pub const ERROR_CODE_HEADER: &str = "weir-error";

/// Header of a function's response with the version that answered.
pub const VERSION_HEADER: &str = "weir-version";

/// Request header with a key whose calls all use the same version of a function while its calls are
/// split.
pub const VERSION_KEY_HEADER: &str = "weir-version-key";

/// Header that may carry the manifest as JSON on `PUT /v1/functions/{name}`. The query and a
/// multipart field are the alternatives.
pub const MANIFEST_HEADER: &str = "weir-manifest";

/// Request header with the callback URL of an asynchronous invocation. Used together with `prefer:
/// respond-async`.
pub const CALLBACK_HEADER: &str = "weir-callback";

/// Callback header: ID of the finished asynchronous invocation.
pub const CALLBACK_ID_HEADER: &str = "weir-invocation";

/// Callback header: final status of the invocation, `done` or `dead`.
pub const CALLBACK_STATUS_HEADER: &str = "weir-invocation-status";

/// Callback header of a `done` invocation: HTTP status of the response. The callback's body is the
/// response body.
pub const CALLBACK_RESPONSE_HEADER: &str = "weir-response-status";

/// Body of every error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Description of the error and of its remedy.
    pub error: String,
    /// Error code for programs.
    pub code: ErrorCode,
    /// ID of the failed request, as in the logs.
    pub request_id: String,
    /// Estimated time and cost of the call, present with the code `slo-unattainable`.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<SloRefusal>,
}

/// Estimate and limits of a call refused by admission control. Part of an [`ErrorBody`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SloRefusal {
    /// Estimated time from arrival to completion, had the call been admitted.
    pub estimated_ns: u64,
    /// Latency objective of the call; `None` if the call has only a cost objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ns: Option<u64>,
    /// Estimated cost of the call's device time, in the unit of the node's prices.
    pub estimated_cost: Cost,
    /// Cost objective of the call; `None` if the call has only a latency objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
}

/// One version of a function. Response of `GET /v1/functions/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionVersion {
    /// Owner of the function.
    pub tenant: TenantId,
    /// Name of the function.
    pub name: Name,
    /// Version number.
    pub version: Version,
    /// Whether the name resolves to this version.
    pub active: bool,
    /// Kind of the component.
    pub kind: FunctionKind,
    /// SHA-256 of the component.
    pub digest: ContentHash,
    /// Size of the component.
    pub component_bytes: u64,
    /// Time of deployment.
    pub deployed_at_ms: u64,
    /// Grants and limits, without the environment variables: their values may be secrets.
    pub manifest: FunctionManifest,
    /// Names of the environment variables.
    #[serde(default)]
    pub env_names: Vec<String>,
}

/// A function and its versions. Response of `GET /v1/functions/{name}`; `GET /v1/functions` returns
/// a list of functions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// The version that the name resolves to.
    #[serde(flatten)]
    pub active: FunctionVersion,
    /// All versions, oldest first.
    pub versions: Vec<Version>,
    /// The version that gets a share of the calls, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The version that gets copies of calls, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// The aliases that were set.
    #[serde(default, skip_serializing_if = "Aliases::is_empty")]
    pub aliases: Aliases,
}

/// Response of `PUT /v1/functions/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployed {
    /// The deployed version. A component and manifest equal to the active version's create no new
    /// version.
    #[serde(flatten)]
    pub function: FunctionVersion,
    /// The share of the calls that the version gets, if it is a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The percentage of the calls that are copied to the version, if it is a shadow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// Whether the version gets only the calls that name it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_preview: bool,
    /// Whether the request created a version.
    pub created: bool,
    /// Path of the function's endpoint on the node.
    pub path: String,
    /// Compile time; 0 if the compiled artefact already existed.
    pub compile_time_ms: u64,
    /// Imported interfaces that are linked as denied: calling them fails with `not-granted`.
    pub denied_imports: Vec<String>,
    /// Advice about settings that work but could work better.
    pub warnings: Vec<String>,
    /// Old versions that the deploy removed (`sandbox.versions_keep`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_versions: Vec<Version>,
    /// Nodes of the cluster that serve the version; empty for a node without a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visible_on: Vec<NodeId>,
    /// Live nodes of the cluster that have not answered that they serve the version
    /// (`cluster.visible_wait_ms`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_visible_on: Vec<NodeId>,
}

/// Body of a promotion or a rollback, such as `POST /v1/functions/{name}/rollback`. Without a
/// version, a promotion activates the canary, and a rollback the version before the active one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VersionRequest {
    /// The version to activate, older or newer.
    pub version: Option<Version>,
}

/// One version of a model. Response of `PUT` and `GET /v1/models/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelVersion {
    /// Owner of the model.
    pub tenant: TenantId,
    /// Name of the model.
    pub name: Name,
    /// Version number.
    pub version: Version,
    /// SHA-256 of the uploaded file.
    pub digest: ContentHash,
    /// Size of the uploaded file.
    pub model_bytes: u64,
    /// Size of the optimised weights. Equal weights of different models are stored once.
    pub weight_bytes: u64,
    /// Time of the upload.
    pub pushed_at_ms: u64,
    /// Inputs and outputs.
    #[serde(flatten)]
    pub signature: Signature,
    /// Serving settings.
    pub manifest: ModelManifest,
    /// Whether the model is in the memory of a device now.
    pub resident: bool,
    /// Measured cost on the first of the node's devices that has run the model.
    pub profile: Profile,
    /// State and measured cost on each of the node's devices.
    #[serde(default)]
    pub devices: Vec<ModelOnDevice>,
}

/// Response of `PUT /v1/models/{name}` and `PUT /v1/models/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelPushed {
    /// The pushed version.
    #[serde(flatten)]
    pub model: ModelVersion,
    /// The share of the version, if it is a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The percentage of the inferences that are copied to the version, if it is a shadow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// Whether the version gets only the runs that name it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_preview: bool,
    /// Old versions that the push removed (`models.versions_keep`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_versions: Vec<Version>,
    /// Nodes of the cluster that serve the version; empty for a node without a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visible_on: Vec<NodeId>,
    /// Live nodes of the cluster that have not answered that they serve the version
    /// (`cluster.visible_wait_ms`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_visible_on: Vec<NodeId>,
}

/// A model's state on one device. Part of [`ModelVersion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelOnDevice {
    /// Name of the device.
    pub device: String,
    /// Kind of the device; the key of profiles.
    pub kind: String,
    /// Why the model cannot run on the device; `None` if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Whether the model is in the device's memory now.
    pub resident: bool,
    /// Run settings on the device, while the model is resident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<ModelRuns>,
    /// Measured cost on devices of this kind.
    pub profile: Profile,
}

/// Run settings of a model on one device. Part of [`ModelOnDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRuns {
    /// Threads per run.
    pub threads: u32,
    /// Limit of concurrent runs.
    pub at_once_max: u64,
    /// Existing sessions, including idle sessions within their keep-alive time.
    pub sessions: u64,
}

/// A model and its versions. Response of `GET /v1/models/{name}`; `GET /v1/models` returns a list
/// of models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The version that the name alone resolves to: the newest, unless that is or was a canary.
    #[serde(flatten)]
    pub active: ModelVersion,
    /// All versions, oldest first.
    pub versions: Vec<Version>,
    /// The version that gets a share of the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The version that gets copies of inferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// The aliases that were set.
    #[serde(default, skip_serializing_if = "Aliases::is_empty")]
    pub aliases: Aliases,
}

/// One version of a workflow. Response of `GET /v1/workflows/{name}/versions/{version}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowVersion {
    /// Owner of the workflow.
    pub tenant: TenantId,
    /// Name of the workflow.
    pub name: Name,
    /// Version number.
    pub version: Version,
    /// Whether the name resolves to this version.
    pub active: bool,
    /// Time of deployment.
    pub deployed_at_ms: u64,
    /// The author's description.
    pub description: String,
    /// Latency objective of a call, in milliseconds; see
    /// [`FunctionManifest::slo_ms`](crate::FunctionManifest::slo_ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<u64>,
    /// Cost objective: device time of a call, in the unit of the node's prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// Inputs and outputs.
    #[serde(flatten)]
    pub signature: Signature,
    /// Steps in topological order.
    pub steps: Vec<WorkflowStep>,
    /// Whether all functions and models that the workflow runs exist.
    pub ready: bool,
    /// Why the workflow is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The document as deployed.
    pub document: String,
}

/// One step of a workflow. Part of [`WorkflowVersion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowStep {
    /// Name of the step.
    pub name: String,
    /// Action: `run NAME:VERSION`, `combine HOW` or `split PARTS`.
    pub action: String,
    /// Steps and inputs that the step reads.
    pub reads: Vec<String>,
    /// Condition under which the step runs; `None`: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Hedging statistics of a step with `hedge`, on the queried node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<StepHedge>,
}

/// Hedging statistics of one step since the node's start. Part of [`WorkflowStep`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepHedge {
    /// Delay after which a run gets a second copy; `None` until enough runs have been measured.
    pub after_ns: Option<u64>,
    /// Runs of the step.
    pub runs: u64,
    /// Second copies started.
    pub started: u64,
    /// Second copies that finished first.
    pub won: u64,
}

/// A workflow and its versions. Response of `GET /v1/workflows/{name}`; `GET /v1/workflows` returns
/// a list of workflows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// The version that the name resolves to.
    #[serde(flatten)]
    pub active: WorkflowVersion,
    /// All versions, oldest first.
    pub versions: Vec<Version>,
    /// The aliases that were set.
    #[serde(default, skip_serializing_if = "Aliases::is_empty")]
    pub aliases: Aliases,
}

/// Response of `PUT /v1/workflows/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowDeployed {
    /// The deployed version; for a dry run, the version that a deployment would create. A document
    /// equal to the active version's, whose steps resolve to the same versions, creates no new
    /// version.
    #[serde(flatten)]
    pub workflow: WorkflowVersion,
    /// Whether the request created a version.
    pub created: bool,
    /// Path of the workflow's inference endpoint on the node.
    pub path: String,
    /// Nodes of the cluster that serve the version; empty for a node without a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visible_on: Vec<NodeId>,
    /// Live nodes of the cluster that have not answered that they serve the version
    /// (`cluster.visible_wait_ms`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_visible_on: Vec<NodeId>,
}

/// One log line, written by a function or by the node about the function. `GET
/// /v1/functions/{name}/logs` returns such lines as newline-delimited JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Time of the line.
    pub at_ms: u64,
    /// Version of the function.
    pub version: Version,
    /// ID of the request.
    pub request_id: String,
    /// `stdout`, `stderr`, or `weir` for the node's messages about an invocation.
    pub stream: String,
    /// Text of the line, without the newline.
    pub text: String,
}
