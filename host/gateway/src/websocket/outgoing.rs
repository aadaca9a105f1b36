//! The messages of the function, from the body of its response to the client.

use super::records::{Close, Record, RecordReader};
use super::session::{End, SessionTerms, frame_of};
use super::socket::{SocketIo, Traffic};
use crate::answers::{CountedBytes, Scopes};
use axum::body::Body;
use bytes::Bytes;
use futures::SinkExt as _;
use futures::stream::SplitSink;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use weir_telemetry::CutCause;

/// Size of the largest frame.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// Sends the messages of the function, and pings to a silent client.
pub(super) struct MessageWriter<'a> {
    sink: SplitSink<WebSocketStream<SocketIo>, Message>,
    guest: Body,
    records: RecordReader,
    terms: &'a SessionTerms,
    scopes: Arc<Scopes>,
    traffic: Traffic,
    pinged_at: Instant,
    /// The part of a message that the connection has not taken yet.
    fragments: Option<Fragments>,
    /// The message that the client has not taken yet.
    counted: Option<CountedBytes>,
}

/// The frames of a message. The buffer of the connection keeps the size of its largest frame.
struct Fragments {
    kind: Data,
    rest: Bytes,
}

impl Fragments {
    /// The next frame, and whether it is the last.
    fn next(&mut self) -> (Frame, bool) {
        let part = self.rest.split_to(self.rest.len().min(FRAME_BYTES_MAX));
        let kind = std::mem::replace(&mut self.kind, Data::Continue);
        let is_last = self.rest.is_empty();
        (Frame::message(part, OpCode::Data(kind), is_last), is_last)
    }
}

impl<'a> MessageWriter<'a> {
    pub(super) fn new(
        sink: SplitSink<WebSocketStream<SocketIo>, Message>,
        guest: Body,
        terms: &'a SessionTerms,
        scopes: Arc<Scopes>,
        traffic: Traffic,
    ) -> Self {
        let records = RecordReader::new(terms.config.message_bytes_max as usize);
        Self {
            sink,
            guest,
            records,
            terms,
            scopes,
            traffic,
            pinged_at: Instant::now(),
            fragments: None,
            counted: None,
        }
    }

    /// Sends the function's messages until it closes the WebSocket, or fails. Can be dropped and
    /// called again without the loss of a message.
    pub(super) async fn run(&mut self) -> End {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    /// Sends what waits for the client, and then one message or a ping.
    async fn step(&mut self) -> Result<(), End> {
        self.flush().await?;
        if let Some(fragments) = &mut self.fragments {
            let (frame, is_last) = fragments.next();
            if is_last {
                self.fragments = None;
            }
            return self.feed(Message::Frame(frame)).await;
        }
        self.counted = None;
        let invalid = |error: &dyn std::fmt::Display| {
            self.terms.log.note(format!("the WebSocket was closed with 1011: {error}"));
            End::function_failed()
        };
        let fragments = match self.records.next().map_err(|error| invalid(&error))? {
            Some(Record::Text(text)) => Fragments { kind: Data::Text, rest: text.into() },
            Some(Record::Binary(rest)) => Fragments { kind: Data::Binary, rest },
            Some(Record::Close(close)) => return Err(End::Function(close)),
            None => {
                self.counted = Some(CountedBytes::new(&self.scopes, self.records.waiting_bytes() as u64));
                let ping_after = Duration::from_millis(self.terms.config.ping_ms);
                let ping_due = async {
                    sleep_until(self.pinged_at + ping_after).await;
                    self.traffic.unread_for(ping_after).await;
                };
                tokio::select! {
                    frame = self.guest.frame() => match frame {
                        Some(Ok(frame)) => {
                            if let Ok(bytes) = frame.into_data() {
                                self.records.push(&bytes);
                            }
                            return Ok(());
                        }
                        // The log has the reason from the sandbox.
                        Some(Err(_)) => return Err(End::function_failed()),
                        None => {
                            self.records.end().map_err(|error| invalid(&error))?;
                            return Err(End::Function(Close::new(1000, "")));
                        }
                    },
                    () = ping_due => {}
                    // The client does not take the answers to its pings.
                    () = self.traffic.blocked() => return Ok(()),
                }
                self.pinged_at = Instant::now();
                return self.feed(Message::Ping(Bytes::new())).await;
            }
        };
        self.counted = Some(CountedBytes::new(&self.scopes, fragments.rest.len() as u64));
        self.fragments = Some(fragments);
        Ok(())
    }

    async fn feed(&mut self, message: Message) -> Result<(), End> {
        // The sink is ready after a flush, so the message is not lost if this future is dropped.
        self.sink.feed(message).await.map_err(|_| End::Lost)
    }

    /// Waits until the client's connection has taken all messages.
    async fn flush(&mut self) -> Result<(), End> {
        loop {
            let taken_bytes = self.traffic.taken_bytes();
            match timeout(self.terms.stall, self.sink.flush()).await {
                Ok(flushed) => return flushed.map_err(|_| End::Lost),
                Err(_) if self.traffic.taken_bytes() - taken_bytes >= self.terms.stall_bytes_min => {}
                Err(_) => {
                    tracing::debug!("a WebSocket was cut off: its client reads too little");
                    self.terms.metrics.answers.cut(CutCause::Stalled);
                    return Err(End::Lost);
                }
            }
        }
    }

    /// Begins or answers the closing handshake.
    pub(super) async fn send_close(&mut self, close: &Close) {
        // The client may be gone.
        let _ = self.sink.send(Message::Close(Some(frame_of(close)))).await;
    }

    /// The client's half of the connection, and the body of the function.
    pub(super) fn into_parts(self) -> (SplitSink<WebSocketStream<SocketIo>, Message>, Body) {
        (self.sink, self.guest)
    }
}

/// Reads the rest of the function's body, so that the function can end after the WebSocket was closed.
/// Stops if the function goes on to send more than `bytes_max`.
pub(super) async fn discard(guest: &mut Body, bytes_max: usize) {
    let mut bytes_left = bytes_max;
    while let Some(Ok(frame)) = guest.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(left) = bytes_left.checked_sub(bytes) else { return };
        bytes_left = left;
    }
}
