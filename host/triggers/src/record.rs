//! The datastore's records of triggers: settings, which clients change, and states, which ticks
//! change.

use crate::TriggerError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_datastore::{Entry, Key, KeyError, Prefix};
use weir_types::api::{TickCounts, TriggerSpec, TriggerTick};
use weir_types::{AsyncId, Name, TenantId};

/// Settings of a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TriggerRecord {
    pub(crate) spec: TriggerSpec,
    pub(crate) created_at_ms: u64,
    pub(crate) changed_at_ms: u64,
    /// Time after which the first tick follows: the creation, the latest change of the schedule, or
    /// the latest resumption.
    pub(crate) since_ms: u64,
}

/// State of a trigger; none before its first tick.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TriggerState {
    /// Scheduled time of the latest tick with an outcome.
    pub(crate) ticked_at_ms: u64,
    /// The latest tick or request by hand.
    pub(crate) last: Option<TriggerTick>,
    /// The latest invocation.
    pub(crate) invocation: Option<AsyncId>,
    pub(crate) ticks: TickCounts,
    /// Why no messages arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Name of a trigger and its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TriggerId {
    pub(crate) tenant: TenantId,
    pub(crate) name: Name,
}

/// A key below [`prefix`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TriggerKey {
    Spec(TriggerId),
    State(TriggerId),
}

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain structs of strings and numbers: serialization cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, TriggerError> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| TriggerError::Damaged { key: entry.key.clone(), why: error.to_string() })
}

/// The prefix of all records.
pub(crate) fn prefix() -> Result<Prefix, KeyError> {
    Prefix::new("triggers/")
}

impl TriggerId {
    pub(crate) fn spec_key(&self) -> Result<Key, KeyError> {
        Key::new(&format!("triggers/specs/{}/{}", self.tenant, self.name))
    }

    pub(crate) fn state_key(&self) -> Result<Key, KeyError> {
        Key::new(&format!("triggers/states/{}/{}", self.tenant, self.name))
    }
}

impl TriggerKey {
    pub(crate) fn parse(key: &Key) -> Option<Self> {
        let path: Vec<_> = key.as_str().split('/').collect();
        let ["triggers", kind, tenant, name] = path[..] else { return None };
        let id = TriggerId { tenant: TenantId::new(tenant).ok()?, name: Name::new(name).ok()? };
        match kind {
            "specs" => Some(Self::Spec(id)),
            "states" => Some(Self::State(id)),
            _ => None,
        }
    }
}
