//! Handles due ticks: sends their requests, or records why it does not.

use crate::decision::{DueTick, due_tick};
use crate::index::{DueTrigger, KnownTrigger, NextTick, Retries, SET_BACK_MS_MAX, StoredState};
use crate::plan::Occasion;
use crate::record::{TriggerId, TriggerState, encode};
use crate::{RequestSender, TriggerError, Triggers};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_asynchronous::LinkedWrite;
use weir_call::status;
use weir_datastore::{Compare, Transaction};
use weir_telemetry::events::NewEvent;
use weir_telemetry::logs::now_ms;
use weir_types::api::{
    EventKind, EventResource, Invocation, InvocationStatus, OverlapPolicy, TickOutcome, TriggerTick,
};
use weir_types::{AsyncId, ErrorCode, Name, TenantId};

/// Ticks that a node handles at once.
const WORKING_MAX: usize = 16;
/// Longest sleep, after which the loop looks whether the clock was set.
const SLEEP_MS_MAX: u64 = 10_000;
/// Time for which the other nodes of a cluster leave a tick to the dispatcher.
const LEFT_TO_DISPATCHER_MS: u64 = 2_000;
/// Pause after a handled tick whose event is still to arrive.
const STALE_MS: u64 = 1_000;
/// Pauses between attempts to store a request: the first and the longest.
const RETRY_MS: (u64, u64) = (500, 15_000);
/// Length limit of the reason of a failure.
const ERROR_LEN_MAX: usize = 300;
/// Attempts to send a request by hand while ticks change the state.
const BY_HAND_ATTEMPTS: usize = 5;

/// Result of the work on a tick.
enum Worked {
    /// The tick has an outcome, or another node has changed the trigger.
    Settled,
    /// No tick was due, because the clock was set back.
    NotDue,
    /// The request could not be stored; the node tries again.
    Postponed(String),
}

impl Triggers {
    /// Handles ticks until `stop`. The node for which `leads` returns true handles them at once; the
    /// others handle the ticks that it leaves.
    pub async fn work(
        self: Arc<Self>,
        sender: impl RequestSender,
        leads: impl Fn() -> bool + Send + 'static,
        stop: CancellationToken,
    ) {
        let mut working = JoinSet::new();
        let mut latest_ms = now_ms();
        while !stop.is_cancelled() {
            let time_ms = now_ms();
            if time_ms.saturating_add(SET_BACK_MS_MAX) < latest_ms {
                tracing::warn!("the clock was set back; triggers continue from the new time");
                self.known.lock().reschedule(time_ms);
            }
            latest_ms = time_ms;
            let delay_ms = if leads() { 0 } else { LEFT_TO_DISPATCHER_MS };
            let is_free = working.len() < WORKING_MAX;
            let next = is_free.then(|| self.known.lock().next(time_ms.saturating_sub(delay_ms)));
            let sleep_ms = match next {
                Some(NextTick::Due(due)) => {
                    working.spawn(self.clone().work_on(sender.clone(), due));
                    continue;
                }
                Some(NextTick::WaitUntil(due_ms)) => (due_ms + delay_ms).saturating_sub(time_ms),
                Some(NextTick::Wait) | None => SLEEP_MS_MAX,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.news.notified() => {}
                Some(_) = working.join_next(), if !working.is_empty() => {}
                () = tokio::time::sleep(Duration::from_millis(sleep_ms.min(SLEEP_MS_MAX))) => {}
            }
        }
        while working.join_next().await.is_some() {}
    }

    async fn work_on(self: Arc<Self>, sender: impl RequestSender, due: DueTrigger) {
        let mut working = Working {
            triggers: self.clone(),
            id: due.id.clone(),
            retries: Some(Retries { not_before_ms: now_ms() + STALE_MS, ..Retries::default() }),
        };
        match self.tick(&sender, &due).await {
            Ok(Worked::Settled) => {}
            Ok(Worked::NotDue) => working.retries = None,
            Ok(Worked::Postponed(error)) => working.retries = Some(due.retries.after(error)),
            Err(TriggerError::Datastore(weir_datastore::Error::Closed)) => {}
            Err(error) => {
                tracing::warn!(%error, tenant = %due.id.tenant, trigger = %due.id.name, "handling a tick failed, retrying");
                working.retries = Some(due.retries.after(error.to_string()));
            }
        }
    }

