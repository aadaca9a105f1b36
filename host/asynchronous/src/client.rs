//! Client operations on invocations: show, list, wait, cancel, retry and delete.

use super::message::{Message, ResponseHead};
use super::record::InvocationRecord;
use super::store::{Claim, Seen};
use super::{AsyncError, Invocations, now_ms};
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use weir_datastore::LIST_LIMIT_MAX;
use weir_types::api::{CallbackStatus, Invocation, InvocationKind, InvocationPage, InvocationStatus};
use weir_types::{AsyncId, ErrorCode, Name, TenantId, Version};

/// Maximum number of record pages read for one response.
const PAGES_MAX: usize = 10;

/// Filter of a listing.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Status of the invocations; `None`: any.
    pub status: Option<InvocationStatus>,
    /// Name of the target; `None`: any.
    pub name: Option<Name>,
}

/// Invocation watched by a client.
pub struct Watched {
    invocations: Arc<Invocations>,
    tenant: TenantId,
    id: AsyncId,
    news: watch::Receiver<()>,
    _waiter: OwnedSemaphorePermit,
}

impl Invocations {
    /// Describes one invocation of `tenant`.
    pub async fn show(&self, tenant: &TenantId, id: AsyncId) -> Result<Invocation, AsyncError> {
        Ok(self.describe(&self.find(tenant, id).await?))
    }

    /// Lists invocations of `tenant`, newest first, starting after `after`. A page may have fewer
    /// than `limit` invocations although more follow.
    pub async fn list(
        &self,
        tenant: &TenantId,
        filter: &Filter,
        mut after: Option<AsyncId>,
        limit: usize,
    ) -> Result<InvocationPage, AsyncError> {
        let mut invocations = Vec::new();
        // One more than the answer has: whether another follows. A filter may need many more.
        let mut records_max = limit.saturating_add(1);
        for _ in 0..PAGES_MAX {
            let (records, more_after) = self.page(tenant, after, records_max).await?;
            records_max = LIST_LIMIT_MAX;
            for (id, record) in records {
                if invocations.len() == limit {
                    let next = invocations.last().map(|last: &Invocation| last.id);
                    return Ok(InvocationPage { invocations, next });
                }
                if filter.takes(&record) {
                    invocations.push(record.describe(tenant, id, self.config.retention_ms));
                }
            }
            after = more_after;
            if after.is_none() {
                break;
            }
        }
        Ok(InvocationPage { invocations, next: after })
    }

    /// Returns the stored response, or the error that a synchronous caller would have received.
    pub async fn result(&self, tenant: &TenantId, id: AsyncId) -> Result<Response, AsyncError> {
        let Seen { record, .. } = self.find(tenant, id).await?;
        if let Some(response) = record.response {
            let path = self.blobs.fetch(response.part.digest).await?;
            return Ok(Message::<ResponseHead>::open(&path).await?.response());
        }
        Err(match (record.status, record.error) {
            (InvocationStatus::Cancelled, _) => {
                AsyncError::refused(ErrorCode::Cancelled, format!("invocation {id} was cancelled"))
            }
            (InvocationStatus::Dead, Some(error)) => AsyncError::refused(error.code, error.text),
            (status, _) => AsyncError::refused(
                ErrorCode::NotEnded,
                format!(
                    "invocation {id} is {status}: wait for it with GET /v1/invocations/{id}?wait_ms=10000"
                ),
            ),
        })
    }

    /// Cancels an unfinished invocation. Returns none if it has ended.
    pub async fn cancel(&self, tenant: &TenantId, id: AsyncId) -> Result<Option<Invocation>, AsyncError> {
        let cancelled = self.change(tenant, id, Claim::Drop, |record| {
            if record.status.is_end() {
                return false;
            }
            record.end(InvocationStatus::Cancelled, now_ms());
            // The client that cancels needs no callback.
            if let Some(callback) = &mut record.callback {
                callback.status = CallbackStatus::Failed;
            }
            record.fail_callback("the invocation was cancelled");
            true
        });
        let cancelled = cancelled.await?;
        if cancelled.is_some() {
            self.metrics.asynchronous.ended(tenant, InvocationStatus::Cancelled);
        }
        Ok(cancelled)
    }

