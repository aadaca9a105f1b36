//! Triggers: requests that a node sends on a schedule, for messages of a stream, or for events, as
//! shown by `/v1/triggers`.

mod sources;
pub use sources::{EventsSource, NatsSource, StreamStart, TriggerSource};

use super::InvocationStatus;
use crate::{AsyncId, Name, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Header of a request that a trigger sends: the name of the trigger.
pub const TRIGGER_HEADER: &str = "weir-trigger";

/// Header of a request that a trigger sends: the scheduled time of the tick, as RFC 3339 in UTC.
/// Requests that were sent by hand lack it.
pub const SCHEDULED_AT_HEADER: &str = "weir-scheduled-at";

/// Time for which `run-once` makes up a missed tick, unless the trigger sets another.
pub const MISSED_AGE_MS_DEFAULT: u64 = 24 * 3_600_000;

/// Body of `PUT /v1/triggers/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerSpec {
    /// Cause of the ticks.
    #[serde(deserialize_with = "crate::json_object")]
    pub source: TriggerSource,
    /// Recipient of the requests.
    #[serde(deserialize_with = "crate::json_object")]
    pub target: TriggerTarget,
    /// Request of each tick.
    #[serde(default, deserialize_with = "crate::json_object")]
    pub request: TriggerRequest,
    /// Whether ticks send requests; false for a paused trigger.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Treatment of ticks that passed while no node could send their request.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// Largest age of a missed tick that [`MissedPolicy::RunOnce`] makes up.
    #[serde(default = "missed_age_ms_default")]
    pub missed_age_ms_max: u64,
    /// Treatment of a tick while the invocation of the tick before has not ended.
    #[serde(default)]
    pub overlap: OverlapPolicy,
}

/// Recipient of a trigger's requests: one of `function` and `inference`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerTarget {
    /// Function, called by its path below `/fn/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Name>,
    /// Model, workflow or tensor function, called by the Open Inference Protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<Name>,
    /// Version of the model; `None` for the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

impl TriggerTarget {
    /// The name of the target; `None` if the target is invalid.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.function.as_ref().xor(self.inference.as_ref())
    }
}

impl fmt::Display for TriggerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().map_or("", Name::as_str);
        let version = self.version.map(|version| format!(":{version}")).unwrap_or_default();
        f.pad(&format!("{name}{version}"))
    }
}

/// Request of a tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggerRequest {
    /// HTTP method.
    pub method: String,
    /// Path and query below the function, such as `/reports?kind=daily`.
    pub path: String,
    /// Headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Body in base64, instead of `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

impl Default for TriggerRequest {
    fn default() -> Self {
        Self {
            method: "POST".to_owned(),
            path: "/".to_owned(),
            headers: BTreeMap::new(),
            body: None,
            body_base64: None,
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// The value as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// Treatment of ticks that passed while no node could send their request.
    #[derive(Default)]
    MissedPolicy {
        /// Skips missed ticks.
        #[default]
        Skip = "skip",
        /// Sends one request for the latest missed tick.
        RunOnce = "run-once",
    }
}

words! {
    /// Treatment of a tick while the invocation of the tick before has not ended.
    #[derive(Default)]
    OverlapPolicy {
        /// Sends the request.
        #[default]
        Allow = "allow",
        /// Skips the tick.
        Skip = "skip",
    }
}

words! {
    /// Outcome of a tick.
    TickOutcome {
        /// The request was accepted as an asynchronous invocation.
        Fired = "fired",
        /// Skipped, because the invocation of an earlier tick had not ended.
        Overlapped = "overlapped",
        /// Skipped, because no node could send the request in time.
        Missed = "missed",
        /// The request was refused.
        Failed = "failed",
    }
}

/// A trigger, with its latest tick and its next ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// Name of the trigger, unique within its tenant.
    pub name: Name,
    /// Settings. Lists leave out the body of the request.
    pub spec: TriggerSpec,
    /// Time of creation.
    pub created_at_ms: u64,
    /// Time of the latest change of the settings.
    pub changed_at_ms: u64,
    /// Times of the next ticks; empty for a paused trigger.
    pub next_at_ms: Vec<u64>,
    /// The latest tick, message or event, or the latest request that was sent by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<TriggerTick>,
    /// Ticks and requests of messages and events since the creation, by outcome.
    pub ticks: TickCounts,
    /// Reason why the schedule cannot be computed on this node, such as a missing time zone, or why no
    /// messages arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A tick of a trigger, or a request for a message or an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerTick {
    /// Scheduled time; `None` for messages, events and requests that were sent by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at_ms: Option<u64>,
    /// Time at which a node handled the tick.
    pub at_ms: u64,
    /// Outcome.
    pub outcome: TickOutcome,
    /// The asynchronous invocation, if the tick fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<AsyncId>,
    /// Progress of the invocation; `None` in lists and if the invocation was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<InvocationStatus>,
    /// Reason why the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Answer of `POST /v1/triggers/{name}/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedEvents {
    /// The asynchronous invocations of the events that the trigger is for, in the order of the events.
    pub invocations: Vec<AsyncId>,
    /// Events of other types and subjects.
    pub skipped: usize,
    /// Events that are refused however often they are sent, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// Number of ticks, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TickCounts {
    /// Ticks that fired.
    pub fired: u64,
    /// Ticks that were skipped because of an earlier one.
    pub overlapped: u64,
    /// Ticks that no node could handle in time; at most 1,000 are counted for each outage.
    pub missed: u64,
    /// Ticks whose request was refused.
    pub failed: u64,
}

impl TickCounts {
    /// Adds the counts of others.
    pub fn merge(&mut self, other: Self) {
        let Self { fired, overlapped, missed, failed } = other;
        for (outcome, ticks) in [
            (TickOutcome::Fired, fired),
            (TickOutcome::Overlapped, overlapped),
            (TickOutcome::Missed, missed),
            (TickOutcome::Failed, failed),
        ] {
            self.add(outcome, ticks);
        }
    }

    /// Counts ticks with this outcome.
    pub fn add(&mut self, outcome: TickOutcome, ticks: u64) {
        let count = match outcome {
            TickOutcome::Fired => &mut self.fired,
            TickOutcome::Overlapped => &mut self.overlapped,
            TickOutcome::Missed => &mut self.missed,
            TickOutcome::Failed => &mut self.failed,
        };
        *count = count.saturating_add(ticks);
    }
}

const fn yes() -> bool {
    true
}

const fn missed_age_ms_default() -> u64 {
    MISSED_AGE_MS_DEFAULT
}
