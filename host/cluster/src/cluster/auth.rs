//! Authentication of nodes by each other: by certificates, or by a shared secret.

use super::secret::{SECRET, Secret};
use crate::ClusterConfig;
use anyhow::{Context, bail};
use http::{HeaderMap, Request};
use std::net::SocketAddr;
use weir_tls::{NodeIdentity, NodePeer};
use weir_types::ContentHash;

/// The way in which the cluster's nodes authenticate each other. Cheap to clone.
#[derive(Clone)]
pub enum NodeAuth {
    /// By certificates of the cluster's authority, over TLS.
    Tls(NodeIdentity),
    /// By a secret in a header, over plain HTTP.
    Secret(Secret),
}

impl NodeAuth {
    /// The configured way, for a node that listens on `listens`.
    pub(super) fn from_config(
        config: &ClusterConfig,
        identity: Option<NodeIdentity>,
        listens: SocketAddr,
        has_tokens: bool,
    ) -> anyhow::Result<Self> {
        if let Some(identity) = identity {
            if config.secret_file.is_some() {
                bail!(
                    "nodes authenticate by certificates (cluster.tls): remove --secret-file (cluster.secret_file)"
                );
            }
            return Ok(Self::Tls(identity));
        }
        const HELP: &str =
            "give each node a certificate ([node.cluster.tls]), or all nodes the same --secret-file FILE";
        if config.secret_file.is_none() && has_tokens {
            bail!("whoever passes for a node of the cluster needs no token; {HELP}");
        }
        if config.secret_file.is_none() && !listens.ip().is_loopback() {
            bail!("whoever reaches {listens} could pass for a node of the cluster; {HELP}");
        }
        let secret = Secret::read(config.secret_file.as_deref()).context("cannot authenticate nodes")?;
        Ok(Self::Secret(secret))
    }

    /// A fingerprint for the datastore by which nodes notice that they cannot authenticate each
    /// other.
    pub(super) fn mark(&self) -> ContentHash {
        match self {
            Self::Tls(_) => ContentHash::from_content(b"certificates of a cluster"),
            Self::Secret(secret) => secret.mark(),
        }
    }

    /// Adds the proof that a request comes from a node, if the connection is not the proof.
    pub(super) fn sign(&self, headers: &mut HeaderMap) {
        if let Self::Secret(secret) = self {
            headers.insert(SECRET, secret.header());
        }
    }

    /// Whether a request comes from a node of the cluster. Removes the proof.
    pub fn admits<B>(&self, request: &mut Request<B>) -> bool {
        match self {
            Self::Tls(_) => request.extensions_mut().remove::<NodePeer>().is_some(),
            Self::Secret(secret) => secret.is_shown(request.headers_mut()),
        }
    }

    /// The credential that the cluster requires of a node, for the error message to a client without
    /// it.
    #[must_use]
    pub fn needs(&self) -> &'static str {
        match self {
            Self::Tls(_) => "which show a certificate of the cluster's authority (cluster.tls)",
            Self::Secret(_) => "which show its secret (cluster.secret_file)",
        }
    }

    pub(super) fn identity(&self) -> Option<&NodeIdentity> {
        match self {
            Self::Tls(identity) => Some(identity),
            Self::Secret(_) => None,
        }
    }
}
