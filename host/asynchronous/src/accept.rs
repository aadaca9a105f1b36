//! Accepts an invocation: stores the request as a blob, then writes its record, and only then
//! answers the client.

use super::index::QueueLimit;
use super::message::{HEAD_BYTES_MAX, RequestHead, StoredHeaders, line};
use super::record::{InvocationRecord, KeyUse, StoredMessage};
use super::store::Seen;
use super::{AsyncError, Invocations, now_ms};
use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use weir_call::until;
use weir_datastore::{Compare, Key};
use weir_storage::blobs::{PutError, Staged};
use weir_types::api::{CallbackState, CallbackStatus, Invocation, InvocationKind, InvocationStatus};
use weir_types::{AsyncId, ContentHash, ErrorCode, Hasher, Name, TenantId, Version};

/// Request to accept as an asynchronous invocation.
pub struct InvocationRequest {
    /// Tenant that calls, and to which the invocation belongs.
    pub tenant: TenantId,
    /// Kind of target: function, model or workflow.
    pub kind: InvocationKind,
    /// Name of the target.
    pub name: Name,
    /// Version that the request names.
    pub version: Option<Version>,
    /// Version that the invocation runs: the named one, or the one chosen at the acceptance.
    pub chosen: Version,
    /// Request as received, without the headers that address only the node.
    pub request: http::Request<Body>,
    /// Request id, for the record and the function's log.
    pub request_id: Arc<str>,
    /// Idempotency key: equal requests with the same key are accepted once.
    pub key: Option<String>,
    /// Callback address for the result.
    pub callback: Option<String>,
    /// Size limit of the request body.
    pub body_bytes_max: u64,
    /// Deadline for the arrival of the body.
    pub deadline: Instant,
    /// Write that commits together with the invocation.
    pub linked: Option<LinkedWrite>,
}

/// Write that commits in one transaction with a new invocation: either both happen, or none. The
/// sender of a request hands it over as an extension of the request.
#[derive(Debug, Clone)]
pub struct LinkedWrite {
    /// ID of the invocation.
    pub id: AsyncId,
    /// Conditions. If one does not hold, the request is refused with the code `conflict`.
    pub compares: Vec<Compare>,
    /// Key to write.
    pub key: Key,
    /// New value of the key.
    pub value: Bytes,
}

/// A request whose body was received.
struct Received {
    staged: Staged,
    bytes: u64,
    /// Hash of method, target and body, for requests with an idempotency key.
    hash: Option<ContentHash>,
}

/// Queue reservation of a request that is being accepted; released on drop.
struct QueuePlace {
    invocations: Arc<Invocations>,
    tenant: TenantId,
}

impl Invocations {
    /// Accepts a request, or returns the invocation that an earlier request with the same
    /// idempotency key created. The invocation is durable on return.
    pub async fn accept(self: &Arc<Self>, offer: InvocationRequest) -> Result<Invocation, AsyncError> {
        let InvocationRequest {
            tenant,
            kind,
            name,
            version,
            chosen,
            request,
            request_id,
            key,
            callback,
            linked,
            ..
        } = offer;
        let id = linked.as_ref().map_or_else(|| AsyncId::new(now_ms(), rand::random()), |linked| linked.id);
        let key = key.map(|key| key_hash(kind, &name, &key));
        // A repeated request needs no reservation, and is found even when the queue is full.
        let is_known = match key {
            Some(key) => self.key_use(&tenant, key).await?.is_some(),
            None => false,
        };
        let place = if is_known { None } else { Some(self.place(&tenant)?) };
        let has_callback = callback.is_some();
        let receiving = self.receive(id, request, callback, key.is_some(), offer.body_bytes_max);
        let received = until(offer.deadline, receiving).await.unwrap_or_else(|| {
            let text =
                "the request body did not arrive in time (limits.deadline_ms, gateway.infer_wall_ms_max)";
            Err(AsyncError::refused(ErrorCode::DeadlineExceeded, text))
        })?;
        let Received { staged, bytes, hash } = received;
        let key_use = key.zip(hash.map(|request| KeyUse { id, request }));
        if let Some((key, key_use)) = key_use
            && let Some(found) = self.accepted_before(&tenant, key, key_use).await?
        {
            return Ok(found);
        }
        let place = match place {
            Some(place) => place,
            None => self.place(&tenant)?,
        };
        self.check_room(&tenant, bytes)?;
        let record = InvocationRecord::new(
            kind,
            name,
            version,
            &request_id,
            StoredMessage { digest: staged.digest, bytes },
        );
        let record = InvocationRecord {
            callback: has_callback.then_some(CallbackState {
                status: CallbackStatus::Pending,
                attempts: 0,
                error: None,
            }),
            key,
            due_at_ms: id.accepted_at_ms(),
            chosen: version.is_none().then_some(chosen),
            ..record
        };
        let kept = self.blobs.keep(staged).await?;
        let all = self.clone();
        let accepting = async move {
            let Some(revision) = all.create(&tenant, id, &record, key_use, linked).await? else {
                // The same request arrived twice concurrently.
                let (key, key_use) = key_use.ok_or_else(conflict)?;
                return all.accepted_before(&tenant, key, key_use).await?.ok_or_else(conflict);
            };
            all.metrics.asynchronous.accepted(&tenant);
            // From this revision on, the index counts the invocation and keeps its blob.
            all.heard.wait(revision).await;
            drop((kept, place));
            Ok(record.describe(&tenant, id, all.config.retention_ms))
        };
        self.changes.carry_through(accepting).await?
    }

