//! Configuration of a node in a cluster.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Cluster membership of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Datastore that the nodes share for coordination and deployed state:
    /// `etcd://HOST[:PORT][,HOST[:PORT]...][/ROOT]`.
    pub datastore: String,
    /// Blob store of components and models: `s3://BUCKET[/PREFIX]`, with endpoint and credentials
    /// from the `AWS_*` environment variables, or `file:///FOLDER` for a folder that all nodes
    /// share.
    pub blobs: String,
    /// Size of each of the node's two local caches, for components and for models. It must be at
    /// least the size of the largest model.
    pub cache_bytes_max: u64,
    /// Grace period of unreferenced blobs, before they are set aside and again before they are
    /// removed. It must be longer than any deploy takes. The dispatcher checks four times per grace
    /// period, at least hourly.
    pub blob_grace_ms: u64,
    /// File with the shared secret of the nodes: at least 16 characters, the same on all nodes.
    /// None is allowed only on loopback.
    pub secret_file: Option<PathBuf>,
    /// Address at which other nodes reach this node, as `HOST:PORT`. None: the listen address.
    pub advertise: Option<String>,
    /// Age at which the dispatcher discards the history of etcd, for all its users. At 0 it discards
    /// nothing, for an etcd that compacts itself.
    pub history_ms: u64,
    /// Lease of the node: the time until the cluster drops a node that etcd does not hear from, and
    /// so the longest time that the cluster may be without a dispatcher.
    pub lease_ms: u64,
    /// Interval of the heartbeats between cooperating nodes.
    pub heartbeat_ms: u64,
    /// Silence after which a cooperating node counts as lost.
    pub heartbeat_timeout_ms: u64,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            datastore: String::new(),
            blobs: String::new(),
            cache_bytes_max: 64 << 30,
            blob_grace_ms: 24 * 3_600 * 1_000,
            secret_file: None,
            advertise: None,
            history_ms: 3_600 * 1_000,
            lease_ms: 3_000,
            heartbeat_ms: 500,
            heartbeat_timeout_ms: 2_000,
        }
    }
}
