//! Events that clients send to a trigger.

use crate::event;
use crate::index::KnownTrigger;
use crate::plan::Cause;
use crate::record::TriggerId;
use crate::{RequestSender, TriggerError, Triggers};
use bytes::Bytes;
use http::HeaderMap;
use std::sync::Arc;
use weir_types::api::{AcceptedEvents, TickOutcome, TriggerTarget};
use weir_types::{AsyncId, ErrorCode, Name, TenantId};

/// A trigger that events are sent to.
pub struct EventTrigger {
    id: TriggerId,
    trigger: Arc<KnownTrigger>,
}

impl EventTrigger {
    /// The recipient of the events.
    #[must_use]
    pub fn target(&self) -> &TriggerTarget {
        &self.trigger.record.spec.target
    }
}

/// Whether the content of a request is at fault, so that every repetition would be refused.
pub(crate) fn is_final(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::BodyTooLarge | ErrorCode::IdempotencyMismatch)
}

impl Triggers {
    /// Size limit of a request with events.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.config.message_bytes_max as usize
    }

    /// The trigger that events are sent to.
    ///
    /// # Errors
    /// If there is no such trigger.
    pub async fn trigger_for_events(
        &self,
        tenant: &TenantId,
        name: &Name,
    ) -> Result<EventTrigger, TriggerError> {
        let id = TriggerId { tenant: tenant.clone(), name: name.clone() };
        let known = self.known.lock().get(&id);
        let trigger = match known {
            Some(trigger) => trigger,
            // Another node may have created it a moment ago.
            None => Arc::new(self.read(&id).await?.0),
        };
        Ok(EventTrigger { id, trigger })
    }

    /// Accepts the request of each event that the trigger is for. A client that is refused sends all
    /// events again: those that were accepted are not accepted twice.
    ///
    /// # Errors
    /// If the trigger is not for events or paused, the request has no events, or an event was refused.
    pub async fn take_events(
        &self,
        sender: &impl RequestSender,
        trigger: EventTrigger,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<AcceptedEvents, TriggerError> {
        let EventTrigger { id, trigger } = trigger;
        let plan = trigger.plan.as_ref().map_err(|error| TriggerError::Invalid(error.clone()))?;
        let Cause::Events(source) = &plan.cause else {
            let text =
                format!("the trigger {} is not for events; `weir triggers show` has its source", id.name);
            return Err(TriggerError::Invalid(text));
        };
        if !trigger.record.spec.enabled {
            return Err(TriggerError::Paused(id.name));
        }
        let events = event::parse(headers, body).map_err(TriggerError::BadEvents)?;
        let mut accepted = AcceptedEvents::default();
        for event in &events {
            if !source.matches(&event.kind, event.subject.as_deref().unwrap_or_default()) {
                accepted.skipped += 1;
                continue;
            }
            let key = event.key();
            let created_at_ms = trigger.record.created_at_ms;
            let request = plan.event_request(&id.name, created_at_ms, std::slice::from_ref(event), [key]);
            match sender.send(id.tenant.clone(), request).await {
                Ok(invocation) => {
                    self.count_event(&id, TickOutcome::Fired, Some(invocation.id), None);
                    accepted.invocations.push(invocation.id);
                }
                Err(fault) => {
                    self.count_event(&id, TickOutcome::Failed, None, Some(fault.to_string()));
                    if !is_final(fault.code) {
                        return Err(fault.into());
                    }
                    // Sent again, the event would be refused again, and hold up the others.
                    accepted
                        .refused
                        .push(format!("event {:.100} of {:.100}: {fault}", event.id, event.source));
                }
            }
        }
        Ok(accepted)
    }

    fn count_event(
        &self,
        id: &TriggerId,
        outcome: TickOutcome,
        invocation: Option<AsyncId>,
        error: Option<String>,
    ) {
        self.metrics.triggers.ticks(&id.tenant, outcome, 1);
        self.tallies.lock().entry(id.clone()).or_default().add(outcome, invocation, error);
    }

    /// Writes what events have added to the states of their triggers.
    pub(crate) async fn write_tallies(&self) {
        // An id whose tally is empty afterwards is removed below.
        let tallies = std::mem::take(&mut *self.tallies.lock());
        for (id, mut tally) in tallies {
            if let Err(error) = tally.write(self, &id).await {
                tracing::warn!(%error, trigger = %id.name, "writing the state of a trigger failed, retrying");
            }
            self.tallies.lock().entry(id).and_modify(|newer| newer.follow(&tally)).or_insert(tally);
        }
        self.tallies.lock().retain(|_, tally| !tally.is_empty());
    }
}