    /// Deletes an ended invocation with its result.
    pub async fn remove(&self, tenant: &TenantId, id: AsyncId) -> Result<(), AsyncError> {
        loop {
            let seen = self.find(tenant, id).await?;
            if !seen.record.status.is_end() {
                return Err(not_ended(id, seen.record.status));
            }
            if self.forget(&seen).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Restarts a dead invocation, with its attempts reset. `current` is the version of a target that
    /// it runs now, if its request names none: it may have failed by a fault of the version before.
    pub async fn retry(
        &self,
        tenant: &TenantId,
        id: AsyncId,
        current: impl Fn(InvocationKind, &Name) -> Option<Version>,
    ) -> Result<Invocation, AsyncError> {
        let retried = self.change(tenant, id, Claim::Leave, |record| {
            if record.status != InvocationStatus::Dead {
                return false;
            }
            record.status = InvocationStatus::Queued;
            record.attempts = 0;
            if record.version.is_none() {
                record.chosen = current(record.kind, &record.name);
            }
            record.due_at_ms = now_ms();
            record.started_at_ms = None;
            record.ended_at_ms = None;
            record.error = None;
            if let Some(callback) = &mut record.callback {
                callback.status = CallbackStatus::Pending;
                callback.attempts = 0;
                callback.error = None;
            }
            true
        });
        if let Some(retried) = retried.await? {
            return Ok(retried);
        }
        let status = self.find(tenant, id).await?.record.status;
        let text = format!("invocation {id} is {status}: only dead ones are begun anew");
        Err(AsyncError::refused(ErrorCode::Conflict, text))
    }

    /// Watches an invocation. Fails when `waiters_max` clients already wait.
    pub fn watch(self: &Arc<Self>, tenant: &TenantId, id: AsyncId) -> Result<Watched, AsyncError> {
        let waiter = self.waiters.clone().try_acquire_owned().map_err(|_| {
            let text = format!(
                "{} clients wait for asynchronous invocations already (async.waiters_max); ask without waiting, or try again",
                self.config.waiters_max
            );
            AsyncError::refused(ErrorCode::Unavailable, text)
        })?;
        let news = self.news_of(id);
        Ok(Watched { invocations: self.clone(), tenant: tenant.clone(), id, news, _waiter: waiter })
    }

    /// Whether an invocation has not ended, by the changes that this node has heard of.
    #[must_use]
    pub fn is_unfinished(&self, id: AsyncId) -> bool {
        self.index.lock().is_unfinished(id)
    }

    /// Returns the longest time that a client may wait.
    pub fn wait_max(&self) -> Duration {
        Duration::from_millis(self.config.wait_ms_max)
    }

    /// Changes a record, and retries after concurrent changes. Returns none if `change` finds
    /// nothing to change.
    async fn change(
        &self,
        tenant: &TenantId,
        id: AsyncId,
        claim: Claim,
        change: impl Fn(&mut InvocationRecord) -> bool,
    ) -> Result<Option<Invocation>, AsyncError> {
        loop {
            let seen = self.find(tenant, id).await?;
            let mut record = seen.record.clone();
            if !change(&mut record) {
                return Ok(None);
            }
            if let Some(revision) = self.write(&seen, &record, claim).await? {
                return Ok(Some(self.describe(&Seen { record, revision, ..seen })));
            }
        }
    }

    async fn find(&self, tenant: &TenantId, id: AsyncId) -> Result<Seen, AsyncError> {
        if let Some(seen) = self.read(tenant, id).await? {
            return Ok(seen);
        }
        let retention_ms = self.config.retention_ms;
        let expired_at_ms = id.accepted_at_ms().saturating_add(retention_ms);
        Err(if (1..now_ms()).contains(&expired_at_ms) && id.accepted_at_ms() > 0 {
            let text = format!(
                "invocation {id} no longer exists: results are kept for {retention_ms} ms (async.retention_ms)"
            );
            AsyncError::refused(ErrorCode::InvocationExpired, text)
        } else {
            AsyncError::missing(id)
        })
    }

    fn describe(&self, seen: &Seen) -> Invocation {
        seen.record.describe(&seen.tenant, seen.id, self.config.retention_ms)
    }
}

impl Filter {
    fn takes(&self, record: &InvocationRecord) -> bool {
        self.status.is_none_or(|status| record.status == status)
            && self.name.as_ref().is_none_or(|name| record.name == *name)
    }
}

impl Watched {
    /// Returns the current state.
    pub async fn now(&mut self) -> Result<Invocation, AsyncError> {
        // Only changes from here on wake the watcher.
        self.news.mark_unchanged();
        self.invocations.show(&self.tenant, self.id).await
    }

    /// Waits for a change after the last call of [`now`](Self::now). Cancel-safe.
    pub async fn changed(&mut self) {
        if self.news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the invocation once it has ended, or its state after `wait`.
    pub async fn ended(&mut self, wait: Duration) -> Result<Invocation, AsyncError> {
        let deadline = tokio::time::Instant::now() + wait.min(self.invocations.wait_max());
        loop {
            let invocation = self.now().await?;
            if invocation.status.is_end() || tokio::time::timeout_at(deadline, self.changed()).await.is_err()
            {
                return Ok(invocation);
            }
        }
    }
}

fn not_ended(id: AsyncId, status: InvocationStatus) -> AsyncError {
    let text = format!("invocation {id} is {status}; cancel it first");
    AsyncError::refused(ErrorCode::NotEnded, text)
}
