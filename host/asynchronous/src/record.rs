//! Datastore layout of asynchronous invocations. Values are below 1 KiB; each write changes two of
//! them in one transaction.
//!
//! | key | value | reader |
//! |---|---|---|
//! | `invocations/records/{tenant}/{id}` | [`InvocationRecord`] | clients, and the node that runs it |
//! | `invocations/index/entries/{id}` | [`IndexEntry`] | every node's `InvocationIndex` |
//! | `invocations/index/claims/{id}` | the [`ClaimOwner`], under its lease | every node's index |
//! | `invocations/keys/{tenant}/{hash}` | [`KeyUse`] | repeated requests |

use super::AsyncError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_datastore::{Key, Prefix};
use weir_types::api::{
    CallbackState, CallbackStatus, Invocation, InvocationError, InvocationKind, InvocationResponse,
    InvocationStatus,
};
use weir_types::{AsyncId, ContentHash, ErrorCode, Name, TenantId, Version};

/// Size limit of an error's text in a record, as JSON.
const ERROR_BYTES_MAX: usize = 130;
/// Size limit of the request id in a record, as JSON. The request's blob has the whole id.
const REQUEST_ID_BYTES_MAX: usize = 80;
/// Size limit of a callback's error in a record, as JSON.
const CALLBACK_ERROR_BYTES_MAX: usize = 80;

/// Record of an asynchronous invocation. Short field names keep it small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InvocationRecord {
    pub(super) kind: InvocationKind,
    pub(super) name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<Version>,
    /// Version that was chosen at the acceptance of a request that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chosen: Option<Version>,
    pub(super) status: InvocationStatus,
    /// Incremented before each attempt, so that an attempt that crashes the node counts too.
    pub(super) attempts: u32,
    /// Attempts that ended with their node and are not in `attempts`.
    #[serde(rename = "lost", default, skip_serializing_if = "is_zero")]
    pub(super) attempts_lost: u8,
    #[serde(rename = "started", default, skip_serializing_if = "Option::is_none")]
    pub(super) started_at_ms: Option<u64>,
    /// Time at which the next step is due.
    #[serde(rename = "due")]
    pub(super) due_at_ms: u64,
    #[serde(rename = "ended", default, skip_serializing_if = "Option::is_none")]
    pub(super) ended_at_ms: Option<u64>,
    pub(super) request_id: String,
    pub(super) request: StoredMessage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<InvocationError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<StoredResponse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) callback: Option<CallbackState>,
    /// Hash of the idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<ContentHash>,
}

/// A request or response, stored as a blob of its head and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredMessage {
    pub(super) digest: ContentHash,
    /// Size of the body alone.
    pub(super) bytes: u64,
}

/// Stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredResponse {
    pub(super) status: u16,
    #[serde(flatten)]
    pub(super) part: StoredMessage,
}

/// Next step of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NextStep {
    Run,
    CallBack,
    /// Ended, and kept for the retention period.
    Forget,
}

/// Part of an invocation that every node knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexEntry {
    pub(super) tenant: TenantId,
    pub(super) step: NextStep,
    /// Due time of the step; for an ended invocation, its end.
    pub(super) at_ms: u64,
    /// Size on disk.
    pub(super) bytes: u64,
    pub(super) blobs: Vec<ContentHash>,
}

/// Process that works on invocations. Each start of a node gets a new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ClaimOwner(pub(super) u64);

/// Earlier use of an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyUse {
    pub(super) id: AsyncId,
    /// The hash of the request.
    pub(super) request: ContentHash,
}

impl InvocationRecord {
    /// Returns the next step.
    pub(super) fn step(&self) -> NextStep {
        match &self.callback {
            _ if !self.status.is_end() => NextStep::Run,
            Some(callback) if callback.status == CallbackStatus::Pending => NextStep::CallBack,
            _ => NextStep::Forget,
        }
    }

    pub(super) fn entry(&self, tenant: &TenantId) -> IndexEntry {
        let step = self.step();
        let response = self.response.as_ref().map(|response| response.part);
        let parts = [Some(self.request), response].into_iter().flatten();
        IndexEntry {
            tenant: tenant.clone(),
            step,
            at_ms: match step {
                NextStep::Forget => self.ended_at_ms.unwrap_or(self.due_at_ms),
                NextStep::Run | NextStep::CallBack => self.due_at_ms,
            },
            bytes: parts.clone().map(|part| part.bytes).fold(0, u64::saturating_add),
            blobs: parts.map(|part| part.digest).collect(),
        }
    }

    /// Marks the invocation as ended at `now_ms`.
    pub(super) fn end(&mut self, status: InvocationStatus, now_ms: u64) {
        self.status = status;
        self.ended_at_ms = Some(now_ms);
        // A pending callback is due at once.
        self.due_at_ms = now_ms;
    }

