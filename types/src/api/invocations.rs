//! Asynchronous invocations, as `/v1/invocations` shows them.

use crate::{AsyncId, ErrorCode, Name, TenantId, Version};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An asynchronous invocation: the answer of `GET /v1/invocations/{id}`, and of the request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invocation {
    /// What it is called.
    pub id: AsyncId,
    /// Who pays for it.
    pub tenant: TenantId,
    /// What was asked for.
    pub kind: InvocationKind,
    /// The function or model. The version that a name stands for is found when it runs.
    pub name: Name,
    /// The version, where the request named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// How far it is.
    pub status: InvocationStatus,
    /// How often it was begun.
    pub attempts: u32,
    /// The request it came with, as in the logs of its function.
    pub request_id: String,
    /// The size of the request's body.
    pub request_bytes: u64,
    /// When it was accepted.
    pub accepted_at_ms: u64,
    /// When it was begun last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
    /// When it is begun again at the earliest, where it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at_ms: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// When it is forgotten, at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Why it is dead, or why its last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<InvocationError>,
    /// The answer, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<InvocationResponse>,
    /// What has become of the callback, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackState>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InvocationKind {
    /// A function, by its path below `/fn/`.
    Function,
    /// A model or tensor function, by the Open Inference Protocol.
    Inference,
}

/// How far an asynchronous invocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InvocationStatus {
    /// It waits for its first or next attempt.
    Queued,
    /// It runs, or ran on a node that was lost and will be missed soon.
    Running,
    /// It was answered, whatever the answer's status.
    Done,
    /// It was given up.
    Dead,
    /// Somebody cancelled it.
    Cancelled,
}

impl InvocationStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// Whether nothing more comes of it by itself.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }

    /// As it is sent.
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

/// Why an asynchronous invocation or its callback failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationError {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub text: String,
}

/// The answer of an asynchronous invocation, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationResponse {
    /// Its status.
    pub status: u16,
    /// The size of its body.
    pub bytes: u64,
}

/// What has become of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackState {
    /// How far it is.
    pub status: CallbackStatus,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far a callback is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallbackStatus {
    /// It has not been taken yet.
    Pending,
    /// It was answered with a good status.
    Delivered,
    /// It was given up.
    Failed,
}

/// Some asynchronous invocations, newest first: the answer of `GET /v1/invocations`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationPage {
    /// The invocations.
    pub invocations: Vec<Invocation>,
    /// What to ask `?after=` for the rest; none where these were the last.
    pub next: Option<AsyncId>,
}
