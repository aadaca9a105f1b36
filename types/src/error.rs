//! Error codes of the API. Codes are stable; their texts may improve.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal;)*) => {
        /// Error code for programs, sent as `code` in every error response. `gateway/error.rs` in
        /// `weir-host` maps codes to HTTP statuses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $code,)*
        }

        impl ErrorCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The code as sent.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text,)* }
            }
        }
    };
}

codes! {
    // Invalid requests and uploads.
    /// A function, model or tenant name breaks the rules.
    InvalidName = "invalid-name";
    /// A query, header, path or JSON body cannot be read.
    InvalidRequest = "invalid-request";
    /// The manifest cannot be read, or has unknown keys.
    InvalidManifest = "invalid-manifest";
    /// The manifest asks for more than the node allows, or the component for more than the manifest
    /// or the node allows.
    LimitOverCap = "limit-over-cap";
    /// The bytes are not a WebAssembly component.
    InvalidComponent = "invalid-component";
    /// The component imports an interface that Weir does not have.
    UnknownImport = "unknown-import";
    /// The component exports nothing that can be invoked.
    NoEntryPoint = "no-entry-point";
    /// Compiling the component took too much memory or time.
    CompileLimit = "compile-limit";
    /// The bytes are not a model that the node can run.
    InvalidModel = "invalid-model";
    /// The model keeps weights outside its file.
    ExternalData = "external-data";
    /// The model uses an operator that the node does not allow.
    OperatorNotAllowed = "operator-not-allowed";
    /// Checking the model took too much memory or time.
    ModelLimit = "model-limit";
    /// The workflow cannot be parsed, refers to missing functions or models, or is inconsistent.
    InvalidWorkflow = "invalid-workflow";
    /// The kernel graph cannot be parsed, is inconsistent, or does not compile.
    InvalidKernelGraph = "invalid-kernel-graph";
    /// The trigger has an invalid schedule, target or request.
    InvalidTrigger = "invalid-trigger";
    /// The version exists already with other contents.
    VersionConflict = "version-conflict";
    /// The pushed model has other inputs or outputs than the newest version.
    SignatureChanged = "signature-changed";
    /// The model has no profile, or no measured configuration meets the request.
    NoConfiguration = "no-configuration";
    /// The operation conflicts with the current state or with a concurrent change.
    Conflict = "conflict";

    // Authentication, and resources that do not exist.
    /// The token is missing or unknown.
    Unauthorized = "unauthorized";
    /// The route does not exist.
    RouteNotFound = "route-not-found";
    /// The route does not support the method.
    MethodNotAllowed = "method-not-allowed";
    /// The protocol defines the operation, but this server does not implement it.
    NotSupported = "not-supported";
    /// The function does not exist.
    FunctionNotFound = "function-not-found";
    /// The model does not exist.
    ModelNotFound = "model-not-found";
    /// The workflow does not exist.
    WorkflowNotFound = "workflow-not-found";
    /// The function, model or workflow has no such version.
    VersionNotFound = "version-not-found";
    /// The function has no canary.
    CanaryNotFound = "canary-not-found";
    /// The function or model has no shadow.
    ShadowNotFound = "shadow-not-found";
    /// The asynchronous invocation does not exist.
    InvocationNotFound = "invocation-not-found";
    /// The named object does not exist or has expired.
    ObjectNotFound = "object-not-found";
    /// The tenant has no API key of this name.
    KeyNotFound = "key-not-found";
    /// The tenant has no secret of this name.
    SecretNotFound = "secret-not-found";
    /// The tenant has no trigger of this name.
    TriggerNotFound = "trigger-not-found";
    /// An intermediate result that a workflow step left on a node no longer exists: the node was
    /// lost, or the result expired. The client should retry.
    IntermediateLost = "intermediate-lost";
    /// The record of the asynchronous invocation has expired.
    InvocationExpired = "invocation-expired";
    /// The asynchronous invocation has no result yet.
    NotEnded = "not-ended";
    /// The idempotency key was used for a different request.
    IdempotencyMismatch = "idempotency-mismatch";
    /// The function's manifest does not grant the resource it tried to use.
    NotGranted = "not-granted";

    /// The API key lacks the scope that the request needs, or is limited to other functions.
    Forbidden = "forbidden";
    /// A node without tokens received a request for a host name that it does not serve.
    ForeignHost = "foreign-host";
    /// A web page of another origin sent the request to a node without tokens.
    CrossSite = "cross-site";

    // Limits.
    /// The body is larger than the node or the function takes.
    BodyTooLarge = "body-too-large";
    /// The target and headers of the request are larger than the node takes.
    HeadTooLarge = "head-too-large";
    /// The body ended early, or differs from its headers.
    BodyMismatch = "body-mismatch";
    /// The body stopped arriving, or arrived too slowly.
    BodyStalled = "body-stalled";
    /// Too many invocations wait for this function, or on this node.
    QueueFull = "queue-full";
    /// The tenant sends more requests than its quotas allow, or has too many in progress.
    RateLimited = "rate-limited";
    /// Too many asynchronous invocations are pending, or they take too much space.
    AsyncQueueFull = "async-queue-full";
    /// Too many bytes of answers wait for the clients of this connection or tenant.
    AnswersFull = "answers-full";
    /// The tenant has reached its quota of named objects or of their bytes.
    ObjectsFull = "objects-full";
    /// The tenant has reached a quota of things that the node stores.
    QuotaExceeded = "quota-exceeded";
    /// The node's disk has too little free space to store anything.
    DiskFull = "disk-full";
    /// The call would miss its service level objective. Rejecting it protects the objectives of the
    /// calls already admitted.
    SloUnattainable = "slo-unattainable";
    /// No device can hold the models that the function needs.
    NoCapacity = "no-capacity";
    /// The cluster has no device that could run the call, and none joined in time.
    NoDevice = "no-device";
    /// The guest asked for more linear memory than its limit.
    MemoryLimit = "memory-limit";
    /// The guest asked for more table elements than its limit.
    TableLimit = "table-limit";
    /// The guest holds too many handles.
    HandleLimit = "handle-limit";
    /// One host call carried too many bytes.
    HostCallLimit = "host-call-limit";
    /// The guest's response is larger than its limit.
    ResponseTooLarge = "response-too-large";
    /// The guest exceeded its limit of processor time.
    CpuTimeLimit = "cpu-time-limit";
    /// The invocation exceeded its deadline.
    DeadlineExceeded = "deadline-exceeded";

    // Failures of the guest and of models.
    /// The guest trapped: a panic, an abort, an unhandled exception.
    GuestTrap = "guest-trap";
    /// The guest's call stack overflowed.
    StackOverflow = "stack-overflow";
    /// The guest exited or returned without a response.
    NoResponse = "no-response";
    /// The guest returned an error.
    GuestError = "guest-error";

    /// A model run failed.
    ModelError = "model-error";

    // Failures of the node, and cancellation.
    /// The node is starting, draining or too busy; try again.
    Unavailable = "unavailable";
    /// The node that ran the invocation was lost, and the invocation cannot be retried.
    NodeLost = "node-lost";
    /// The process that ran the model has ended, perhaps because of the model.
    WorkerLost = "worker-lost";
    /// The model is quarantined, because it has ended its worker process repeatedly.
    ModelQuarantined = "model-quarantined";
    /// The stored component of the function differs from the deployed component.
    ComponentDamaged = "component-damaged";
    /// The function gets a secret that was removed, or that the node cannot decrypt.
    SecretUnavailable = "secret-unavailable";
    /// The client closed the connection.
    Cancelled = "cancelled";
    /// Internal error of the node.
    Internal = "internal";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
