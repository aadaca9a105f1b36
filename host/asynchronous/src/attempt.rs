//! One attempt: counts it, runs the request like any call, and stores the response.

use super::index::PendingStep;
use super::message::{HEAD_BYTES_MAX, Message, RequestHead, ResponseHead, StoredHeaders, line};
use super::record::{InvocationRecord, NextStep, StoredMessage, StoredResponse};
use super::retry::{FailedAttempt, Loss, RetryDecision, judge, judge_loss};
use super::store::{Claim, Seen};
use super::work::{ShutdownSignals, Worked};
use super::{AsyncError, Invocations, now_ms};
use crate::RequestRunner;
use futures::{StreamExt, stream};
use std::pin::pin;
use std::time::Duration;
use weir_call::Fault;
use weir_call::status;
use weir_storage::blobs::{BlobError, Hold, PutError};
use weir_types::ErrorCode;
use weir_types::api::InvocationStatus;

/// Pause before a write of an attempt's outcome is retried, after the datastore was unreachable or
/// had no space.
const WRITE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Outcome of an attempt.
enum AttemptOutcome {
    /// The call was answered; `_kept` keeps the response's blob alive.
    Answered {
        response: StoredResponse,
        _kept: Hold,
    },
    Failed(Fault),
    /// The node stops; this does not count as an attempt.
    GivenUp,
}

impl Invocations {
    pub(super) async fn attempt(
        &self,
        gateway: &impl RequestRunner,
        work: &PendingStep,
        stop: &ShutdownSignals,
    ) -> Result<Worked, AsyncError> {
        let Some(seen) = self.read(&work.tenant, work.id).await? else { return Ok(Worked::Stale) };
        let claim = if work.is_claimed { Claim::Keep } else { Claim::Take };
        let mut record = seen.record.clone();
        if record.step() != NextStep::Run {
            return Ok(Worked::Stale);
        }
        if claim == Claim::Take && record.status == InvocationStatus::Running {
            return self.lost(&seen, record).await;
        }
        if record.attempts >= self.config.attempts_max.max(1) {
            // Only an outcome that could not be written leaves a record in this state.
            let text = format!("the node was lost in each of {} attempts", record.attempts);
            record.fail(ErrorCode::NodeLost, &text);
            return self.end(&seen, record, InvocationStatus::Dead).await;
        }
        record.attempts += 1;
        record.status = InvocationStatus::Running;
        record.started_at_ms = Some(now_ms());
        record.due_at_ms = now_ms();
        let Some(revision) = self.write(&seen, &record, claim).await? else { return Ok(Worked::Stale) };
        self.metrics.asynchronous.attempt(&work.tenant);
        let begun = Seen { record, revision, ..seen };
        let outcome = tokio::select! {
            biased;
            () = work.cancelled.cancelled() => return Ok(Worked::Stale),
            outcome = self.run(gateway, &begun) => outcome,
            () = stop.give_up.cancelled() => AttemptOutcome::GivenUp,
        };
        let outcome = match outcome {
            // The stopping node rejected the call before it started.
            AttemptOutcome::Failed(Fault { code: ErrorCode::Unavailable, .. })
                if stop.begin_nothing.is_cancelled() =>
            {
                AttemptOutcome::GivenUp
            }
            other => other,
        };
        self.settle(&begun, outcome, stop).await
    }

    /// Records that the last attempt of an invocation ended with its node. The next attempt follows
    /// after a pause, so that restarts in a row do not use up the attempts.
    async fn lost(&self, seen: &Seen, mut record: InvocationRecord) -> Result<Worked, AsyncError> {
        let loss = Loss {
            attempts: record.attempts,
            uncounted: record.attempts_lost.into(),
            // If this is the restarted node, the attempt ended before the restart. On another node,
            // the node that was lost may have run the attempt until now.
            ran_ms_max: record.started_at_ms.and_then(|started| self.began_at_ms.checked_sub(started)),
        };
        match judge_loss(loss, &self.config, rand::random()) {
            RetryDecision::Dead => {
                let text = format!("the node was lost in each of {} attempts", record.attempts);
                record.fail(ErrorCode::NodeLost, &text);
                self.end(seen, record, InvocationStatus::Dead).await
            }
            RetryDecision::Again { after_ms, is_counted } => {
                let text = format!("the node was lost in attempt {}", record.attempts);
                record.fail(ErrorCode::NodeLost, &text);
                record.status = InvocationStatus::Queued;
                if !is_counted {
                    record.attempts = record.attempts.saturating_sub(1);
                    record.attempts_lost = record.attempts_lost.saturating_add(1);
                }
                record.due_at_ms = now_ms().saturating_add(after_ms);
                self.write(seen, &record, Claim::Leave).await.map(Worked::from)
            }
        }
    }

    /// Runs the request and stores the response.
    async fn run(&self, gateway: &impl RequestRunner, begun: &Seen) -> AttemptOutcome {
        let response = async {
            let path = self.blobs.fetch(begun.record.request.digest).await?;
            let request = Message::<RequestHead>::open(&path).await?.request()?;
            Ok::<_, AsyncError>(gateway.run(begun.tenant.clone(), begun.record.chosen, request).await)
        };
        let answered = match response.await {
            Ok(Ok(response)) => self.keep_answer(begun, response).await,
            Ok(Err(fault)) => Err(fault),
            Err(AsyncError::Blob(BlobError::OutOfReach(error))) => {
                Err(Fault::new(ErrorCode::Unavailable, format!("the request cannot be fetched: {error}")))
            }
            Err(error) => {
                Err(Fault::new(ErrorCode::Internal, format!("the request cannot be read: {error}")))
            }
        };
        answered.map_or_else(AttemptOutcome::Failed, |(response, _kept)| AttemptOutcome::Answered {
            response,
            _kept,
        })
    }

