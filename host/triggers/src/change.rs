//! Client operations on triggers: create, change, show, list, pause and delete.

use crate::index::{KnownTrigger, StoredState};
use crate::plan::{Plan, StreamPlan};
use crate::record::{TriggerId, TriggerRecord, TriggerState, decode, encode};
use crate::{TriggerError, Triggers};
use std::sync::Arc;
use weir_asynchronous::AsyncError;
use weir_datastore::{Compare, Entry, Transaction};
use weir_telemetry::logs::now_ms;
use weir_types::api::{InvocationStatus, Trigger, TriggerSpec};
use weir_types::{AsyncId, ErrorCode, Name, TenantId};

/// Next ticks in the description of a trigger.
const UPCOMING: usize = 5;

/// Effect of a change.
#[derive(Debug)]
pub struct ChangedTrigger {
    /// The trigger.
    pub trigger: Trigger,
    /// Whether it is new.
    pub is_new: bool,
}

impl Triggers {
    /// Creates or replaces a trigger. On return, it is durable, and this node has its ticks. Equal
    /// settings change nothing. A new schedule and a resumption restart the ticks.
    pub async fn put(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        spec: TriggerSpec,
    ) -> Result<ChangedTrigger, TriggerError> {
        Plan::new(&spec, 0)
            .await
            .and_then(|plan| plan.check(&self.config, now_ms()))
            .map_err(TriggerError::Invalid)?;
        let id = TriggerId { tenant: tenant.clone(), name: name.clone() };
        let triggers = self.clone();
        let changing = async move {
            let Ok(_turn) = triggers.turn.clone().acquire_owned().await else {
                return Err(TriggerError::Conflict(id.name));
            };
            let is_new = triggers.store(&id, spec).await?;
            Ok(ChangedTrigger { trigger: triggers.describe_stored(&id).await?, is_new })
        };
        self.changes.carry_through(changing).await?
    }