    /// Records the failure of the invocation, or of its last attempt.
    pub(super) fn fail(&mut self, code: ErrorCode, text: &str) {
        self.error = Some(InvocationError { code, text: clip(text, ERROR_BYTES_MAX) });
    }

    /// Records the last failure of the callback.
    pub(super) fn fail_callback(&mut self, text: &str) {
        if let Some(callback) = &mut self.callback {
            callback.error = Some(clip(text, CALLBACK_ERROR_BYTES_MAX));
        }
    }

    /// Returns the invocation in the API's format.
    pub(super) fn describe(&self, tenant: &TenantId, id: AsyncId, retention_ms: u64) -> Invocation {
        Invocation {
            id,
            tenant: tenant.clone(),
            kind: self.kind,
            name: self.name.clone(),
            version: self.version.or(self.chosen),
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
                .map(|StoredResponse { status, part }| InvocationResponse { status, bytes: part.bytes }),
            callback: self.callback.clone(),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u8) -> bool {
    *count == 0
}

/// Clips a request id to its stored length.
pub(super) fn clip_request_id(id: &str) -> String {
    clip(id, REQUEST_ID_BYTES_MAX)
}

/// Clips `text` to at most `bytes_max` bytes of JSON, on one line.
fn clip(text: &str, bytes_max: usize) -> String {
    let mut bytes = 0;
    let chars = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take_while(|c| {
        bytes += c.len_utf8() + usize::from(matches!(c, '"' | '\\'));
        bytes <= bytes_max
    });
    chars.collect()
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain structs of strings and numbers: serialization cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(entry: &weir_datastore::Entry) -> Result<T, AsyncError> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| AsyncError::Damaged { key: entry.key.clone(), why: error.to_string() })
}

/// Prefix of a tenant's records.
pub(super) fn records(tenant: &TenantId) -> Result<Prefix, AsyncError> {
    Ok(Prefix::new(&format!("invocations/records/{tenant}/"))?)
}

pub(super) fn record_key(tenant: &TenantId, id: AsyncId) -> Result<Key, AsyncError> {
    Ok(Key::new(&format!("invocations/records/{tenant}/{id}"))?)
}

/// Prefix that the nodes watch: entries and claims.
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

/// Kind of a key below [`index`].
pub(super) enum IndexKey {
    Entry(AsyncId),
    Claim(AsyncId),
}

pub(super) fn place(key: &Key) -> Option<IndexKey> {
    let rest = key.as_str().strip_prefix("invocations/index/")?;
    match rest.split_once('/')? {
        ("entries", id) => id.parse().ok().map(IndexKey::Entry),
        ("claims", id) => id.parse().ok().map(IndexKey::Claim),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record takes less than 1 KiB with any content.
    #[test]
    fn largest_record_is_below_1_kib() {
        let digest = ContentHash::from_content(b"x");
        let part = StoredMessage { digest, bytes: u64::MAX };
        let mut record = InvocationRecord {
            kind: InvocationKind::Inference,
            name: Name::new(&"n".repeat(63)).unwrap(),
            version: Some(Version(u32::MAX)),
            chosen: Some(Version(u32::MAX)),
            status: InvocationStatus::Cancelled,
            attempts: u32::MAX,
            attempts_lost: u8::MAX,
            started_at_ms: Some(u64::MAX),
            due_at_ms: u64::MAX,
            ended_at_ms: Some(u64::MAX),
            request_id: clip_request_id(&"\"".repeat(128)),
            request: part,
            error: None,
            response: Some(StoredResponse { status: 599, part }),
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
            assert_eq!(serde_json::from_slice::<InvocationRecord>(&encoded).unwrap(), record);
        }
    }

    #[test]
    fn next_step_follows_from_status_and_callback() {
        let digest = ContentHash::from_content(b"x");
        let mut record = InvocationRecord {
            kind: InvocationKind::Function,
            name: Name::new("f").unwrap(),
            version: None,
            chosen: None,
            status: InvocationStatus::Queued,
            attempts: 0,
            attempts_lost: 0,
            started_at_ms: None,
            due_at_ms: 5,
            ended_at_ms: None,
            request_id: String::new(),
            request: StoredMessage { digest, bytes: 3 },
            error: None,
            response: None,
            callback: Some(CallbackState { status: CallbackStatus::Pending, attempts: 0, error: None }),
            key: None,
        };
        assert_eq!(record.step(), NextStep::Run);
        record.end(InvocationStatus::Done, 9);
        assert_eq!(record.step(), NextStep::CallBack);
        if let Some(callback) = &mut record.callback {
            callback.status = CallbackStatus::Failed;
        }
        record.due_at_ms = 20;
        let entry = record.entry(&TenantId::default());
        assert_eq!((entry.step, entry.at_ms, entry.bytes), (NextStep::Forget, 9, 3));
    }
}
