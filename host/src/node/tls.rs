//! TLS of the listener: the certificate for clients, the identity in the cluster, and their reload.

use crate::config::NodeConfig;
use anyhow::{Context, bail};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::MissedTickBehavior;
use weir_gateway::ListenerTls;
use weir_telemetry::Metrics;
use weir_tls::{Certificate, CertificateFiles, NodeIdentity};

/// The time before the end of a certificate's validity from which on the node warns, once per start
/// and reload.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3_600);

/// The certificates of a node. Cheap to clone.
#[derive(Clone)]
pub(super) struct NodeTls {
    /// For clients.
    certificate: Option<Certificate>,
    /// For the other nodes of the cluster.
    pub(super) identity: Option<NodeIdentity>,
    interval: Duration,
    metrics: Arc<Metrics>,
}

impl NodeTls {
    /// Reads the files that the configuration names.
    pub(super) async fn load(config: &NodeConfig, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let certificate = match CertificateFiles::from_config(&config.gateway.tls)? {
            None => None,
            Some(files) => {
                let loaded = tokio::task::spawn_blocking(move || Certificate::load(files)).await?;
                Some(loaded.context("cannot use the certificate for clients")?)
            }
        };
        let identity = match &config.cluster {
            None => None,
            Some(cluster) => {
                let files = cluster.tls.clone();
                let loaded = tokio::task::spawn_blocking(move || NodeIdentity::load(&files)).await?;
                loaded.context("cannot use the node's identity in the cluster")?
            }
        };
        if config.cluster.is_some() && certificate.is_some() && identity.is_none() {
            bail!(
                "clients speak TLS to this node, so other nodes must too: give it a certificate for them ([node.cluster.tls])"
            );
        }
        let interval = Duration::from_millis(config.gateway.tls.reload_ms.max(1));
        let tls = Self { certificate, identity, interval, metrics: metrics.clone() };
        tls.note_expiry();
        warn_of_plain_tokens(config.listen, config.token_file.is_some(), tls.has_clients());
        Ok(tls)
    }

    /// Who speaks TLS to the listener.
    pub(super) fn listener(&self) -> anyhow::Result<ListenerTls> {
        let clients = self.certificate.as_ref().map(weir_tls::server).transpose()?;
        Ok(ListenerTls { clients, nodes: self.identity.clone() })
    }

    /// Whether clients speak TLS.
    pub(super) fn has_clients(&self) -> bool {
        self.certificate.is_some()
    }

    /// Whether there are files to read again.
    pub(super) fn has_files(&self) -> bool {
        self.certificate.is_some() || self.identity.is_some()
    }

    /// Follows changes of the files.
    pub(super) async fn follow(self) {
        let mut tick = tokio::time::interval(self.interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.has_files() {
            tick.tick().await;
            self.reload(false).await;
        }
    }

    /// Reads the files if they have changed, or in any case with `force`.
    pub(super) async fn reload(&self, force: bool) {
        self.reload_certificate(force).await;
        self.reload_identity(force).await;
    }

    async fn reload_identity(&self, force: bool) {
        let Some(identity) = self.identity.clone() else { return };
        match tokio::task::spawn_blocking(move || identity.reload(force)).await {
            Ok(Ok(true)) => tracing::info!("the certificates of nodes were read again"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::error!(%error, "the old certificates of nodes stay in use"),
            Err(error) => tracing::error!(%error, "reading the certificates of nodes failed"),
        }
    }

    async fn reload_certificate(&self, force: bool) {
        let Some(certificate) = self.certificate.clone() else { return };
        match tokio::task::spawn_blocking(move || certificate.reload(force)).await {
            Ok(Ok(true)) => {
                tracing::info!("new connections get the new certificate");
                self.note_expiry();
            }
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::error!(%error, "the old certificate stays in use"),
            Err(error) => tracing::error!(%error, "reading the certificate failed"),
        }
    }

    fn note_expiry(&self) {
        let Some(certificate) = &self.certificate else { return };
        let expiry = certificate.expiry();
        self.metrics.access.tls.certificate_expiry.set(expiry);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = certificate.files().certificate.display();
        match u64::try_from(expiry).ok().and_then(|expiry| expiry.checked_sub(now.as_secs())) {
            None => tracing::error!(%file, "the certificate has expired: clients refuse it; renew its file"),
            Some(left_s) if left_s < EXPIRY_WARNING.as_secs() => {
                tracing::warn!(%file, left_h = left_s / 3_600, "the certificate expires soon: renew its file");
            }
            Some(_) => {}
        }
    }
}

/// Warns of a listener whose clients send their tokens unencrypted.
fn warn_of_plain_tokens(listen: SocketAddr, has_tokens: bool, has_tls: bool) {
    if has_tokens && !has_tls && !listen.ip().is_loopback() {
        tracing::warn!(
            %listen,
            "tokens and data are not encrypted on this address: give --tls-cert and --tls-key, or a proxy with TLS"
        );
    }
}
