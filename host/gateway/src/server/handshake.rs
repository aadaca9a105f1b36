//! TLS handshakes, with limits on their number and their time.

use super::addresses::RemoteAddresses;
use super::linger::Linger;
use super::transport::Transport;
use rustls::ServerConfig;
use rustls::server::{Acceptor, ClientHello};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use weir_telemetry::HandshakeFailure;
use weir_tls::{NODE_PROTOCOL, NodeIdentity, NodePeer, TlsConfig};
use weir_types::ErrorCode;
use weir_types::api::ErrorBody;

/// First byte of a TLS connection: the type of a record that belongs to a handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Divisor for the share of concurrent handshakes that one remote address may have.
const ADDRESS_SHARE: usize = 4;

/// TLS of a listener.
#[derive(Clone, Default)]
pub struct ListenerTls {
    /// For clients; `None`: clients speak plain HTTP.
    pub clients: Option<Arc<ServerConfig>>,
    /// For the other nodes of the cluster, who mark their connections by a protocol; `None`: they
    /// speak like clients.
    pub nodes: Option<NodeIdentity>,
}

/// Performs the node's side of TLS handshakes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Handshakes {
    tls: ListenerTls,
    turns: Arc<Semaphore>,
    addresses: RemoteAddresses,
    time_max: Duration,
}

/// The reason why a connection has no TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("its address has as many handshakes as it may")]
    Limit,
    #[error("the handshake took too long")]
    Timeout,
    #[error("the client does not speak TLS")]
    Plain,
    #[error("clients speak plain HTTP to this node, and only nodes of its cluster speak TLS")]
    OnlyNodes,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl HandshakeError {
    /// The reason in the metrics.
    pub(super) fn reason(&self) -> HandshakeFailure {
        match self {
            Self::Limit => HandshakeFailure::Limit,
            Self::Timeout => HandshakeFailure::Timeout,
            Self::Plain => HandshakeFailure::Plain,
            Self::OnlyNodes | Self::Io(_) => HandshakeFailure::Protocol,
        }
    }
}

impl Handshakes {
    /// `None` if the listener speaks no TLS.
    pub(super) fn new(tls: ListenerTls, config: &TlsConfig) -> Option<Self> {
        if tls.clients.is_none() && tls.nodes.is_none() {
            return None;
        }
        let handshakes_max = config.handshakes_max.max(1);
        Some(Self {
            tls,
            turns: Arc::new(Semaphore::new(handshakes_max)),
            addresses: RemoteAddresses::new(handshakes_max.div_ceil(ADDRESS_SHARE)),
            time_max: Duration::from_millis(config.handshake_timeout_ms),
        })
    }

    /// Performs a handshake. A client that speaks plain HTTP where it must speak TLS gets an answer
    /// that says so.
    pub(super) async fn perform(&self, stream: Linger, from: IpAddr) -> Result<Transport, HandshakeError> {
        let latest = Instant::now() + self.time_max;
        let handshake = async {
            if first_byte(stream.tcp()).await? == Some(HANDSHAKE_RECORD) {
                return self.accept(stream, from).await;
            }
            if self.tls.clients.is_none() {
                return Ok(Transport::Plain(stream));
            }
            refuse_plain(stream).await?;
            Err(HandshakeError::Plain)
        };
        timeout_at(latest, handshake).await.unwrap_or(Err(HandshakeError::Timeout))
    }

    async fn accept(&self, stream: Linger, from: IpAddr) -> Result<Transport, HandshakeError> {
        let _of_address = self.addresses.open(from).ok_or(HandshakeError::Limit)?;
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let node = self.tls.nodes.as_ref().filter(|_| is_from_node(&hello.client_hello()));
        let server = match node {
            Some(identity) => Some(identity.server()),
            None => self.tls.clients.clone(),
        };
        let stream = hello.into_stream(server.ok_or(HandshakeError::OnlyNodes)?).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let peer = node.and(chain).map(NodePeer::new);
        Ok(Transport::Tls(Box::new(stream), peer))
    }

    /// Returns once `peer` no longer belongs to the cluster.
    pub(super) async fn until_distrusted(&self, peer: &NodePeer) {
        match &self.tls.nodes {
            Some(identity) => identity.until_distrusted(peer).await,
            None => std::future::pending().await,
        }
    }
}

fn is_from_node(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|mut names| names.any(|name| name == NODE_PROTOCOL))
}

/// The first byte that the client sends, which stays unread; `None` at the end of the connection.
async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let length = stream.peek(&mut byte).await?;
    Ok(byte.get(..length).and_then(|read| read.first().copied()))
}

/// Answers a client of HTTP/1 with the advice to use TLS, and closes the connection.
async fn refuse_plain(mut stream: Linger) -> io::Result<()> {
    let body = ErrorBody {
        error: "this port speaks TLS: use https:// instead of http://".into(),
        code: ErrorCode::InvalidRequest,
        request_id: "-".into(),
        slo: None,
    };
    let body = serde_json::to_string(&body)?;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
