//! Connections to other nodes: over TLS, or plain.

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;
use weir_tls::NodeIdentity;

/// The time limit for each step of a connection: to connect, and to perform the TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Opens connections to other nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct NodeConnector {
    tcp: HttpConnector,
    /// `None`: connections are not encrypted.
    identity: Option<NodeIdentity>,
}

/// A connection to another node.
pub(super) enum NodeStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

type BoxError = Box<dyn Error + Send + Sync>;

impl NodeConnector {
    pub(super) fn new(identity: Option<NodeIdentity>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIME_MAX));
        Self { tcp, identity }
    }
}

impl Service<Uri> for NodeConnector {
    type Response = TokioIo<NodeStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        let connecting = self.tcp.call(uri);
        let identity = self.identity.clone();
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let Some(identity) = identity else { return Ok(TokioIo::new(NodeStream::Plain(stream))) };
            let connector = TlsConnector::from(identity.client());
            let handshake = connector.connect(ServerName::try_from(host)?, stream);
            let too_slow = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
            let stream = timeout(CONNECT_TIME_MAX, handshake).await.map_err(too_slow)??;
            Ok(TokioIo::new(NodeStream::Tls(Box::new(stream))))
        })
    }
}

impl Connection for NodeStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            NodeStream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            NodeStream::Tls(stream) => {
                let $stream = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for NodeStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_shutdown(cx))
    }
}