    /// Size limit of the body of a request.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        self.config.body_bytes_max as usize
    }

    /// Pauses or resumes a trigger.
    pub async fn set_enabled(
        self: &Arc<Self>,
        tenant: &TenantId,
        name: &Name,
        enabled: bool,
    ) -> Result<Trigger, TriggerError> {
        let id = TriggerId { tenant: tenant.clone(), name: name.clone() };
        let triggers = self.clone();
        let changing = async move {
            let Ok(_turn) = triggers.turn.clone().acquire_owned().await else {
                return Err(TriggerError::Conflict(id.name));
            };
            let entry = triggers.entry(&id).await?.ok_or_else(|| TriggerError::NotFound(id.name.clone()))?;
            let record: TriggerRecord = decode(&entry)?;
            triggers.store(&id, TriggerSpec { enabled, ..record.spec }).await?;
            triggers.describe_stored(&id).await
        };
        self.changes.carry_through(changing).await?
    }

    /// Deletes a trigger. Invocations that it started continue.
    pub async fn delete(self: &Arc<Self>, tenant: &TenantId, name: &Name) -> Result<(), TriggerError> {
        let id = TriggerId { tenant: tenant.clone(), name: name.clone() };
        let key = id.spec_key()?;
        let entry = self.entry(&id).await?.ok_or_else(|| TriggerError::NotFound(name.clone()))?;
        let deleting = Transaction::new().delete(key).delete(id.state_key()?);
        let triggers = self.clone();
        let deleting = async move {
            if let Some(revision) = triggers.datastore.commit(deleting).await?.done() {
                triggers.heard.wait(revision).await;
            }
            if let Some(stream) = stream_of(&entry) {
                triggers.delete_consumer(&id, &stream).await;
            }
            Ok::<_, TriggerError>(())
        };
        self.changes.carry_through(deleting).await?
    }

    /// All triggers of `tenant`, by name, without the bodies of their requests.
    #[must_use]
    pub fn list(&self, tenant: &TenantId) -> Vec<Trigger> {
        let all: Vec<_> = self.known.lock().list(tenant).collect();
        let described = all.into_iter().map(|(name, trigger, state)| {
            let mut described = describe(&name, &trigger, state.as_ref());
            described.spec.request.body = None;
            described.spec.request.body_base64 = None;
            described
        });
        described.collect()
    }

    /// Use and limit of the setting `async.triggers.tenant_triggers_max`, and of
    /// `async.triggers.tenant_streams_max`.
    #[must_use]
    pub fn usage(&self, tenant: &TenantId) -> [(u64, u64); 2] {
        let known = self.known.lock();
        let (_, triggers) = known.counts(tenant);
        let streams = known.streams(tenant);
        [
            (triggers as u64, self.config.tenant_triggers_max.into()),
            (streams as u64, self.config.tenant_streams_max.into()),
        ]
    }

    /// Describes a trigger, as stored.
    pub async fn show(&self, tenant: &TenantId, name: &Name) -> Result<Trigger, TriggerError> {
        self.describe_stored(&TriggerId { tenant: tenant.clone(), name: name.clone() }).await
    }

    async fn describe_stored(&self, id: &TriggerId) -> Result<Trigger, TriggerError> {
        let (trigger, state) = self.read(id).await?;
        let mut described = describe(&id.name, &trigger, state.as_ref().map(|stored| &stored.state));
        if let Some(last) = &mut described.last
            && let Some(invocation) = last.invocation
        {
            last.status = self.progress(&id.tenant, invocation).await?;
        }
        Ok(described)
    }

    /// Reads a trigger and its state.
    pub(crate) async fn read(
        &self,
        id: &TriggerId,
    ) -> Result<(KnownTrigger, Option<StoredState>), TriggerError> {
        // The state first, because a deletion removes both: a newer state of an older trigger would
        // make the next change a conflict.
        let state = self.datastore.get(&id.state_key()?).await?;
        let entry = self.entry(id).await?.ok_or_else(|| TriggerError::NotFound(id.name.clone()))?;
        let record: TriggerRecord = decode(&entry)?;
        let plan = Plan::new(&record.spec, record.since_ms).await;
        let state = match state {
            Some(entry) => Some(StoredState { state: decode(&entry)?, revision: entry.modified_at }),
            None => None,
        };
        Ok((KnownTrigger { record, revision: entry.modified_at, plan }, state))
    }

    async fn entry(&self, id: &TriggerId) -> Result<Option<Entry>, TriggerError> {
        Ok(self.datastore.get(&id.spec_key()?).await?)
    }

    /// Writes the settings of a trigger. Returns whether it is new.
    async fn store(&self, id: &TriggerId, spec: TriggerSpec) -> Result<bool, TriggerError> {
        let key = id.spec_key()?;
        let time_ms = now_ms();
        let source = spec.source.clone();
        let entry = self.entry(id).await?;
        let new = TriggerRecord { spec, created_at_ms: time_ms, changed_at_ms: time_ms, since_ms: time_ms };
        let writing = match &entry {
            None => {
                self.check_room(&id.tenant)?;
                self.check_streams(&id.tenant, &new.spec)?;
                Transaction::new().when(Compare::Absent(key.clone())).put(key, encode(&new))
            }
            Some(entry) => {
                if stream_of(entry).is_none() {
                    self.check_streams(&id.tenant, &new.spec)?;
                }
                // A damaged record is replaced.
                let record = match decode::<TriggerRecord>(entry) {
                    Ok(record) if record.spec == new.spec => return Ok(false),
                    Ok(record) => record.changed_to(new),
                    Err(_) => new,
                };
                Transaction::new()
                    .when(Compare::ModifiedAt(key.clone(), entry.modified_at))
                    .put(key, encode(&record))
            }
        };
        let written = self.datastore.commit(writing).await?.done();
        self.heard.wait(written.ok_or_else(|| TriggerError::Conflict(id.name.clone()))?).await;
        if let Some(earlier) = entry.as_ref().and_then(stream_of)
            && !source
                .nats
                .and_then(|nats| StreamPlan::new(&nats).ok())
                .is_some_and(|new| new.keeps_consumer_of(&earlier))
        {
            self.delete_consumer(id, &earlier).await;
        }
        Ok(entry.is_none())
    }

    fn check_room(&self, tenant: &TenantId) -> Result<(), TriggerError> {
        let (all, of_tenant) = self.known.lock().counts(tenant);
        let node = ("the node", all, self.config.triggers_max, "async.triggers.triggers_max");
        let owner =
            ("the tenant", of_tenant, self.config.tenant_triggers_max, "async.triggers.tenant_triggers_max");
        for (whose, len, len_max, setting) in [owner, node] {
            if len >= len_max as usize {
                return Err(TriggerError::Full { whose, len_max, setting });
            }
        }
        Ok(())
    }

    /// Refuses one more trigger for a stream, each of which has a connection and a buffer.
    fn check_streams(&self, tenant: &TenantId, spec: &TriggerSpec) -> Result<(), TriggerError> {
        let len_max = self.config.tenant_streams_max;
        if spec.source.nats.is_some() && self.known.lock().streams(tenant) >= len_max as usize {
            let setting = "async.triggers.tenant_streams_max, for streams";
            return Err(TriggerError::Full { whose: "the tenant", len_max, setting });
        }
        Ok(())
    }

    /// The progress of an invocation; `None` if it was deleted.
    pub(crate) async fn progress(
        &self,
        tenant: &TenantId,
        id: AsyncId,
    ) -> Result<Option<InvocationStatus>, TriggerError> {
        match self.invocations.show(tenant, id).await {
            Ok(invocation) => Ok(Some(invocation.status)),
            Err(AsyncError::Refused {
                code: ErrorCode::InvocationNotFound | ErrorCode::InvocationExpired,
                ..
            }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl TriggerRecord {
    /// The record after a change to `new`.
    fn changed_to(self, new: Self) -> Self {
        let is_resumed = new.spec.enabled && !self.spec.enabled;
        let starts_anew = is_resumed || new.spec.source != self.spec.source;
        let since_ms = if starts_anew { new.since_ms } else { self.since_ms };
        Self { created_at_ms: self.created_at_ms, since_ms, ..new }
    }
}

/// The stream of a stored trigger that has one.
fn stream_of(entry: &Entry) -> Option<StreamPlan> {
    let record: TriggerRecord = decode(entry).ok()?;
    StreamPlan::new(record.spec.source.nats.as_ref()?).ok()
}

fn describe(name: &Name, trigger: &KnownTrigger, state: Option<&TriggerState>) -> Trigger {
    let time_ms = now_ms();
    let TriggerRecord { spec, created_at_ms, changed_at_ms, .. } = &trigger.record;
    let after_ms = trigger.base_ms(state, time_ms).max(time_ms);
    let next_at_ms = match &trigger.plan {
        Ok(plan) if spec.enabled => {
            plan.schedule().map(|schedule| schedule.upcoming(after_ms, UPCOMING)).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let missing = state.and_then(|state| state.error.clone());
    let missing = missing.filter(|_| spec.enabled && trigger.stream().is_some());
    Trigger {
        name: name.clone(),
        spec: spec.clone(),
        created_at_ms: *created_at_ms,
        changed_at_ms: *changed_at_ms,
        next_at_ms,
        last: state.and_then(|state| state.last.clone()),
        ticks: state.map(|state| state.ticks).unwrap_or_default(),
        error: trigger.plan.as_ref().err().cloned().or(missing),
    }
}