    async fn tick(&self, sender: &impl RequestSender, due: &DueTrigger) -> Result<Worked, TriggerError> {
        let DueTrigger { id, trigger, state, retries } = due;
        let Ok(plan) = &trigger.plan else { return Ok(Worked::NotDue) };
        let spec = &trigger.record.spec;
        let time_ms = now_ms();
        let stored = state.as_ref().map(|stored| &stored.state);
        let base_ms = trigger.base_ms(stored, time_ms);
        let Some(schedule) = plan.schedule() else { return Ok(Worked::NotDue) };
        let found = due_tick(schedule, spec, base_ms, time_ms, self.config.late_ms_max);
        let Some(tick) = found else { return Ok(Worked::NotDue) };
        if !tick.is_in_time {
            return match &retries.error {
                Some(error) => self.settle(due, tick, TickOutcome::Failed, Some(error.clone())).await,
                None => self.settle(due, tick, TickOutcome::Missed, None).await,
            };
        }
        if spec.overlap == OverlapPolicy::Skip
            && let Some(earlier) = stored.and_then(|state| state.invocation)
            && !self.has_ended(&id.tenant, earlier).await?
        {
            return self.settle(due, tick, TickOutcome::Overlapped, None).await;
        }
        let invocation = AsyncId::new(now_ms(), rand::random());
        let next = next_state(stored, tick, TickOutcome::Fired, Some(invocation), None);
        let linked = linked_write(id, trigger, state.as_ref(), invocation, &next)?;
        let mut request = plan.request(&id.name, Occasion::Tick(tick.at_ms));
        request.extensions_mut().insert(linked);
        match sender.send(id.tenant.clone(), request).await {
            Ok(accepted) => {
                self.note(id, tick, TickOutcome::Fired, None);
                tracing::debug!(tenant = %id.tenant, trigger = %id.name, invocation = %accepted.id, "a trigger fired");
                Ok(Worked::Settled)
            }
            Err(fault) if fault.code == ErrorCode::Conflict => Ok(Worked::Settled),
            Err(fault) if is_temporary(fault.code) => Ok(Worked::Postponed(fault.text)),
            Err(fault) => self.settle(due, tick, TickOutcome::Failed, Some(fault.text)).await,
        }
    }

    /// Sends a request by hand, whether or not the trigger is paused.
    pub async fn run(
        &self,
        sender: &impl RequestSender,
        tenant: &TenantId,
        name: &Name,
    ) -> Result<Invocation, TriggerError> {
        let id = TriggerId { tenant: tenant.clone(), name: name.clone() };
        for _ in 0..BY_HAND_ATTEMPTS {
            let (trigger, state) = self.read(&id).await?;
            let plan = trigger.plan.as_ref().map_err(|error| TriggerError::Invalid(error.clone()))?;
            if plan.schedule().is_none() {
                let text = format!(
                    "the trigger {name} has no schedule: its requests are those of messages or events"
                );
                return Err(TriggerError::Invalid(text));
            }
            let invocation = AsyncId::new(now_ms(), rand::random());
            let mut next = state.as_ref().map(|stored| stored.state.clone()).unwrap_or_default();
            next.record(None, TickOutcome::Fired, Some(invocation), None);
            let mut request = plan.request(name, Occasion::ByHand);
            request.extensions_mut().insert(linked_write(&id, &trigger, state.as_ref(), invocation, &next)?);
            match sender.send(tenant.clone(), request).await {
                Err(fault) if fault.code == ErrorCode::Conflict => {}
                sent => return Ok(sent?),
            }
        }
        Err(TriggerError::Conflict(name.clone()))
    }

    /// Writes the outcome of a tick without a request.
    async fn settle(
        &self,
        due: &DueTrigger,
        tick: DueTick,
        outcome: TickOutcome,
        error: Option<String>,
    ) -> Result<Worked, TriggerError> {
        let DueTrigger { id, trigger, state, .. } = due;
        let error = error.map(cut);
        let stored = state.as_ref().map(|stored| &stored.state);
        let next = next_state(stored, tick, outcome, None, error.clone());
        let compares = compares(id, trigger, state.as_ref())?;
        let writing = compares.into_iter().fold(Transaction::new(), Transaction::when);
        let written = self.datastore.commit(writing.put(id.state_key()?, encode(&next))).await?;
        if let Some(revision) = written.done() {
            self.note(id, tick, outcome, error.as_deref());
            self.heard.wait(revision).await;
        }
        Ok(Worked::Settled)
    }

