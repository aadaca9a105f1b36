//! Mutual TLS between the nodes of a cluster.
//!
//! Each node has a certificate of the cluster's authority, and accepts only nodes that have one. The
//! files are followed: a node that the revocation list names is refused from the next look on, also
//! on connections that are open.

use crate::files::{Stamp, read_certificates, read_crls, read_key};
use crate::{NodeTlsConfig, TlsError, provider};
use parking_lot::Mutex;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// The protocol by which nodes mark their connections to other nodes. The same port serves clients.
pub const NODE_PROTOCOL: &[u8] = b"weir-node";

/// A node's identity in its cluster, and the authority that it trusts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeIdentity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: NodeFiles,
    current: Mutex<Current>,
    /// Number of changes of the files.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone)]
struct NodeFiles {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    crl: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Current {
    loaded: Loaded,
    stamp: Stamp,
}

/// TLS settings made from the files of certificates, key and revocations.
#[derive(Debug, Clone)]
struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The node at the other end of a connection, which has shown a certificate of the cluster.
#[derive(Debug, Clone)]
pub struct NodePeer {
    chain: Arc<[CertificateDer<'static>]>,
}

impl NodeFiles {
    fn from_config(config: &NodeTlsConfig) -> Result<Option<Self>, TlsError> {
        if !config.is_enabled() {
            return Ok(None);
        }
        let given = |path: &Option<PathBuf>, key| path.clone().ok_or(TlsError::IncompleteNode(key));
        Ok(Some(Self {
            ca: given(&config.ca, "cluster.tls.ca")?,
            certificate: given(&config.certificate, "cluster.tls.certificate")?,
            key: given(&config.key, "cluster.tls.key")?,
            crl: config.crl.clone(),
        }))
    }

    fn paths(&self) -> Vec<PathBuf> {
        let crl = self.crl.iter().cloned();
        [self.ca.clone(), self.certificate.clone(), self.key.clone()].into_iter().chain(crl).collect()
    }

    fn read(&self) -> Result<Loaded, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in read_certificates(&self.ca)? {
            let why = |error: rustls::Error| TlsError::Certificate {
                path: self.ca.clone(),
                why: error.to_string(),
            };
            roots.add(authority).map_err(why)?;
        }
        let roots = Arc::new(roots);
        let chain = read_certificates(&self.certificate)?;
        let key = read_key(&self.key)?;
        let crls = self.crl.as_deref().map(read_crls).transpose()?.unwrap_or_default();
        let unusable = |why: String| TlsError::Certificate { path: self.ca.clone(), why };
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(crls.clone())
            .only_check_end_entity_revocation()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let of_servers = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .with_crls(crls)
            .only_check_end_entity_revocation()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let mismatch = |source| TlsError::Mismatch {
            key: self.key.clone(),
            certificate: self.certificate.clone(),
            source,
        };
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Protocol)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        server.alpn_protocols = vec![NODE_PROTOCOL.to_vec()];
        // A resumed session would skip the checks of the certificate and of its revocation.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Protocol)?
            .with_webpki_verifier(of_servers)
            .with_client_auth_cert(chain, key)
            .map_err(mismatch)?;
        client.alpn_protocols = vec![NODE_PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Loaded { server: Arc::new(server), client: Arc::new(client), verifier })
    }
}

impl NodeIdentity {
    /// Reads the files that a configuration names; `None` if it names none. Blocks.
    ///
    /// # Errors
    /// If one of the files is not configured or cannot be used.
    pub fn load(config: &NodeTlsConfig) -> Result<Option<Self>, TlsError> {
        let Some(files) = NodeFiles::from_config(config)? else { return Ok(None) };
        // Before the files are read: a change meanwhile is noticed by the next look.
        let stamp = Stamp::take(&files.paths());
        let current = Mutex::new(Current { loaded: files.read()?, stamp });
        Ok(Some(Self(Arc::new(Shared { files, current, changes: watch::Sender::new(0) }))))
    }

    /// Reads the files if they have changed since the last look, or in any case with `force`. Returns
    /// whether it has read them. Blocks.
    ///
    /// # Errors
    /// If the new contents cannot be used; the old ones stay in use.
    pub fn reload(&self, force: bool) -> Result<bool, TlsError> {
        let stamp = Stamp::take(&self.0.files.paths());
        if !force && self.0.current.lock().stamp == stamp {
            return Ok(false);
        }
        let read = self.0.files.read();
        let mut current = self.0.current.lock();
        current.stamp = stamp;
        current.loaded = read?;
        drop(current);
        self.0.changes.send_modify(|changes| *changes += 1);
        Ok(true)
    }

    /// The server's side of connections from other nodes.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.0.current.lock().loaded.server.clone()
    }

    /// The client's side of connections to other nodes.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        self.0.current.lock().loaded.client.clone()
    }

    /// Changes whenever the files have been read again.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Returns once `peer` is no longer trusted, because its certificate was revoked or its
    /// authority removed.
    pub async fn until_distrusted(&self, peer: &NodePeer) {
        let mut changes = self.changes();
        while self.trusts(peer) {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn trusts(&self, peer: &NodePeer) -> bool {
        let verifier = self.0.current.lock().loaded.verifier.clone();
        let Some((certificate, others)) = peer.chain.split_first() else { return false };
        verifier.verify_client_cert(certificate, others, UnixTime::now()).is_ok()
    }
}

impl NodePeer {
    /// The node with this chain of certificates, which the handshake has verified.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'static>]) -> Self {
        Self { chain: chain.into() }
    }
}
