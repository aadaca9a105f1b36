//! The connector: every connection to another host on behalf of a tenant is made here.

use crate::endpoints::NodeEndpoints;
use crate::exchange::{ByteStream, Exchange, PHASE_TIME_MAX, exchange};
use crate::policy::{Destination, OutboundPolicy};
use crate::resolve::{Resolve, SystemResolver, literal};
use crate::rule::normal_host;
use crate::{OutboundConfig, OutboundRefusal, RefusalReason, SendError, StoreEndpoint, is_granted};
use http::{Request, Uri};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};
use weir_telemetry::Metrics;
use weir_types::TenantId;

/// Addresses of a name that are tried in turn.
const ADDRESSES_MAX: usize = 8;

/// Interval of the lookups of the cluster's stores, whose addresses are refused.
const ENDPOINT_LOOKUP: Duration = Duration::from_secs(30);

/// Sends requests of tenants to the hosts that they may reach.
pub struct Connector {
    policy: OutboundPolicy,
    resolver: Box<dyn Resolve>,
    resolve_time_max: Duration,
    tenant_resolves_max: usize,
    /// Permits of lookups. The node's configuration bounds the number of tenants.
    resolving: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
    tls: TlsConnector,
    metrics: Arc<Metrics>,
}

impl Connector {
    /// Creates the connector of a node. `stores` are the endpoints of its cluster.
    /// `is_loopback_open` opens loopback addresses by default: only for a node without tokens that
    /// listens on loopback.
    #[must_use]
    pub fn new(
        config: OutboundConfig,
        stores: Vec<StoreEndpoint>,
        is_loopback_open: bool,
        metrics: Arc<Metrics>,
    ) -> Self {
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.into() };
        Self {
            resolver: Box::new(SystemResolver),
            resolve_time_max: Duration::from_millis(config.resolve_timeout_ms),
            tenant_resolves_max: config.tenant_resolves_max as usize,
            resolving: Mutex::default(),
            tls: tls(roots),
            metrics,
            policy: OutboundPolicy { config, endpoints: NodeEndpoints::new(stores), is_loopback_open },
        }
    }

    /// Refuses requests to the node itself. Has to be called before the node serves.
    pub fn set_listener(&self, address: SocketAddr) {
        self.policy.endpoints.set_listener(address);
    }

    /// The refusal of a granted `host:port` whose host is an address; `None` if `tenant` may reach
    /// it, or if only a lookup can decide.
    #[must_use]
    pub fn refusal(&self, tenant: &TenantId, granted: &str) -> Option<OutboundRefusal> {
        let to: http::uri::Authority = granted.parse().ok()?;
        let host = to.host().trim_start_matches('[').trim_end_matches(']');
        let to = Destination { tenant, host, port: to.port_u16()? };
        let address = literal(host)?;
        self.policy.check_name(to).and_then(|()| self.policy.check_address(to, address)).err()
    }

    /// Looks up the names of the cluster's stores, so that their addresses are refused under every
    /// name.
    pub async fn look_up_stores(&self) {
        let names: Vec<String> = self.policy.endpoints.names().map(str::to_owned).collect();
        for name in names {
            match timeout(self.resolve_time_max, self.resolver.resolve(&name)).await {
                Ok(Ok(addresses)) => self.policy.endpoints.set_addresses(&name, &addresses),
                Ok(Err(error)) => tracing::warn!(name, %error, "looking up a store of the cluster failed"),
                Err(_) => tracing::warn!(name, "looking up a store of the cluster took too long"),
            }
        }
    }

    /// Follows changes of the addresses of the cluster's stores.
    pub async fn follow_stores(self: Arc<Self>) {
        while self.policy.endpoints.names().next().is_some() {
            tokio::time::sleep(ENDPOINT_LOOKUP).await;
            self.look_up_stores().await;
        }
    }

    /// Sends `request` on behalf of `tenant`, to one of the `granted` hosts.
    ///
    /// # Errors
    /// [`SendError::Refused`] if the tenant may not reach the host; the refusal is counted.
    pub async fn send(
        &self,
        tenant: &TenantId,
        granted: &[String],
        request: Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<Exchange, SendError> {
        let sent = self.try_send(tenant, granted, request, options).await;
        if let Err(SendError::Refused(refusal)) = &sent {
            self.metrics.outbound.refused(tenant, refusal.reason.as_str());
        }
        sent
    }

    async fn try_send(
        &self,
        tenant: &TenantId,
        granted: &[String],
        request: Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<Exchange, SendError> {
        check_grant(granted, request.uri())?;
        let time_max = options.connect_timeout.unwrap_or(PHASE_TIME_MAX);
        let stream = timeout(time_max, self.connect(tenant, request.uri())).await;
        let stream = stream.map_err(|_| Error::ConnectionTimeout)??;
        Ok(exchange(stream, request, &options).await?)
    }

    /// Connects to the host of `uri`.
    async fn connect(&self, tenant: &TenantId, uri: &Uri) -> Result<Box<dyn ByteStream>, SendError> {
        let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(Error::HttpRequestUriInvalid)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = self.dial(tenant, host, port).await?;
        if !is_tls {
            return Ok(Box::new(stream));
        }
        Ok(Box::new(self.secure(host, stream).await?))
    }

    /// Connects to a host on behalf of `tenant`, for protocols other than HTTP.
    ///
    /// # Errors
    /// [`SendError::Refused`] if the tenant may not reach the host; the refusal is counted.
    pub async fn open(&self, tenant: &TenantId, host: &str, port: u16) -> Result<TcpStream, SendError> {
        let opened = self.dial(tenant, host, port).await;
        if let Err(SendError::Refused(refusal)) = &opened {
            self.metrics.outbound.refused(tenant, refusal.reason.as_str());
        }
        opened
    }

    /// Changes a connection to TLS, with the certificate of `host`.
    ///
    /// # Errors
    /// If `host` is not a name or address, or the server has no valid certificate for it.
    pub async fn secure<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let server = ServerName::try_from(normal_host(host))
            .map_err(|_| Error::DnsError { rcode: Some("invalid dns name".to_owned()), info_code: None })?;
        self.tls.connect(server, stream).await.map_err(Error::Tls)
    }

    /// Connects to exactly an address that was checked.
    async fn dial(&self, tenant: &TenantId, host: &str, port: u16) -> Result<TcpStream, SendError> {
        let name = normal_host(host);
        let to = Destination { tenant, host: &name, port };
        self.policy.check_name(to)?;
        let found = match literal(host) {
            Some(address) => vec![address],
            None => self.look_up(tenant, host).await?,
        };
        let addresses = self.permitted(to, &found)?;
        Ok(connect_to(&addresses, port).await?)
    }

    /// Looks a name up, once. A lookup that takes too long keeps its permit until it ends.
    async fn look_up(&self, tenant: &TenantId, host: &str) -> Result<Vec<IpAddr>, Error> {
        let permits = {
            let mut resolving = self.resolving.lock();
            let permits = resolving.entry(tenant.clone());
            permits.or_insert_with(|| Arc::new(Semaphore::new(self.tenant_resolves_max))).clone()
        };
        let lookup = async {
            let permit = permits.acquire_owned().await.map_err(std::io::Error::other)?;
            let resolved = self.resolver.resolve(host);
            let running = tokio::spawn(async move {
                let found = resolved.await;
                drop(permit);
                found
            });
            running.await.map_err(std::io::Error::other)?
        };
        timeout(self.resolve_time_max, lookup).await.map_err(|_| Error::DnsTimeout)?.map_err(Error::Connect)
    }

    /// The addresses that the tenant may reach, or the refusal of the first.
    fn permitted(&self, to: Destination<'_>, found: &[IpAddr]) -> Result<Vec<IpAddr>, SendError> {
        let mut refusal = None;
        let mut permitted = Vec::new();
        for ip in found {
            match self.policy.check_address(to, *ip) {
                Ok(()) => permitted.push(*ip),
                Err(refused) => refusal = refusal.or(Some(refused)),
            }
        }
        match refusal {
            Some(refusal) if permitted.is_empty() => Err(refusal.into()),
            _ => Ok(permitted),
        }
    }
}