    /// Reports the outcome of a tick, on the node that wrote it.
    fn note(&self, id: &TriggerId, tick: DueTick, outcome: TickOutcome, error: Option<&str>) {
        let TriggerId { tenant, name } = id;
        self.metrics.triggers.ticks(tenant, outcome, 1);
        self.metrics.triggers.ticks(tenant, TickOutcome::Missed, tick.passed);
        let missed = tick.passed + u64::from(outcome == TickOutcome::Missed);
        if missed > 0 {
            tracing::warn!(%tenant, trigger = %name, missed, "ticks of a trigger were missed");
            self.event(id, format!("{missed} ticks were missed"), "missed");
        }
        if let Some(error) = error {
            tracing::warn!(%tenant, trigger = %name, error, "the request of a trigger was refused");
            self.event(id, format!("the request of a tick was refused: {error}"), "failed");
        }
    }

    pub(crate) fn event(&self, id: &TriggerId, text: String, repeats: &'static str) {
        self.metrics.events.record(NewEvent {
            tenant: Some(id.tenant.clone()),
            kind: EventKind::Fault,
            resource: EventResource::Trigger,
            name: id.name.to_string(),
            text,
            repeats: Some(repeats),
        });
    }

    /// Whether an invocation has ended or was deleted.
    async fn has_ended(&self, tenant: &TenantId, id: AsyncId) -> Result<bool, TriggerError> {
        Ok(self.progress(tenant, id).await?.is_none_or(InvocationStatus::is_end))
    }
}

impl TriggerState {
    /// Records a tick, or a request by hand without a scheduled time.
    fn record(
        &mut self,
        scheduled_at_ms: Option<u64>,
        outcome: TickOutcome,
        invocation: Option<AsyncId>,
        error: Option<String>,
    ) {
        self.ticked_at_ms = scheduled_at_ms.unwrap_or(self.ticked_at_ms);
        self.invocation = invocation.or(self.invocation);
        if scheduled_at_ms.is_some() {
            self.ticks.add(outcome, 1);
        }
        self.last =
            Some(TriggerTick { scheduled_at_ms, at_ms: now_ms(), outcome, invocation, status: None, error });
    }
}

/// The state after a tick.
fn next_state(
    state: Option<&TriggerState>,
    tick: DueTick,
    outcome: TickOutcome,
    invocation: Option<AsyncId>,
    error: Option<String>,
) -> TriggerState {
    let mut next = state.cloned().unwrap_or_default();
    next.ticks.add(TickOutcome::Missed, tick.passed);
    next.record(Some(tick.at_ms), outcome, invocation, error);
    next
}

/// The conditions under which no other node has handled the tick or changed the trigger.
fn compares(
    id: &TriggerId,
    trigger: &KnownTrigger,
    state: Option<&StoredState>,
) -> Result<Vec<Compare>, TriggerError> {
    let state_key = id.state_key()?;
    let state = match state {
        Some(stored) => Compare::ModifiedAt(state_key, stored.revision),
        None => Compare::Absent(state_key),
    };
    Ok(vec![Compare::ModifiedAt(id.spec_key()?, trigger.revision), state])
}

fn linked_write(
    id: &TriggerId,
    trigger: &KnownTrigger,
    state: Option<&StoredState>,
    invocation: AsyncId,
    next: &TriggerState,
) -> Result<LinkedWrite, TriggerError> {
    let compares = compares(id, trigger, state)?;
    Ok(LinkedWrite { id: invocation, compares, key: id.state_key()?, value: Bytes::from(encode(next)) })
}

/// Whether the same request may be accepted later.
fn is_temporary(code: ErrorCode) -> bool {
    let status = status(code);
    status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS
}

pub(crate) fn cut(mut text: String) -> String {
    if text.len() > ERROR_LEN_MAX {
        let end = (0..=ERROR_LEN_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

impl Retries {
    /// The retries after one more failure.
    fn after(&self, error: String) -> Self {
        let pause_ms = RETRY_MS.0.saturating_mul(1 << self.failures.min(16)).min(RETRY_MS.1);
        Self {
            not_before_ms: now_ms() + pause_ms,
            failures: self.failures.saturating_add(1),
            error: Some(cut(error)),
        }
    }
}

/// Work in progress. Its drop informs the index, also after a panic.
struct Working {
    triggers: Arc<Triggers>,
    id: TriggerId,
    retries: Option<Retries>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let time_ms = now_ms();
        self.triggers.known.lock().done(self.id.clone(), self.retries.take(), time_ms);
        self.triggers.news.notify_one();
    }
}
