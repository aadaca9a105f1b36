//! Configuration of TLS.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// TLS of the node's listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file of the node's certificate, followed by those of the authorities between it and the
    /// root. None: the listener speaks plain HTTP.
    pub certificate: Option<PathBuf>,
    /// PEM file of the certificate's private key, which other users of the machine must not be able
    /// to read.
    pub key: Option<PathBuf>,
    /// Interval at which the node looks for new contents of the files. It also reads them on SIGHUP.
    pub reload_ms: u64,
    /// Longest time of a handshake, including the time to wait for a turn.
    pub handshake_timeout_ms: u64,
    /// Handshakes at once; further connections wait for a turn. One remote address may have a
    /// quarter of them.
    pub handshakes_max: usize,
}

/// Mutual TLS between the nodes of a cluster, instead of a shared secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTlsConfig {
    /// PEM file of the cluster's certificate authority: each holder of a certificate of it is a node,
    /// so it must issue no other certificates.
    pub ca: Option<PathBuf>,
    /// PEM file of this node's certificate, for the host of `advertise` and for both sides of TLS
    /// (`serverAuth` and `clientAuth`).
    pub certificate: Option<PathBuf>,
    /// PEM file of the certificate's private key, which other users of the machine must not be able
    /// to read.
    pub key: Option<PathBuf>,
    /// PEM file of the authority's revocation list. Nodes in it are refused.
    pub crl: Option<PathBuf>,
    /// Address of the authority's server, as `HOST[:PORT]`. `weir up` renews `certificate` and `crl`
    /// there. None: the operator renews the files.
    pub authority: Option<String>,
    /// Interval at which the node asks the authority.
    pub renew_ms: u64,
}

impl Default for NodeTlsConfig {
    fn default() -> Self {
        Self { ca: None, certificate: None, key: None, crl: None, authority: None, renew_ms: 3_600_000 }
    }
}

impl NodeTlsConfig {
    /// Whether nodes authenticate by certificates.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        [&self.ca, &self.certificate, &self.key, &self.crl].into_iter().any(Option::is_some)
    }
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificate: None,
            key: None,
            reload_ms: 10_000,
            handshake_timeout_ms: 10_000,
            handshakes_max: 512,
        }
    }
}

impl TlsConfig {
    /// Whether the listener speaks TLS to clients.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.certificate.is_some() || self.key.is_some()
    }
}
