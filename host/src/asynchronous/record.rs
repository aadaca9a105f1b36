//! What the datastore holds about asynchronous invocations: values below 1 KiB, of which every write changes two in one transaction.
//!
//! | key | value | for whom |
//! |---|---|---|
//! | `invocations/records/{tenant}/{id}` | [`Record`] | clients, and whoever runs it |
//! | `invocations/index/entries/{id}` | [`Entry`] | every node's [`Index`](super::index::Index) |
//! | `invocations/index/claims/{id}` | the [`Owner`], under its lease | the same |
//! | `invocations/keys/{tenant}/{hash}` | [`KeyUse`] | requests that come again |

use super::AsyncError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_datastore::{Key, Prefix};
use weir_types::api::{
    CallbackState, CallbackStatus, Invocation, InvocationError, InvocationKind, InvocationResponse,
    InvocationStatus,
};
use weir_types::{AsyncId, ContentHash, ErrorCode, Name, TenantId, Version};

/// What an error's text may take in a record, as JSON.
const ERROR_BYTES_MAX: usize = 160;
/// The same for the request's id; the request itself has all of it.
const REQUEST_ID_BYTES_MAX: usize = 80;
/// The same for the error of a callback.
const CALLBACK_ERROR_BYTES_MAX: usize = 80;

/// An asynchronous invocation. Short names keep it small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(super) kind: InvocationKind,
    pub(super) name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<Version>,
    pub(super) status: InvocationStatus,
    /// Counted before each attempt, so that one which takes the node down is counted, too.
    pub(super) attempts: u32,
    #[serde(rename = "started", default, skip_serializing_if = "Option::is_none")]
    pub(super) started_at_ms: Option<u64>,
    /// When it is worked on next.
    #[serde(rename = "due")]
    pub(super) due_at_ms: u64,
    #[serde(rename = "ended", default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at_ms: Option<u64>,
    pub(super) request_id: String,
    pub(super) request: Part,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<InvocationError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) callback: Option<CallbackState>,
    /// The idempotency key that goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<ContentHash>,
}

/// A request or an answer, kept as a blob of its head and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) digest: ContentHash,
    /// Of the body alone.
    pub(super) bytes: u64,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) status: u16,
    #[serde(flatten)]
    pub(super) part: Part,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    Run,
    CallBack,
    /// It has ended, and is kept for a time.
    Forget,
}

/// What every node knows of an invocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) tenant: TenantId,
    pub(super) step: Step,
    /// When that is due; of one that has ended, since when.
    pub(super) at_ms: u64,
    /// What it takes on disk.
    pub(super) bytes: u64,
    pub(super) blobs: Vec<ContentHash>,
}

/// A process that works on invocations. Every start of a node is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Owner(pub(super) u64);

/// What an idempotency key was used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyUse {
    pub(super) id: AsyncId,
    /// The hash of the request.
    pub(super) request: ContentHash,
}

impl Record {
    /// What is to be done next.
    pub(super) fn step(&self) -> Step {
        match &self.callback {
            _ if !self.status.is_end() => Step::Run,
            Some(callback) if callback.status == CallbackStatus::Pending => Step::CallBack,
            _ => Step::Forget,
        }
    }

    pub(super) fn entry(&self, tenant: &TenantId) -> Entry {
        let step = self.step();
        let response = self.response.as_ref().map(|response| response.part);
        let parts = [Some(self.request), response].into_iter().flatten();
        Entry {
            tenant: tenant.clone(),
            step,
            at_ms: match step {
                Step::Forget => self.ended_at_ms.unwrap_or(self.due_at_ms),
                Step::Run | Step::CallBack => self.due_at_ms,
            },
            bytes: parts.clone().map(|part| part.bytes).sum(),
            blobs: parts.map(|part| part.digest).collect(),
        }
    }

    /// It has ended at `now_ms`.
    pub(super) fn end(&mut self, status: InvocationStatus, now_ms: u64) {
        self.status = status;
        self.ended_at_ms = Some(now_ms);
        // The callback, if there is one, is due at once.
        self.due_at_ms = now_ms;
    }

    /// Why it, or its last attempt, failed.
    pub(super) fn fail(&mut self, code: ErrorCode, text: &str) {
        self.error = Some(InvocationError { code, text: clip(text, ERROR_BYTES_MAX) });
    }

    /// Why its callback failed last.
    pub(super) fn fail_callback(&mut self, text: &str) {
        if let Some(callback) = &mut self.callback {
            callback.error = Some(clip(text, CALLBACK_ERROR_BYTES_MAX));
        }
    }

    /// As the API shows it.
    pub(super) fn describe(&self, tenant: &TenantId, id: AsyncId, retention_ms: u64) -> Invocation {
        Invocation {
            id,
            tenant: tenant.clone(),
            kind: self.kind,
            name: self.name.clone(),
            version: self.version,
            status: self.status,
            attempts: self.attempts,
            request_id: self.request_id.clone(),
            request_bytes: self.request.bytes,
            accepted_at_ms: id.accepted_at_ms(),
            started_at_ms: self.started_at_ms,
            next_attempt_at_ms: (self.status == InvocationStatus::Queued && self.attempts > 0)
                .then_some(self.due_at_ms),
            ended_at_ms: self.ended_at_ms,
            expires_at_ms: self.ended_at_ms.map(|ended| ended.saturating_add(retention_ms)),
            error: self.error.clone(),
            response: self
                .response
                .map(|Response { status, part }| InvocationResponse { status, bytes: part.bytes }),
            callback: self.callback.clone(),
        }
    }
}

