//! Events of nodes: changes and failures that concern operators and owners.

use crate::{NodeId, TenantId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Something that happened on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event on its node; a restart of the node begins again with 1.
    pub number: u64,
    /// Time of the latest occurrence.
    pub at_ms: u64,
    /// Time of the first occurrence.
    pub first_at_ms: u64,
    /// Occurrences: a node counts repeated events instead of keeping each of them.
    pub count: u64,
    /// The node, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Owner of the resource; `None` for events of nodes and devices, which all tenants see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// What happened.
    pub kind: EventKind,
    /// Kind of the resource.
    pub resource: EventResource,
    /// Name of the resource: `hello`, `digits:3`, `cuda:0`, `2`.
    pub name: String,
    /// Description.
    pub text: String,
}

/// Response of `GET /v1/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// Events, oldest first.
    pub events: Vec<Event>,
    /// Nodes of the cluster that did not answer; their events are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<NodeId>,
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
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value as it is written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
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
    /// What happened. Displayed in kebab case.
    EventKind {
        /// A version of a function or workflow was deployed, or one of a model pushed.
        Deployed = "deployed",
        /// An earlier version was restored.
        RolledBack = "rolled-back",
        /// A new version gets a share of the calls.
        CanaryStarted = "canary-started",
        /// A canary became the active version.
        CanaryPromoted = "canary-promoted",
        /// A canary gets no calls any more.
        CanaryRolledBack = "canary-rolled-back",
        /// An alias of a version was set or removed.
        AliasChanged = "alias-changed",
        /// A name or version was removed.
        Removed = "removed",
        /// Calls of a function or model failed by its own fault.
        Fault = "fault",
        /// A model was removed from a device's memory to make room, or because it was idle.
        Evicted = "evicted",
        /// A model is not run any more, because it ended its worker process repeatedly.
        Quarantined = "quarantined",
        /// The quarantine of a model was ended.
        Released = "released",
        /// A device was lost.
        DeviceLost = "device-lost",
        /// A lost device works again.
        DeviceRecovered = "device-recovered",
        /// A node has started, or joined its cluster.
        NodeJoined = "node-joined",
        /// A node has left its cluster, or was lost.
        NodeLeft = "node-left",
        /// A node became the dispatcher of the cluster.
        Elected = "elected",
    }
}

words! {
    /// Kind of the resource that an event is about. Displayed in kebab case.
    EventResource {
        /// A function.
        Function = "function",
        /// A model.
        Model = "model",
        /// A kernel graph.
        KernelGraph = "kernel-graph",
        /// A workflow.
        Workflow = "workflow",
        /// A trigger.
        Trigger = "trigger",
        /// A device of a node.
        Device = "device",
        /// A node.
        Node = "node",
    }
}

/// The text is no kind of event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no kind of event; the kinds are {list}", list = EventKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", "))]
pub struct UnknownEventKind(String);

impl FromStr for EventKind {
    type Err = UnknownEventKind;

    fn from_str(text: &str) -> Result<Self, UnknownEventKind> {
        let found = Self::ALL.iter().find(|kind| kind.as_str() == text);
        found.copied().ok_or_else(|| UnknownEventKind(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_json_form() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_string(kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(kind.as_str().parse(), Ok(*kind));
        }
        for resource in EventResource::ALL {
            assert_eq!(serde_json::to_string(resource).unwrap(), format!("\"{resource}\""));
        }
        let error = "exploded".parse::<EventKind>().unwrap_err().to_string();
        assert!(error.contains("\"exploded\"") && error.contains("node-joined"), "{error}");
    }
}
