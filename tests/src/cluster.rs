//! A cluster under test: several nodes on this machine, with an etcd and a bucket of their own.

use crate::{Etcd, Node, NodeBuilder, S3, eventually};
use weir_types::api::ClusterStatus;

/// A running cluster. Its nodes are whatever a test makes of them.
pub struct Cluster {
    /// The datastore.
    pub etcd: Etcd,
    /// The store of blobs.
    pub s3: S3,
    /// The nodes; those that a test kills or stops it takes out.
    pub nodes: Vec<Node>,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

/// A cluster to be.
#[derive(Default)]
pub struct ClusterBuilder {
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl Cluster {
    /// A cluster whose nodes have the default settings, but for short leases.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default().set("cluster.lease_ms", 2_000)
    }

    /// A node that is to join.
    #[must_use]
    pub fn node(&self) -> NodeBuilder {
        let mut node = Node::builder()
            .argument("--datastore")
            .argument(self.etcd.url())
            .argument("--blobs")
            .argument(self.s3.url());
        for (key, value) in &self.settings {
            node = node.set(key, value);
        }
        for (name, value) in self.s3.environment() {
            node = node.env(name, value);
        }
        for (name, value) in &self.environment {
            node = node.env(name, value);
        }
        node
    }

    /// Wait until every node asks one dispatcher, which is one of them. Returns its place among the nodes.
    pub async fn settle(&self) -> usize {
        eventually("one dispatcher that all nodes ask", async || {
            let mut dispatcher = None;
            for (at, node) in self.nodes.iter().enumerate() {
                let status = status(node).await;
                let linked = status.linked.len();
                if status.dispatcher == Some(status.node) && linked + 1 == self.nodes.len() {
                    dispatcher = Some((at, status.node));
                }
            }
            let (at, dispatcher) = dispatcher?;
            for (other, node) in self.nodes.iter().enumerate() {
                let status = status(node).await;
                let is_settled =
                    status.dispatcher == Some(dispatcher) && (other == at || status.asks_dispatcher);
                is_settled.then_some(())?;
            }
            Some(at)
        })
        .await
    }

    /// The sum of a counter or gauge over all nodes.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let mut sum = 0.0;
        for node in &self.nodes {
            sum += node.metric(name, label).await;
        }
        sum
    }

    /// The place among the nodes of the one that has `model` in memory.
    pub async fn holder(&self, model: &str) -> Option<usize> {
        for (at, node) in self.nodes.iter().enumerate() {
            let devices = node.status().await.devices;
            if devices.iter().any(|device| device.resident.iter().any(|resident| resident == model)) {
                return Some(at);
            }
        }
        None
    }

    /// Wait until every node knows the function.
    pub async fn all_know(&self, function: &str) {
        for node in &self.nodes {
            eventually("the news of a deploy", async || node.function(function).await.ok()).await;
        }
    }

    /// Wait until every node knows the model.
    pub async fn all_have_heard_of(&self, model: &str) {
        for node in &self.nodes {
            eventually("the news of a push", async || {
                node.get(&format!("/v1/models/{model}")).await.is_ok().then_some(())
            })
            .await;
        }
    }
}

impl ClusterBuilder {
    /// Set one of the settings of `[node]` on every node.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Set a variable of every node's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Start it with so many nodes, and wait until they have a dispatcher.
    pub async fn start(self, nodes: usize) -> Cluster {
        let mut cluster = Cluster {
            etcd: Etcd::start(),
            s3: S3::start().await,
            nodes: Vec::new(),
            settings: self.settings,
            environment: self.environment,
        };
        // The first waits for etcd.
        let first =
            eventually("a node that reaches etcd", async || cluster.node().try_start().await.ok()).await;
        cluster.nodes.push(first);
        let others = (1..nodes).map(|_| cluster.node().start());
        let others = futures::future::join_all(others).await;
        cluster.nodes.extend(others);
        cluster.settle().await;
        cluster
    }
}

/// How a node sees its cluster.
async fn status(node: &Node) -> ClusterStatus {
    node.status().await.cluster.expect("the node is one of a cluster")
}
