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
use weir_telemetry::CutCause;

/// Sends the messages of the function, and pings to a silent client.
pub(super) struct MessageWriter<'a> {
    sink: SplitSink<WebSocketStream<SocketIo>, Message>,
    guest: Body,
    records: RecordReader,
    terms: &'a SessionTerms,
    scopes: Arc<Scopes>,
    traffic: Traffic,
    pinged_at: Instant,
    /// The message that the client has not taken yet.
    counted: Option<CountedBytes>,
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
        Self { sink, guest, records, terms, scopes, traffic, pinged_at: Instant::now(), counted: None }
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

    /// Sends the rest of the last message, and then one message or a ping.
    async fn step(&mut self) -> Result<(), End> {
        self.flush().await?;
        let invalid = |error: &dyn std::fmt::Display| {
            self.terms.log.note(format!("the WebSocket was closed with 1011: {error}"));
            End::function_failed()
        };
        let message = match self.records.next().map_err(|error| invalid(&error))? {
            Some(Record::Text(text)) => Message::Text(text),
            Some(Record::Binary(bytes)) => Message::Binary(bytes),
            Some(Record::Close(close)) => return Err(End::Function(close)),
            None => {
                let ping_after = Duration::from_millis(self.terms.config.ping_ms);
                let ping_due = async {
                    sleep_until(self.pinged_at + ping_after).await;
                    self.traffic.silent_for(ping_after).await;
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
                }
                self.pinged_at = Instant::now();
                Message::Ping(Bytes::new())
            }
        };
        self.counted = Some(CountedBytes::new(&self.scopes, message.len() as u64));
        // The sink is ready after a flush, so the message is not lost if this future is dropped.
        self.sink.feed(message).await.map_err(|_| End::Lost)
    }

    /// Waits until the client's connection has taken all messages.
    async fn flush(&mut self) -> Result<(), End> {
        loop {
            let taken_bytes = self.traffic.taken_bytes();
            match timeout(self.terms.stall, self.sink.flush()).await {
                Ok(flushed) => {
                    self.counted = None;
                    return flushed.map_err(|_| End::Lost);
                }
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

    /// Reads the rest of the function's body, so that the function can end after the WebSocket was
    /// closed. Stops if the function goes on to send messages.
    pub(super) async fn discard(&mut self) {
        let mut bytes_left = self.terms.config.message_bytes_max as usize;
        while let Some(Ok(frame)) = self.guest.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(left) = bytes_left.checked_sub(bytes) else { return };
            bytes_left = left;
        }
    }

    pub(super) fn into_sink(self) -> SplitSink<WebSocketStream<SocketIo>, Message> {
        self.sink
    }
}
