//! Messages between nodes: those of links, and headers of forwarded calls.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_call::Objective;
use weir_types::Ordinal;
use weir_types::{InvocationId, ModelId, ModelRef, NodeId, TenantId, Version};

pub(crate) use weir_link::{AnnouncedInvocation, DispatcherCommand, Hello, NodeEvent, PROTOCOL};
pub use weir_link::{AnnouncedModel, StagedModel};

/// The largest number of running invocations in one message.
pub(crate) const RUNNING_PER_MESSAGE: usize = 100;

/// The largest number of models in one message about where models are.
pub(crate) const STAGED_PER_MESSAGE: usize = 500;

/// The terms of a forwarded call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForwardGrant {
    /// The id of the invocation that runs the call.
    pub invocation: InvocationId,
    /// The tenant that the call runs for.
    pub tenant: TenantId,
    /// The version of the function that the name pointed at on the node that received the call.
    pub version: Version,
    /// The time until the call's deadline.
    pub deadline_in_ms: u64,
    /// The time for which outputs that stay on the node are kept: until the end of the enclosing
    /// run.
    #[serde(default)]
    pub left_for_ms: u64,
    /// Whether the call is a step of a workflow: the objective is the workflow's then.
    #[serde(default)]
    pub is_step: bool,
    /// The versions that the call uses of models that it names without a version or by an alias; empty
    /// if no model has a canary or an alias.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub chosen: BTreeMap<ModelRef, Version>,
    /// Whether the call offers a WebSocket, whose bodies have no limit of their size.
    #[serde(default)]
    pub is_websocket: bool,
    /// The device and models that the call may use.
    pub granted: Granted,
}

impl ForwardGrant {
    /// The objective of a call that arrived with `grant`; `own` is the objective in the manifest.
    pub fn objective(grant: Option<&Self>, own: impl Into<Objective>) -> Objective {
        match grant {
            Some(grant) if grant.is_step => Objective::default(),
            _ => own.into(),
        }
    }
}

/// The share of a node's device that a call may use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Granted {
    /// The device; `None` if the call may open no models.
    #[serde(default)]
    pub device: Option<Ordinal>,
    /// The models that the call may open.
    pub models: Vec<ModelId>,
    /// The models that may be evicted to make room.
    pub evict: Vec<ModelId>,
    /// The node that received the call, if it has forwarded the call.
    #[serde(default)]
    pub origin: Option<NodeId>,
    /// The expected time from the placement to the end, if the call was placed on this device.
    #[serde(default)]
    pub estimate_ns: Option<u64>,
    /// Whether the call runs here because it did not run where it was placed: the scheduler does
    /// not know that it runs here.
    #[serde(skip)]
    pub is_fallback: bool,
}
