//! An open WebSocket, from the upgrade of the connection to the closing handshake.
//!
//! It ends when the client or the function closes it, when either fails or breaks the protocol, when
//! the client is silent, when the longest time has passed, and when the node stops. In each case, the
//! function reads the reason, and has `close_ms` to end.

use super::incoming::{MessageSender, Undelivered};
use super::outgoing::{FRAME_BYTES_MAX, MessageWriter, discard};
use super::records::Close;
use super::socket::{SocketIo, Traffic};
use crate::answers::Scopes;
use crate::permits::TenantPermit;
use axum::body::Body;
use futures::StreamExt as _;
use futures::stream::SplitStream;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig as ProtocolConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;
use weir_sandbox::WebSocketConfig;
use weir_sandbox::instance::OutputSink;
use weir_telemetry::{ClosedBy, Metrics};

/// Buffers of a connection. Larger messages take memory of their size while they are received and
/// sent.
pub(super) const BUFFER_BYTES: usize = 8 << 10;
/// Memory for the answers to pings that wait for the client, besides one frame.
const PONG_BYTES_MAX: usize = 64 << 10;

/// The terms of a WebSocket.
pub(super) struct SessionTerms {
    pub(super) config: WebSocketConfig,
    /// Time for which a message may wait for a client that takes too little.
    pub(super) stall: Duration,
    /// Bytes that the client must take in that time.
    pub(super) stall_bytes_min: u64,
    /// Time that the function has after the node has begun to stop.
    pub(super) drain: Duration,
    /// The end of the longest time of the WebSocket.
    pub(super) ends_at: Instant,
    pub(super) stopping: CancellationToken,
    pub(super) metrics: Arc<Metrics>,
    /// The log of the function.
    pub(super) log: Arc<OutputSink>,
}

/// A WebSocket whose function has accepted it.
pub(crate) struct Session {
    upgrade: OnUpgrade,
    guest: Body,
    messages: MessageSender,
    terms: SessionTerms,
    _permit: TenantPermit,
}

/// Response extension with the session that begins after the response.
#[derive(Clone)]
pub(crate) struct SessionSlot(Arc<Mutex<Option<Box<Session>>>>);

/// Why a WebSocket ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The client has closed it.
    Client(Close),
    /// The function has closed it, or failed.
    Function(Close),
    /// The node closes it: the client breaks a rule or exceeds a limit.
    Refused(Close),
    /// The node closes it: the node stops, or the longest time has passed.
    Expired(Close),
    /// The connection is lost, or its client does not answer.
    Lost,
}

impl End {
    pub(super) fn function_failed() -> Self {
        Self::Function(Close::new(1011, "the function failed; its log has the reason"))
    }

    fn by(&self) -> ClosedBy {
        match self {
            Self::Client(_) => ClosedBy::Client,
            Self::Function(_) => ClosedBy::Function,
            Self::Refused(_) => ClosedBy::Limit,
            Self::Expired(_) => ClosedBy::Expiry,
            Self::Lost => ClosedBy::Loss,
        }
    }

    /// The reason that the function reads.
    fn close(&self) -> Close {
        match self {
            Self::Client(close) | Self::Function(close) | Self::Refused(close) | Self::Expired(close) => {
                close.clone()
            }
            Self::Lost => Close::new(1006, ""),
        }
    }
}

impl SessionSlot {
    pub(super) fn new(session: Session) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(session)))))
    }

    /// Takes the session, which can begin once.
    pub(crate) fn take(&self) -> Option<Box<Session>> {
        self.0.lock().take()
    }
}

impl Session {
    pub(super) fn new(
        upgrade: OnUpgrade,
        guest: Body,
        messages: MessageSender,
        terms: SessionTerms,
        permit: TenantPermit,
    ) -> Self {
        Self { upgrade, guest, messages, terms, _permit: permit }
    }

    /// Time for which a client may be silent.
    pub(crate) fn idle_time(&self) -> Duration {
        Duration::from_millis(self.terms.config.idle_ms)
    }

    /// Serves the WebSocket to its end. Messages that wait for the client count in `scopes`. Calls
    /// `cut` before the connection of a client that does not end it is closed.
    pub(crate) async fn run(self: Box<Self>, scopes: Arc<Scopes>, cut: impl FnOnce()) {
        let Self { upgrade, guest, messages, terms, _permit } = *self;
        let upgraded = match upgrade.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "the client of a WebSocket has disconnected"),
        };
        let _open = terms.metrics.process.websockets.open();
        let traffic = Traffic::new();
        let bytes_max = terms.config.message_bytes_max as usize;
        let io = SocketIo::new(upgraded, bytes_max, traffic.clone());
        let protocol = ProtocolConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_write_buffer_size(FRAME_BYTES_MAX + PONG_BYTES_MAX)
            .max_message_size(Some(bytes_max))
            .max_frame_size(Some(bytes_max));
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(protocol)).await;
        let (sink, stream) = socket.split();
        let mut reader = MessageReader { stream, traffic: traffic.clone() };
        let mut writer = MessageWriter::new(sink, guest, &terms, scopes, traffic.clone());
        let mut end = tokio::select! {
            end = reader.run(&messages) => end,
            end = writer.run() => end,
            end = terms.expired(&traffic) => end,
        };
        messages.close(end.close());
        if matches!(end, End::Expired(_)) {
            end = terms.wind_down(end, &mut reader, &mut writer).await;
        }
        terms.metrics.process.websockets.closed(end.by());
        let close_time = Duration::from_millis(terms.config.close_ms);
        let handshake = async {
            match &end {
                End::Lost => return,
                // The reader has queued the answer to the client's close.
                End::Client(_) => {}
                end => writer.send_close(&end.close()).await,
            }
            reader.finish().await;
        };
        let is_closed = timeout(close_time, handshake).await.is_ok() && end != End::Lost;
        let (sink, mut guest) = writer.into_parts();
        let socket = reader.stream.reunite(sink).ok();
        let disconnect = async {
            if !is_closed {
                cut();
            } else if let Some(mut socket) = socket {
                // The client reads the close before the end of the connection.
                let _ = socket.get_mut().shutdown().await;
            }
        };
        let discard = timeout(close_time, discard(&mut guest, bytes_max));
        if tokio::join!(disconnect, discard).1.is_err() {
            tracing::debug!("a function was stopped: it did not end after its WebSocket was closed");
        }
    }
}

