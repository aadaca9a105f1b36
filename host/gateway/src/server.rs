//! Accepts connections, with limits on their number, their idle time and the shutdown.

mod activity;
mod addresses;
mod answer;
mod connection;
mod framing;
mod guard;
mod handshake;
mod linger;
mod progress;
mod streams;
mod threads;
mod transport;
pub use handshake::ListenerTls;
pub use threads::Threads;

use super::Gateway;
use crate::guest_url::OverTls;
use crate::websocket::SessionSlot;
use crate::{Admitted, GatewayConfig};
use activity::RequestInProgress;
use addresses::{AddressPermit, RemoteAddresses};
use answer::{AnswerBody, ResponseTracker};
use axum::body::{Body, HttpBody};
use connection::{ConnectionState, Timeouts};
use futures::FutureExt;
use guard::FramingGuard;
use handshake::Handshakes;
use http::Version;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use linger::Linger;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use streams::Streams;
use threads::ConnectionRuntimes;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use transport::Transport;
use weir_call::body::BodyOverrun;
use weir_call::until;
use weir_tls::NodePeer;

/// Concurrent requests of one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 1_000;
/// Flow-control windows of one HTTP/2 request, and of all requests of a connection. A few bodies
/// that no function reads do not use up the window of the connection.
const H2_STREAM_WINDOW_BYTES: u32 = 256 << 10;
const H2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Size limit of the head of an HTTP/2 request. Requests between nodes carry a grant, which is
/// larger than the heads of clients.
const H2_HEAD_BYTES_MAX: u32 = 256 << 10;
/// Read buffer of an HTTP/1 connection, and so the size limit of a request head. The buffer grows
/// up to this size for large bodies, since each read costs a turn of the connection's task.
const READ_BYTES_MAX: usize = 256 << 10;
/// Pause after a failed `accept`, for example when the process is out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves a gateway on a listener.
pub struct Server {
    gateway: Gateway,
    connections: Arc<Semaphore>,
    addresses: RemoteAddresses,
    /// `None`: connections are not encrypted.
    handshakes: Option<Handshakes>,
    timeouts: Timeouts,
    builder: auto::Builder<Streams>,
    places: ConnectionRuntimes,
}

