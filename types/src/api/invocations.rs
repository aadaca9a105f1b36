//! Asynchronous invocations, as shown by `/v1/invocations`.

use crate::{AsyncId, ErrorCode, Name, TenantId, Version};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An asynchronous invocation. Response of `GET /v1/invocations/{id}` and of the accepted request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invocation {
    /// ID of the invocation.
    pub id: AsyncId,
    /// Tenant that is charged.
    pub tenant: TenantId,
    /// Kind of the target.
    pub kind: InvocationKind,
    /// Name of the function or model.
    pub name: Name,
    /// Version that it runs: the one that the request named, or else the one that was chosen when
    /// the request was accepted. Unknown for requests that earlier versions of Weir accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Progress.
    pub status: InvocationStatus,
    /// Number of attempts started.
    pub attempts: u32,
    /// ID of the original request, as in the function's logs.
    pub request_id: String,
    /// Size of the request body.
    pub request_bytes: u64,
    /// Time of acceptance.
    pub accepted_at_ms: u64,
    /// Start of the latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
    /// Earliest start of the next attempt, while the invocation waits for a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at_ms: Option<u64>,
    /// End of the invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Latest time at which the record is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Reason of the final failure or of the latest failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<InvocationError>,
    /// The response, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<InvocationResponse>,
    /// State of the callback, if the request asked for a callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackState>,
}

/// Target of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InvocationKind {
    /// A function, called by its path below `/fn/`.
    Function,
    /// A model or tensor function, called by the Open Inference Protocol.
    Inference,
}

/// Progress of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InvocationStatus {
    /// Waiting for the first or next attempt.
    Queued,
    /// Running, or was running on a lost node whose loss is not yet detected.
    Running,
    /// Finished with a response of any status.
    Done,
    /// Failed for good.
    Dead,
    /// Cancelled by a request.
    Cancelled,
}

impl InvocationStatus {
    /// All statuses.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// Whether the status is final.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }

    /// The status as written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for InvocationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Reason of a failed asynchronous invocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationError {
    /// Error code for programs.
    pub code: ErrorCode,
    /// Description for people.
    pub text: String,
}

/// Response of an asynchronous invocation, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationResponse {
    /// HTTP status.
    pub status: u16,
    /// Size of the body.
    pub bytes: u64,
}

/// State of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackState {
    /// Progress.
    pub status: CallbackStatus,
    /// Number of delivery attempts.
    pub attempts: u32,
    /// Reason of the latest failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Progress of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallbackStatus {
    /// Not delivered yet.
    Pending,
    /// Answered with a success status.
    Delivered,
    /// Given up after the last attempt.
    Failed,
}

/// One page of asynchronous invocations, newest first. Response of `GET /v1/invocations`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationPage {
    /// The invocations of this page.
    pub invocations: Vec<Invocation>,
    /// Cursor for `?after=`; `None` on the last page.
    pub next: Option<AsyncId>,
}
