//! The state of a node, its devices and its cluster.

use crate::NodeId;
use serde::{Deserialize, Serialize};

/// Response of `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of Weir.
    pub version: String,
    /// `ready`, `unready` (the node cannot store data) or `draining` (the node shuts down).
    pub state: String,
    /// Uptime of the process.
    pub uptime_ms: u64,
    /// Deployed functions of the tenant, one per name.
    pub functions: u64,
    /// Models of the tenant.
    pub models: u64,
    /// Running invocations.
    pub running: u64,
    /// Waiting invocations.
    pub queued: u64,
    /// Pending and running asynchronous invocations, over all nodes of the cluster.
    #[serde(default)]
    pub async_queued: u64,
    /// The tenant's unreadable functions and models, with the reason. Deploying or pushing them
    /// again repairs them.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Devices of the node.
    pub devices: Vec<DeviceStatus>,
    /// The node's cluster; `None` for a standalone node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// The node's view of its cluster. Part of [`Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// ID of this node.
    pub node: NodeId,
    /// Address at which the other nodes reach this node.
    pub address: String,
    /// The node whose scheduler places calls; `None` while there is no dispatcher.
    pub dispatcher: Option<NodeId>,
    /// Whether this node asks a dispatcher on another node for placements. A node that neither asks
    /// nor is the dispatcher runs all calls locally.
    pub asks_dispatcher: bool,
    /// Nodes that ask this node for placements.
    pub linked: Vec<NodeId>,
    /// All nodes of the cluster.
    pub nodes: Vec<MemberStatus>,
}

/// One node of the cluster. Part of [`ClusterStatus`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// ID of the node.
    pub node: NodeId,
    /// Address of the node.
    pub address: String,
    /// The node's version of Weir.
    #[serde(default)]
    pub version: String,
    /// Running invocations, from the node's latest report.
    pub running: u64,
    /// Waiting invocations, from the node's latest report.
    pub queued: u64,
    /// Devices of the node; empty until the node's first report.
    pub devices: Vec<DeviceStatus>,
}

/// One device. Part of [`Status`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Name: `cpu`, `cuda:0`, ...
    pub name: String,
    /// Kind, the key of profiles and prices: `cpu`, or the model name of a GPU.
    #[serde(default)]
    pub kind: String,
    /// Backend that runs models on the device.
    pub backend: String,
    /// Limit of concurrent runs.
    pub slots: u32,
    /// Runs waiting for a slot.
    #[serde(default)]
    pub runs_waiting: u64,
    /// Memory available to models.
    pub capacity_bytes: u64,
    /// Memory used by models.
    pub used_bytes: u64,
    /// Resident models, as `name:version`.
    pub resident: Vec<String>,
    /// Use of the memory; `None` from nodes of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryMap>,
    /// Reason of a device loss. While the device is lost, the scheduler places no work on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// Use of a device's memory. Part of [`DeviceStatus`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMap {
    /// The tenant's resident models. Weights that several models share are divided among them.
    pub models: Vec<ModelBytes>,
    /// Memory of models that are loaded or unloaded now, and of models of other tenants.
    pub other_models_bytes: u64,
    /// Tensors that runs have left on the device for later runs.
    pub intermediates_bytes: u64,
    /// Memory that runs hold for their intermediate results, in addition to the memory for models. Up
    /// to a few seconds old.
    pub workspace_bytes: u64,
    /// Free memory for models.
    pub free_bytes: u64,
}

/// Memory of a model. Part of [`MemoryMap`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelBytes {
    /// The model, as `name:version`.
    pub model: String,
    /// Its bytes.
    pub bytes: u64,
}
