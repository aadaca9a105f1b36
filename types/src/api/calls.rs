//! Recent calls, with the timelines of their phases and steps.

use crate::{Name, Version};
use serde::{Deserialize, Serialize};

/// Kind of the target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// A function.
    Function,
    /// A model or a kernel graph.
    Model,
    /// A workflow.
    Workflow,
}

/// A call that has ended on the queried node. Part of [`RecentCallPage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentCall {
    /// ID of the request.
    pub request_id: String,
    /// Kind of the target.
    pub kind: CallKind,
    /// Name of the function, model or workflow.
    pub name: Name,
    /// Version that was called.
    pub version: Version,
    /// Start of the call.
    pub started_at_ms: u64,
    /// Time from the start of the call to the end of its response.
    pub duration_ns: u64,
    /// HTTP status of the response; `None` for inferences over gRPC and for calls that ended without
    /// a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Error code of a call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl RecentCall {
    /// Whether Weir reported an error, or the response has a status of a server error.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.error.is_some() || self.status.is_some_and(|status| status >= 500)
    }
}

/// Recent calls, newest first. Response of `GET /v1/calls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentCallPage {
    /// The calls.
    pub calls: Vec<RecentCall>,
}

/// A recent call with its timeline. Response of `GET /v1/calls/{request_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimeline {
    /// The call.
    #[serde(flatten)]
    pub call: RecentCall,
    /// Phases, workflow steps and sent requests, in the order of their starts.
    pub spans: Vec<CallSpan>,
    /// Number of further spans, which were not kept.
    pub spans_dropped: u64,
}

/// A part of a call. Part of [`CallTimeline`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSpan {
    /// Name of the phase, `step NAME` for a step of a workflow, or the name of a sent request.
    pub name: String,
    /// Index of the enclosing span; `None` for a part of the call itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Time from the start of the call to the start of the span.
    pub start_ns: u64,
    /// Duration of the span.
    pub duration_ns: u64,
    /// Model, function or workflow that the span runs, as `name:version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Type of the error with which the work failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
