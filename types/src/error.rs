//! The error codes that users see. A code is stable; its text may get better.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal;)*) => {
        /// What went wrong, for programs. Sent as `code` in every error answer; the HTTP status that goes with it is decided in
        /// `weir-host`'s `gateway/error.rs`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $code,)*
        }

        impl ErrorCode {
            /// Every code there is.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The code as it is sent.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text,)* }
            }
        }
    };
}

codes! {
    // What was asked for is wrong in itself.
    /// A function, model or tenant name breaks the rules.
    InvalidName = "invalid-name";
    /// A query, header, path or JSON body cannot be read.
    InvalidRequest = "invalid-request";
    /// The manifest cannot be read, or has unknown keys.
    InvalidManifest = "invalid-manifest";
    /// The manifest asks for more than the node allows, or the component for more than the manifest or the node does.
    LimitOverCap = "limit-over-cap";
    /// The bytes are not a WebAssembly component.
    InvalidComponent = "invalid-component";
    /// The component imports an interface that Weir does not have.
    UnknownImport = "unknown-import";
    /// The component exports nothing that can be invoked.
    NoEntryPoint = "no-entry-point";
    /// Compiling the component took too much memory or time.
    CompileLimit = "compile-limit";
    /// The bytes are not a model that can run here.
    InvalidModel = "invalid-model";
    /// The model keeps weights outside its file.
    ExternalData = "external-data";
    /// Checking the model took too much memory or time.
    ModelLimit = "model-limit";
    /// The workflow cannot be read, names what is not there, or does not fit together.
    InvalidWorkflow = "invalid-workflow";
    /// The kernel graph cannot be read, does not fit together, or does not compile.
    InvalidKernelGraph = "invalid-kernel-graph";
    /// That version exists already with other contents.
    VersionConflict = "version-conflict";
    /// The model was not profiled, or no configuration that was measured does what is asked for.
    NoConfiguration = "no-configuration";
    /// What is asked for cannot be done to what is there now, or another change got in between.
    Conflict = "conflict";

    // Who asks, and for what.
    /// No token, or one the node does not know.
    Unauthorized = "unauthorized";
    /// No such route.
    RouteNotFound = "route-not-found";
    /// The route exists, for other methods.
    MethodNotAllowed = "method-not-allowed";
    /// The protocol has it, and this server does not.
    NotSupported = "not-supported";
    /// No such function.
    FunctionNotFound = "function-not-found";
    /// No such model.
    ModelNotFound = "model-not-found";
    /// No such workflow.
    WorkflowNotFound = "workflow-not-found";
    /// The function, model or workflow has no such version.
    VersionNotFound = "version-not-found";
    /// No such asynchronous invocation.
    InvocationNotFound = "invocation-not-found";
    /// No such named object, or it has expired.
    ObjectNotFound = "object-not-found";
    /// What a step of a workflow has left for another on a node is not there any more: that node was lost, or it has expired. Ask again.
    IntermediateLost = "intermediate-lost";
    /// The asynchronous invocation ended so long ago that it is not kept any more.
    InvocationExpired = "invocation-expired";
    /// The asynchronous invocation has no result yet.
    NotEnded = "not-ended";
    /// Another request was sent with the same idempotency key.
    IdempotencyMismatch = "idempotency-mismatch";
    /// The function's manifest does not grant what it tried to use.
    NotGranted = "not-granted";

    // Limits.
    /// The body is larger than the node or the function takes.
    BodyTooLarge = "body-too-large";
    /// The body ended early, or is not what its headers say.
    BodyMismatch = "body-mismatch";
    /// Too many invocations wait for this function, or on this node.
    QueueFull = "queue-full";
    /// Too many asynchronous invocations wait to be run, or take too much room.
    AsyncQueueFull = "async-queue-full";
    /// The tenant has as many named objects, or bytes of them, as it may have.
    ObjectsFull = "objects-full";
    /// It would miss its service level objective, and was turned away so that those admitted before keep theirs.
    SloUnattainable = "slo-unattainable";
    /// No device can hold the models that the function needs.
    NoCapacity = "no-capacity";
    /// The guest asked for more linear memory than its limit.
    MemoryLimit = "memory-limit";
    /// The guest asked for more table elements than its limit.
    TableLimit = "table-limit";
    /// The guest holds too many handles.
    HandleLimit = "handle-limit";
    /// One host call carried too many bytes.
    HostCallLimit = "host-call-limit";
    /// The guest's answer is larger than its limit.
    ResponseTooLarge = "response-too-large";
    /// The guest used up its processor time.
    CpuTimeLimit = "cpu-time-limit";
    /// The invocation did not finish in time.
    DeadlineExceeded = "deadline-exceeded";

    // What the guest did.
    /// The guest trapped: a panic, an abort, an unhandled exception.
    GuestTrap = "guest-trap";
    /// The guest's call stack is full.
    StackOverflow = "stack-overflow";
    /// The guest exited or returned without answering.
    NoResponse = "no-response";
    /// The guest answered with an error of its own.
    GuestError = "guest-error";

    /// The model failed in its run.
    ModelError = "model-error";

    // What the node did.
    /// The node is starting, draining or too busy; try again.
    Unavailable = "unavailable";
    /// The node that ran the invocation was lost, and it could not be run again.
    NodeLost = "node-lost";
    /// The client went away.
    Cancelled = "cancelled";
    /// The node has a fault.
    Internal = "internal";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
