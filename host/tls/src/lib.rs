//! TLS of a node: certificates that follow their files, the settings of handshakes, and mutual TLS
//! between nodes.

mod certificate;
mod config;
mod error;
mod files;
mod nodes;

pub use certificate::{Certificate, CertificateFiles};
pub use config::{NodeTlsConfig, TlsConfig};
pub use error::TlsError;
pub use nodes::{NODE_PROTOCOL, NodeIdentity, NodePeer};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use std::sync::Arc;

/// Protocols that a node offers to clients: HTTP/2, which gRPC needs, and HTTP/1.1.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The cryptography of all TLS connections of a node.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The server's side of TLS for clients, who authenticate by tokens.
///
/// # Errors
/// [`TlsError::Protocol`] if the cryptography lacks TLS 1.2 and 1.3.
pub fn server(certificate: &Certificate) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(TlsError::Protocol)?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(certificate.clone()));
    config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}