impl Server {
    /// Creates a server that runs connections on `threads`, and the requests of HTTP/2 connections
    /// on `shared`. `tls` says who speaks TLS.
    pub fn new(
        gateway: Gateway,
        config: &GatewayConfig,
        tls: ListenerTls,
        threads: &Threads,
        shared: Handle,
    ) -> Self {
        let places = threads.places(shared.clone());
        let mut builder = auto::Builder::new(Streams::new(gateway.node.permits.answers.clone(), shared));
        builder
            .http1()
            // `Activity` closes a connection whose next head does not arrive, without a timer per
            // request.
            .header_read_timeout(None)
            .max_buf_size(READ_BYTES_MAX)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(H2_STREAMS_MAX)
            .max_header_list_size(H2_HEAD_BYTES_MAX)
            .initial_stream_window_size(H2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(Duration::from_secs(30));
        Self {
            gateway,
            connections: Arc::new(Semaphore::new(config.connections_max)),
            addresses: RemoteAddresses::new(config.connections_per_address_max),
            handshakes: Handshakes::new(tls, &config.tls),
            timeouts: Timeouts {
                first: Duration::from_millis(config.header_timeout_ms),
                later: Duration::from_millis(config.idle_timeout_ms),
            },
            builder,
            places,
        }
    }

    /// Serves until `closing` has a time, then lets the requests in progress finish until that time.
    pub async fn run(self, listener: TcpListener, mut closing: watch::Receiver<Option<Instant>>) {
        let graceful = GracefulShutdown::new();
        let latest = loop {
            // A connection is accepted once there is room for it; until then it waits in the
            // kernel's accept queue.
            let accept = async {
                let permit = self.connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
                listener.accept().await.map(|(stream, from)| (stream, from, permit))
            };
            let accepted = tokio::select! {
                accepted = accept => accepted,
                latest = closing.wait_for(Option::is_some) => {
                    break latest.ok().and_then(|latest| *latest).unwrap_or_else(Instant::now);
                }
            };
            match accepted {
                Ok((stream, from, permit)) => self.admit(stream, from.ip(), permit, &graceful),
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        };
        // Serve the clients already in the kernel's accept queue, which closing the listener would
        // cut off.
        while let Some(Ok((stream, from))) = listener.accept().now_or_never()
            && let Ok(permit) = self.connections.clone().try_acquire_owned()
        {
            self.admit(stream, from.ip(), permit, &graceful);
        }
        drop(listener);
        if until(latest, graceful.shutdown()).await.is_none() {
            tracing::warn!("requests were cut off at shutdown: gateway.drain_timeout_ms has passed");
        }
    }

    /// Serves a connection, or closes it if its address has too many.
    fn admit(
        &self,
        stream: TcpStream,
        from: IpAddr,
        permit: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        match self.addresses.open(from) {
            Some(of_address) => self.serve(stream, from, (permit, of_address), graceful),
            None => {
                self.gateway.node.metrics.process.connections_refused.inc();
                tracing::debug!(%from, "connection closed: its address has gateway.connections_per_address_max open");
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        from: IpAddr,
        permits: (OwnedSemaphorePermit, AddressPermit),
        graceful: &GracefulShutdown,
    ) {
        // Responses are small and complete: waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        // A stream wakes the thread that registered it, so the stream is registered again on its
        // thread below.
        let (Ok(stream), place) = (stream.into_std(), self.places.next()) else { return };
        let gateway = self.gateway.clone();
        let node = gateway.node.clone();
        let timeouts = self.timeouts;
        let connection = ConnectionState::new();
        let handshakes = self.handshakes.clone();
        let builder = self.builder.clone();
        let watcher = graceful.watcher();
        let placed = place.take();
        let open = graceful.watcher();
        // The task ends with its client, its timeouts, or the drain; the graceful shutdown waits
        // for it.
        place.runtime().spawn(async move {
            // The shutdown waits for a WebSocket too, after the connection was upgraded.
            let _held = (permits, placed, open);
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => Linger::new(stream, connection.clone()),
                Err(error) => return tracing::warn!(%error, "handing a connection to its thread failed"),
            };
            let stream = match &handshakes {
                None => Transport::Plain(stream),
                Some(handshakes) => match handshakes.perform(stream, from).await {
                    Ok(stream) => stream,
                    Err(error) => {
                        node.metrics.access.tls.failed(error.reason());
                        return tracing::debug!(%from, %error, "a TLS handshake failed");
                    }
                },
            };
            let peer = stream.peer().cloned();
            let over_tls = stream.is_tls().then_some(OverTls);
            let service = service(gateway, connection.clone(), from, peer.clone(), over_tls);
            let stream = TokioIo::new(FramingGuard::new(stream, connection.clone()));
            let serving = watcher.watch(builder.serve_connection_with_upgrades(stream, service).into_owned());
            node.metrics.process.connections.inc();
            let serving = async {
                connection.supervise(&node.permits.answers, timeouts, serving).await;
                if let Some((session, scopes)) = connection.take_session() {
                    session.run(scopes, || connection.cut()).await;
                }
            };
            tokio::select! {
                () = serving => {}
                () = until_distrusted(handshakes.as_ref(), peer.as_ref()) => {
                    tracing::warn!(%from, "connection closed: the cluster no longer trusts the node");
                }
            }
            node.metrics.process.connections.dec();
        });
    }
}

/// Serves the requests of a connection, which another node may have opened.
fn service(
    gateway: Gateway,
    connection: ConnectionState,
    from: IpAddr,
    peer: Option<NodePeer>,
    over_tls: Option<OverTls>,
) -> impl hyper::service::Service<
    hyper::Request<Incoming>,
    Response = http::Response<AnswerBody>,
    Error = Infallible,
    Future: Send,
> {
    service_fn(move |mut request: hyper::Request<Incoming>| {
        let gateway = gateway.clone();
        let connection = connection.clone();
        let under_way = connection.begin();
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        if let Some(over_tls) = over_tls {
            request.extensions_mut().insert(over_tls);
        }
        async move {
            let is_h2 = request.version() == Version::HTTP_2;
            let admitted = gateway.serve(request.map(body_of), from, connection.answer_bytes()).await;
            Ok::<_, Infallible>(answer_of(connection, under_way, admitted, is_h2))
        }
    })
}

/// Returns once the node at the other end no longer belongs to the cluster. Never returns for
/// clients.
async fn until_distrusted(handshakes: Option<&Handshakes>, peer: Option<&NodePeer>) {
    match (handshakes, peer) {
        (Some(handshakes), Some(peer)) => handshakes.until_distrusted(peer).await,
        _ => std::future::pending().await,
    }
}

/// Wraps the answer to a request, so that its bytes count until the client has taken them.
fn answer_of(
    connection: ConnectionState,
    under_way: RequestInProgress,
    Admitted { mut response, scopes, whole }: Admitted,
    is_h2: bool,
) -> http::Response<AnswerBody> {
    let overrun = response.extensions_mut().remove::<BodyOverrun>();
    if let Some(session) = response.extensions_mut().remove::<SessionSlot>() {
        connection.upgrade(&session, scopes.clone());
    }
    if !is_h2 {
        connection.set_overrun(overrun.clone());
    }
    let answer = ResponseTracker::new(connection, under_way, scopes, whole, overrun);
    if is_h2 {
        Streams::observe(&answer);
    }
    response.map(|body| AnswerBody::new(body, answer, is_h2))
}

/// Converts a request's body. Most requests have none, and an empty body takes no memory.
fn body_of(body: Incoming) -> Body {
    if body.is_end_stream() { Body::empty() } else { Body::new(body) }
}
