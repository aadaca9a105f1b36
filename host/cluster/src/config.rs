//! Configuration of a node in a cluster.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_tls::NodeTlsConfig;

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
    /// Fetching of models before their first use.
    pub prefetch: PrefetchConfig,
    /// Grace period of unreferenced blobs, before they are set aside and again before they are
    /// removed. It must be longer than any deploy takes. The dispatcher checks four times per grace
    /// period, at least hourly.
    pub blob_grace_ms: u64,
    /// Mutual TLS between the nodes, by certificates of an authority of the cluster.
    pub tls: NodeTlsConfig,
    /// TLS to etcd (`etcds://`): its authority, and the node's client certificate.
    pub etcd: EtcdTlsConfig,
    /// File with the shared secret of the nodes, for networks that need no TLS: at least 16
    /// characters, the same on all nodes. None is allowed with `tls`, and on loopback.
    pub secret_file: Option<PathBuf>,
    /// Address at which other nodes reach this node, as `HOST:PORT`. None: the listen address.
    pub advertise: Option<String>,
    /// Age at which the dispatcher discards the history of etcd, for all its users. At 0 it discards
    /// nothing, for an etcd that compacts itself.
    pub history_ms: u64,
    /// Lease of the node: the time until the cluster drops a node that etcd does not hear from, and
    /// so the longest time that the cluster may be without a dispatcher. A dispatcher whose process
    /// has ended is replaced at once.
    pub lease_ms: u64,
    /// Interval of the heartbeats between cooperating nodes.
    pub heartbeat_ms: u64,
    /// Silence after which a cooperating node counts as lost.
    pub heartbeat_timeout_ms: u64,
    /// Longest wait of a deploy or push until the other nodes serve it. The response names the nodes
    /// that do not. At 0, deploys do not wait, and name no nodes.
    pub visible_wait_ms: u64,
    /// The largest number of a node that this process has seen in the cluster. The node takes a
    /// larger one: data that replaced the data of etcd may count from an earlier state.
    #[serde(skip)]
    pub known_nodes_max: u32,
}

/// Fetching of models from the blob store before their first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefetchConfig {
    /// Models that are fetched at the same time. At 0, the first load of a model fetches it.
    pub concurrency: usize,
    /// Part of `cache_bytes_max`, in percent, above which nothing is fetched ahead.
    pub cache_percent_max: u8,
    /// Free space of the disk, in addition to `gateway.disk_free_bytes_min`, below which nothing is
    /// fetched ahead.
    pub free_bytes_min: u64,
}

/// TLS to etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdTlsConfig {
    /// PEM file of the authority of etcd's certificates. None: the system's authorities.
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate that etcd demands (`--client-cert-auth`).
    pub certificate: Option<PathBuf>,
    /// PEM file of the certificate's private key, which other users of the machine must not be able
    /// to read.
    pub key: Option<PathBuf>,
}

impl Default for PrefetchConfig {
    fn default() -> Self {
        Self { concurrency: 2, cache_percent_max: 50, free_bytes_min: 4 << 30 }
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            datastore: String::new(),
            blobs: String::new(),
            cache_bytes_max: 64 << 30,
            prefetch: PrefetchConfig::default(),
            blob_grace_ms: 24 * 3_600 * 1_000,
            tls: NodeTlsConfig::default(),
            etcd: EtcdTlsConfig::default(),
            secret_file: None,
            advertise: None,
            history_ms: 3_600 * 1_000,
            lease_ms: 3_000,
            heartbeat_ms: 500,
            heartbeat_timeout_ms: 2_000,
            visible_wait_ms: 1_000,
            known_nodes_max: 0,
        }
    }
}