    /// Returns the invocation that an idempotency key already stands for, if any.
    async fn accepted_before(
        &self,
        tenant: &TenantId,
        key: ContentHash,
        new: KeyUse,
    ) -> Result<Option<Invocation>, AsyncError> {
        let Some(used) = self.key_use(tenant, key).await? else { return Ok(None) };
        if used.request != new.request {
            let text = format!(
                "another request was accepted with this idempotency key, as {}; use a different key for each request",
                used.id
            );
            return Err(AsyncError::refused(ErrorCode::IdempotencyMismatch, text));
        }
        // If the invocation was deleted since, its key was deleted with it.
        let seen = self.read(tenant, used.id).await?;
        Ok(seen.map(|Seen { id, record, .. }| record.describe(tenant, id, self.config.retention_ms)))
    }

    async fn receive(
        &self,
        id: AsyncId,
        request: http::Request<Body>,
        callback: Option<String>,
        is_hashed: bool,
        body_bytes_max: u64,
    ) -> Result<Received, AsyncError> {
        let (head, body) = request.into_parts();
        let method = head.method.to_string();
        let uri = head.uri.to_string();
        let mut hasher = Hasher::default();
        hasher.update(
            format!("{method} {}\n", head.uri.path_and_query().map_or("/", |target| target.as_str()))
                .as_bytes(),
        );
        let head =
            line(&RequestHead { id, method, uri, headers: StoredHeaders::from_map(&head.headers), callback });
        let head_bytes = head.len() as u64;
        if head_bytes > HEAD_BYTES_MAX {
            let text = format!("the request's headers take more than {HEAD_BYTES_MAX} bytes");
            return Err(AsyncError::refused(ErrorCode::InvalidRequest, text));
        }
        let body = body.into_data_stream().map(|piece| {
            piece.inspect(|piece| {
                if is_hashed {
                    hasher.update(piece);
                }
            })
        });
        let source = pin!(stream::iter([Ok(head)]).chain(body));
        let staged = self.blobs.stage(source, body_bytes_max.saturating_add(head_bytes)).await;
        let staged = staged.map_err(|error| match error {
            PutError::TooLarge { .. } => AsyncError::refused(
                ErrorCode::BodyTooLarge,
                format!(
                    "the request body has more than {body_bytes_max} bytes (limits.request_body_bytes, gateway.infer_body_bytes_max)"
                ),
            ),
            PutError::Source(why) => AsyncError::refused(
                ErrorCode::BodyMismatch,
                format!("the request body ended early or is broken: {why}"),
            ),
            other => other.into(),
        })?;
        let bytes = staged.bytes - head_bytes;
        Ok(Received { staged, bytes, hash: is_hashed.then(|| hasher.finish()) })
    }

    /// Reserves a place in the queue.
    fn place(self: &Arc<Self>, tenant: &TenantId) -> Result<QueuePlace, AsyncError> {
        let len_max = self.config.queue_len_max;
        let tenant_len_max = self.config.tenant_queue_len_max;
        self.index.lock().accept(tenant, len_max as usize, tenant_len_max as usize).map_err(|full| {
            let (whose, len_max, setting) = match full {
                QueueLimit::Node => ("this node", len_max, "async.queue_len_max"),
                QueueLimit::Tenant => ("the tenant", tenant_len_max, "async.tenant_queue_len_max"),
            };
            let text = format!(
                "{len_max} asynchronous invocations of {whose} have not ended yet ({setting}); try again"
            );
            AsyncError::refused(ErrorCode::AsyncQueueFull, text)
        })?;
        Ok(QueuePlace { invocations: self.clone(), tenant: tenant.clone() })
    }

    /// Checks the tenant's disk quota. Only unfinished invocations count, since results can be
    /// deleted to make room.
    fn check_room(&self, tenant: &TenantId, bytes: u64) -> Result<(), AsyncError> {
        let bytes_max = self.config.tenant_bytes_max;
        if self.index.lock().live_bytes(tenant).saturating_add(bytes) <= bytes_max {
            return Ok(());
        }
        let text = format!(
            "the requests of the tenant that have not been answered yet take up {bytes_max} bytes (async.tenant_bytes_max); try again"
        );
        Err(AsyncError::refused(ErrorCode::AsyncQueueFull, text))
    }
}

impl InvocationRecord {
    fn new(
        kind: InvocationKind,
        name: Name,
        version: Option<Version>,
        request_id: &str,
        request: StoredMessage,
    ) -> Self {
        Self {
            kind,
            name,
            version,
            chosen: None,
            status: InvocationStatus::Queued,
            attempts: 0,
            attempts_lost: 0,
            started_at_ms: None,
            due_at_ms: 0,
            ended_at_ms: None,
            request_id: super::record::clip_request_id(request_id),
            request,
            error: None,
            response: None,
            callback: None,
            key: None,
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.invocations.index.lock().accepted(&self.tenant);
    }
}

/// Hashes an idempotency key together with its function or model, which scopes the key.
fn key_hash(kind: InvocationKind, name: &Name, key: &str) -> ContentHash {
    let kind = match kind {
        InvocationKind::Function => "function",
        InvocationKind::Inference => "inference",
    };
    ContentHash::from_content(format!("{kind}/{name}\n{key}").as_bytes())
}

fn conflict() -> AsyncError {
    AsyncError::refused(ErrorCode::Conflict, "the same request came more than once at a time; try again")
}
