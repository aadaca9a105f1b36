//! Local test cluster: several nodes with their own etcd and S3 bucket.

use crate::{Authority, Etcd, Issued, NodeBuilder, S3, TestNode, eventually};
use std::sync::atomic::{AtomicU32, Ordering};
use weir_types::api::ClusterStatus;

/// Running cluster. Tests may add, stop and kill nodes.
pub struct TestCluster {
    /// The datastore.
    pub etcd: Etcd,
    /// The blob store.
    pub s3: S3,
    /// The nodes. Tests remove a node before they kill or stop it.
    pub nodes: Vec<TestNode>,
    /// Authority of the nodes' certificates, for a cluster with mutual TLS.
    pub authority: Option<Authority>,
    /// Number of certificates that were issued to nodes.
    issued: AtomicU32,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

/// Builder of a [`TestCluster`].
#[derive(Default)]
pub struct ClusterBuilder {
    has_mutual_tls: bool,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl TestCluster {
    /// Returns a builder with the default settings, except for short leases, and that nodes fetch no
    /// models ahead: tests decide which nodes have the files of a model.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default().set("cluster.lease_ms", 2_000).set("cluster.prefetch.concurrency", 0)
    }

    /// Returns a builder of a further node for this cluster, with a new certificate if the nodes have
    /// certificates.
    #[must_use]
    pub fn node(&self) -> NodeBuilder {
        let Some(authority) = &self.authority else { return self.node_without_certificate() };
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        self.node_with(authority, &authority.issue(&format!("node-{number}"), &["127.0.0.1"]))
    }

    /// Returns a builder of a node with this certificate, which trusts `authority`.
    #[must_use]
    pub fn node_with(&self, authority: &Authority, issued: &Issued) -> NodeBuilder {
        self.node_without_certificate()
            .set("cluster.tls.ca", authority.file().display())
            .set("cluster.tls.certificate", issued.certificate.display())
            .set("cluster.tls.key", issued.key.display())
            .set("cluster.tls.crl", authority.crl().display())
    }

    fn node_without_certificate(&self) -> NodeBuilder {
        let mut node = TestNode::builder()
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

    /// Waits until all nodes are connected to one dispatcher, and returns its index in `nodes`.
    pub async fn settle(&self) -> usize {
        let nodes: Vec<&TestNode> = self.nodes.iter().collect();
        settled(&nodes).await
    }

    /// Like [`settle`](Self::settle), with nodes that are not in `nodes`; returns the dispatcher.
    pub async fn settle_with<'a>(&'a self, others: &[&'a TestNode]) -> &'a TestNode {
        let nodes: Vec<&'a TestNode> = self.nodes.iter().chain(others.iter().copied()).collect();
        let dispatcher = settled(&nodes).await;
        nodes[dispatcher]
    }

    /// Returns the sum of a counter or gauge over all nodes.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let mut sum = 0.0;
        for node in &self.nodes {
            sum += node.metric(name, label).await;
        }
        sum
    }

    /// Returns the index of the first node that has `model` in memory.
    pub async fn holder(&self, model: &str) -> Option<usize> {
        for (at, node) in self.nodes.iter().enumerate() {
            let devices = node.status().await.devices;
            if devices.iter().any(|device| device.resident.iter().any(|resident| resident == model)) {
                return Some(at);
            }
        }
        None
    }

    /// Waits until every node knows the function.
    pub async fn all_know(&self, function: &str) {
        for node in &self.nodes {
            eventually("the news of a deploy", async || node.function(function).await.ok()).await;
        }
    }

    /// Waits until every node knows the model.
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
    /// Sets a `[node]` setting on every node.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Sets an environment variable for every node.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Gives each node a certificate of one authority, instead of a shared secret.
    #[must_use]
    pub fn mutual_tls(self) -> Self {
        Self { has_mutual_tls: true, ..self.set("gateway.tls.reload_ms", 50) }
    }

    /// Starts a cluster with `nodes` nodes, and waits until it has a dispatcher.
    pub async fn start(self, nodes: usize) -> TestCluster {
        let mut cluster = TestCluster {
            etcd: Etcd::start(),
            s3: S3::start().await,
            nodes: Vec::new(),
            authority: self.has_mutual_tls.then(|| Authority::new("authority of the cluster")),
            issued: AtomicU32::new(0),
            settings: self.settings,
            environment: self.environment,
        };
        cluster.etcd.listening().await;
        let first = cluster.node().start().await;
        cluster.nodes.push(first);
        let others = (1..nodes).map(|_| cluster.node().start());
        let others = futures::future::join_all(others).await;
        cluster.nodes.extend(others);
        cluster.settle().await;
        cluster
    }
}

/// The cluster's status, as one node reports it.
async fn status(node: &TestNode) -> ClusterStatus {
    node.status().await.cluster.expect("the node is one of a cluster")
}

/// Waits until all `nodes` are connected to one dispatcher, and returns its index.
async fn settled(nodes: &[&TestNode]) -> usize {
    eventually("one dispatcher that all nodes ask", async || {
        let mut dispatcher = None;
        for (at, node) in nodes.iter().enumerate() {
            let status = status(node).await;
            if status.dispatcher == Some(status.node) && status.linked.len() + 1 == nodes.len() {
                dispatcher = Some((at, status.node));
            }
        }
        let (at, dispatcher) = dispatcher?;
        for (other, node) in nodes.iter().enumerate() {
            let status = status(node).await;
            let is_settled = status.dispatcher == Some(dispatcher) && (other == at || status.asks_dispatcher);
            is_settled.then_some(())?;
        }
        Some(at)
    })
    .await
}