/// A request's id as it is kept.
pub(super) fn clip_request_id(id: &str) -> String {
    clip(id, REQUEST_ID_BYTES_MAX)
}

/// As much of `text` as takes no more than `bytes_max` in JSON, on one line.
fn clip(text: &str, bytes_max: usize) -> String {
    let mut bytes = 0;
    let chars = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take_while(|c| {
        bytes += c.len_utf8() + usize::from(matches!(c, '"' | '\\'));
        bytes <= bytes_max
    });
    chars.collect()
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain structs of strings and numbers: writing them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(entry: &weir_datastore::Entry) -> Result<T, AsyncError> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| AsyncError::Damaged { key: entry.key.clone(), why: error.to_string() })
}

/// The records of a tenant.
pub(super) fn records(tenant: &TenantId) -> Result<Prefix, AsyncError> {
    Ok(Prefix::new(&format!("invocations/records/{tenant}/"))?)
}

pub(super) fn record_key(tenant: &TenantId, id: AsyncId) -> Result<Key, AsyncError> {
    Ok(Key::new(&format!("invocations/records/{tenant}/{id}"))?)
}

/// What nodes follow: entries and claims.
pub(super) fn index() -> Result<Prefix, AsyncError> {
    Ok(Prefix::new("invocations/index/")?)
}

pub(super) fn entry_key(id: AsyncId) -> Result<Key, AsyncError> {
    Ok(Key::new(&format!("invocations/index/entries/{id}"))?)
}

pub(super) fn claim_key(id: AsyncId) -> Result<Key, AsyncError> {
    Ok(Key::new(&format!("invocations/index/claims/{id}"))?)
}

pub(super) fn key_use_key(tenant: &TenantId, key: ContentHash) -> Result<Key, AsyncError> {
    Ok(Key::new(&format!("invocations/keys/{tenant}/{key}"))?)
}

/// What a key below [`index`] is about.
pub(super) enum Place {
    Entry(AsyncId),
    Claim(AsyncId),
}

pub(super) fn place(key: &Key) -> Option<Place> {
    let rest = key.as_str().strip_prefix("invocations/index/")?;
    match rest.split_once('/')? {
        ("entries", id) => id.parse().ok().map(Place::Entry),
        ("claims", id) => id.parse().ok().map(Place::Claim),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promise: a record under 1 KiB, whatever is in it.
    #[test]
    fn the_largest_record_takes_less_than_1_kib() {
        let digest = ContentHash::of(b"x");
        let part = Part { digest, bytes: u64::MAX };
        let mut record = Record {
            kind: InvocationKind::Inference,
            name: Name::new(&"n".repeat(63)).unwrap(),
            version: Some(Version(u32::MAX)),
            status: InvocationStatus::Cancelled,
            attempts: u32::MAX,
            started_at_ms: Some(u64::MAX),
            due_at_ms: u64::MAX,
            ended_at_ms: Some(u64::MAX),
            request_id: clip_request_id(&"\"".repeat(128)),
            request: part,
            error: None,
            response: Some(Response { status: 599, part }),
            callback: Some(CallbackState {
                status: CallbackStatus::Delivered,
                attempts: u32::MAX,
                error: None,
            }),
            key: Some(digest),
        };
        for text in
            ["\"\\".repeat(5_000), "\u{1}\n".repeat(5_000), "\u{1f600}".repeat(5_000), "e".repeat(9_000)]
        {
            record.fail(ErrorCode::IdempotencyMismatch, &text);
            record.fail_callback(&text);
            let encoded = encode(&record);
            assert!(encoded.len() < 1_024, "{} bytes", encoded.len());
            assert_eq!(serde_json::from_slice::<Record>(&encoded).unwrap(), record);
        }
    }

    #[test]
    fn what_is_due_follows_from_the_status_and_the_callback() {
        let digest = ContentHash::of(b"x");
        let mut record = Record {
            kind: InvocationKind::Function,
            name: Name::new("f").unwrap(),
            version: None,
            status: InvocationStatus::Queued,
            attempts: 0,
            started_at_ms: None,
            due_at_ms: 5,
            ended_at_ms: None,
            request_id: String::new(),
            request: Part { digest, bytes: 3 },
            error: None,
            response: None,
            callback: Some(CallbackState { status: CallbackStatus::Pending, attempts: 0, error: None }),
            key: None,
        };
        assert_eq!(record.step(), Step::Run);
        record.end(InvocationStatus::Done, 9);
        assert_eq!(record.step(), Step::CallBack);
        if let Some(callback) = &mut record.callback {
            callback.status = CallbackStatus::Failed;
        }
        record.due_at_ms = 20;
        let entry = record.entry(&TenantId::default());
        assert_eq!((entry.step, entry.at_ms, entry.bytes), (Step::Forget, 9, 3));
    }
}