    async fn keep_answer(
        &self,
        begun: &Seen,
        response: axum::response::Response,
    ) -> Result<(StoredResponse, Hold), Fault> {
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        let line = line(&ResponseHead {
            id: begun.id,
            attempt: begun.record.attempts,
            status,
            headers: StoredHeaders::from_map(&head.headers),
        });
        let head_bytes = line.len() as u64;
        if head_bytes > HEAD_BYTES_MAX {
            let text = format!("the answer's headers take more than {HEAD_BYTES_MAX} bytes");
            return Err(Fault::new(ErrorCode::ResponseTooLarge, text));
        }
        let source = pin!(stream::iter([Ok(line)]).chain(body.into_data_stream()));
        // The producer of the response enforces the size limit.
        let staged = self.blobs.stage_accepted(source, u64::MAX).await.map_err(|error| match error {
            PutError::Source(why) => {
                Fault::new(ErrorCode::GuestError, format!("the answer broke off: {why}"))
            }
            PutError::DiskFull(full) => {
                Fault::new(ErrorCode::DiskFull, format!("the answer cannot be kept: {full}"))
            }
            other => Fault::new(ErrorCode::Internal, format!("the answer cannot be kept: {other}")),
        })?;
        let part = StoredMessage { digest: staged.digest, bytes: staged.bytes - head_bytes };
        let kept = self.blobs.keep(staged).await;
        let hold = kept.map_err(|error| {
            Fault::new(ErrorCode::Internal, format!("the answer cannot be kept: {error}"))
        })?;
        Ok((StoredResponse { status, part }, hold))
    }

    /// Records the outcome of an attempt. Retries until the datastore is reachable and has space,
    /// or the node gives up its work.
    async fn settle(
        &self,
        begun: &Seen,
        outcome: AttemptOutcome,
        stop: &ShutdownSignals,
    ) -> Result<Worked, AsyncError> {
        loop {
            let settled = match &outcome {
                AttemptOutcome::Answered { response, .. } => {
                    let mut record = begun.record.clone();
                    record.response = Some(*response);
                    record.error = None;
                    self.end(begun, record, InvocationStatus::Done).await
                }
                AttemptOutcome::Failed(fault) => self.fail(begun, fault).await,
                AttemptOutcome::GivenUp => {
                    let mut record = begun.record.clone();
                    record.attempts -= 1;
                    record.status = InvocationStatus::Queued;
                    self.write(begun, &record, Claim::Drop).await.map(Worked::from)
                }
            };
            match &settled {
                Ok(Worked::Written(revision)) => self.heard.wait(*revision).await,
                // An earlier try may have committed although its reply was lost.
                Ok(Worked::Stale) => {
                    if let Some(now) = self.read(&begun.tenant, begun.id).await? {
                        self.heard.wait(now.revision).await;
                    }
                }
                Err(AsyncError::Datastore(error))
                    if error.is_full() || matches!(error, weir_datastore::Error::Unavailable { .. }) =>
                {
                    tokio::select! {
                        () = tokio::time::sleep(WRITE_AGAIN_AFTER) => continue,
                        () = stop.give_up.cancelled() => {}
                    }
                }
                Err(_) => {}
            }
            return settled;
        }
    }

    async fn fail(&self, begun: &Seen, fault: &Fault) -> Result<Worked, AsyncError> {
        let Seen { id, record, .. } = begun;
        let mut record = record.clone();
        if fault.code == ErrorCode::Internal {
            // The node's operator alone sees the details, as with any response.
            tracing::error!(%id, error = fault.text, "internal error during an asynchronous invocation");
            record.fail(
                fault.code,
                &format!("internal error of the node; see the node's log for invocation {id}"),
            );
        } else {
            record.fail(fault.code, &fault.text);
        }
        let failure = FailedAttempt {
            code: fault.code,
            status: status(fault.code),
            attempts: record.attempts,
            age_ms: now_ms().saturating_sub(id.accepted_at_ms()),
        };
        match judge(failure, &self.config, rand::random()) {
            RetryDecision::Dead => self.end(begun, record, InvocationStatus::Dead).await,
            RetryDecision::Again { after_ms, is_counted } => {
                record.status = InvocationStatus::Queued;
                record.attempts -= u32::from(!is_counted);
                record.due_at_ms = now_ms().saturating_add(after_ms);
                self.write(begun, &record, Claim::Leave).await.map(Worked::from)
            }
        }
    }

    async fn end(
        &self,
        seen: &Seen,
        mut record: InvocationRecord,
        status: InvocationStatus,
    ) -> Result<Worked, AsyncError> {
        record.end(status, now_ms());
        let written = self.write(seen, &record, record.step().claim_after()).await?;
        if written.is_some() {
            self.metrics.asynchronous.ended(&seen.tenant, status);
            if status == InvocationStatus::Dead {
                let why = record.error.as_ref().map(|error| error.code.as_str());
                tracing::warn!(id = %seen.id, tenant = %seen.tenant, name = %record.name, why, "asynchronous invocation failed in its last attempt");
            }
        }
        Ok(written.into())
    }
}