/// Connects to the first of the addresses that answers.
async fn connect_to(addresses: &[IpAddr], port: u16) -> Result<TcpStream, Error> {
    let mut failed = Error::DestinationNotFound;
    for ip in addresses.iter().take(ADDRESSES_MAX) {
        match TcpStream::connect((*ip, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Error::Connect(error),
        }
    }
    Err(failed)
}

fn check_grant(granted: &[String], uri: &Uri) -> Result<(), OutboundRefusal> {
    let authority = uri.authority();
    if authority.is_some_and(|to| is_granted(granted, to)) {
        return Ok(());
    }
    let to = authority.map_or("an unnamed host", http::uri::Authority::as_str);
    let text = format!("{to}; add it to outbound_hosts in the manifest");
    Err(OutboundRefusal { reason: RefusalReason::NotGranted, text })
}

fn tls(roots: rustls::RootCertStore) -> TlsConnector {
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions();
    #[expect(clippy::expect_used, reason = "ring supports the default versions")]
    let config = config.expect("the provider and the versions are constants");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into()
}

/// The connector, for one tenant. Cheap to clone.
#[derive(Clone)]
pub struct TenantConnector {
    connector: Arc<Connector>,
    tenant: TenantId,
}

impl TenantConnector {
    /// Lends the connector to `tenant`.
    #[must_use]
    pub fn new(connector: Arc<Connector>, tenant: TenantId) -> Self {
        Self { connector, tenant }
    }

    /// Sends a request to one of the `granted` hosts. See [`Connector::send`].
    ///
    /// # Errors
    /// As [`Connector::send`].
    pub async fn send(
        &self,
        granted: &[String],
        request: Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<Exchange, SendError> {
        self.connector.send(&self.tenant, granted, request, options).await
    }
}

#[cfg(test)]
mod tests;