/// Time for further messages on a node that stops. The rest of its `drain` time is for the closing
/// handshake.
pub(super) fn message_time(drain: Duration) -> Duration {
    drain.mul_f32(0.8)
}

impl SessionTerms {
    /// Returns once the node has a reason to end the WebSocket.
    async fn expired(&self, traffic: &Traffic) -> End {
        tokio::select! {
            () = traffic.silent_for(Duration::from_millis(self.config.idle_ms)) => End::Lost,
            () = sleep_until(self.ends_at.into()) => {
                End::Expired(Close::new(1008, "the longest time of a WebSocket has passed (limits.websocket_ms)"))
            }
            () = self.stopping.cancelled() => End::Expired(Close::stopping()),
        }
    }

    /// Lets the function send its last messages, after it has read that the WebSocket ends.
    async fn wind_down(&self, end: End, reader: &mut MessageReader, writer: &mut MessageWriter<'_>) -> End {
        let time = match self.stopping.is_cancelled() {
            true => message_time(self.drain),
            false => Duration::from_millis(self.config.close_ms),
        };
        tokio::select! {
            client = reader.discard() => client,
            function = writer.run() => match function {
                // The function has nothing more to say.
                End::Function(close) if close.code == 1000 => end,
                function => function,
            },
            () = sleep(time) => end,
        }
    }
}

/// Reads the messages of the client.
struct MessageReader {
    stream: SplitStream<WebSocketStream<SocketIo>>,
    traffic: Traffic,
}

impl MessageReader {
    /// Passes messages to the function until the client closes the WebSocket, or fails.
    async fn run(&mut self, messages: &MessageSender) -> End {
        loop {
            let message = match self.next().await {
                Ok(message) => message,
                Err(end) => return end,
            };
            // The client waits while the function does not read.
            self.traffic.set_paused(true);
            let sent = match &message {
                Message::Text(text) => messages.send(true, text.as_bytes()).await,
                Message::Binary(bytes) => messages.send(false, bytes).await,
                _ => Ok(()),
            };
            self.traffic.set_paused(false);
            match sent {
                // A function that only sends has dropped its request: its messages have no reader.
                Ok(()) | Err(Undelivered::Unread) => {}
                Err(Undelivered::NoRoom(error)) => {
                    tracing::debug!(%error, "a WebSocket was closed: there is no room for a message");
                    let close = Close::new(1013, "the node has no memory for the message; try again later");
                    return End::Refused(close);
                }
            }
        }
    }

    /// Reads messages without a reader until the client closes the WebSocket, or fails.
    async fn discard(&mut self) -> End {
        loop {
            if let Err(end) = self.next().await {
                return end;
            }
        }
    }

    /// Reads to the end of the connection, after a close was sent or received.
    async fn finish(&mut self) {
        while let Some(Ok(_)) = self.stream.next().await {}
    }

    async fn next(&mut self) -> Result<Message, End> {
        match self.stream.next().await {
            Some(Ok(Message::Close(frame))) => Err(End::Client(close_of(frame))),
            Some(Ok(message)) => {
                if message.is_ping() {
                    // A client that does not take the answers waits with its further pings.
                    self.traffic.set_paused(true);
                    self.traffic.unblocked().await;
                    self.traffic.set_paused(false);
                }
                Ok(message)
            }
            Some(Err(error)) => Err(end_of(&error)),
            None => Err(End::Lost),
        }
    }
}

fn close_of(frame: Option<CloseFrame>) -> Close {
    frame.map_or_else(|| Close::new(1005, ""), |frame| Close::new(frame.code.into(), frame.reason.as_str()))
}

/// The frame of a close.
pub(super) fn frame_of(close: &Close) -> CloseFrame {
    CloseFrame { code: close.code.into(), reason: close.reason.as_str().into() }
}

/// The end of a WebSocket whose client has sent something invalid, or has disconnected.
fn end_of(error: &Error) -> End {
    let refused = |code: u16, reason: String| End::Refused(Close::new(code, reason));
    match error {
        Error::Capacity(CapacityError::MessageTooLong { max_size, .. }) => refused(
            1009,
            format!("a message may have {max_size} bytes (sandbox.websockets.message_bytes_max)"),
        ),
        Error::Utf8(_) => refused(1007, "a text message is no UTF-8".to_owned()),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Lost,
        Error::Protocol(error) => {
            let mut reason = error.to_string();
            reason.truncate(reason.floor_char_boundary(123));
            refused(1002, reason)
        }
        _ => End::Lost,
    }
}
