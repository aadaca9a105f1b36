//! WebSockets. The node speaks the protocol with the client; the function reads and writes whole
//! messages.
//!
//! ```
//! use weir::{Request, Response, Result};
//!
//! fn echo(request: Request) -> Result<Response> {
//!     Response::websocket(request, |socket| {
//!         while let Some(message) = socket.receive()? {
//!             socket.send(message)?;
//!         }
//!         Ok(())
//!     })
//! }
//!
//! weir::http_function!(echo);
//! ```
//!
//! [`WebSocket::send`] waits until the node has taken the message, so that a client that reads
//! slowly slows the function down. In the same way, the client waits while the function does not
//! receive.

mod records;

use crate::{Error, Request, Result};
use records::{Record, Records};
use std::time::Duration;
use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::http::types::IncomingBody;
use wasip2::io::poll::poll;
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

/// Media type of a body whose content is the messages of a WebSocket.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.weir.websocket";
/// Bytes to read per call.
const CHUNK_BYTES: u64 = 64 << 10;

/// A message of a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
}

/// The reason why a WebSocket was closed (RFC 6455, section 7.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// Close code: 1000 for a normal end, 1001 if the node stops, 1005 if the client sent no code,
    /// and 1006 if the connection was lost.
    pub code: u16,
    /// Reason, for people.
    pub reason: String,
}

/// An open WebSocket; the argument of the handler of
/// [`Response::websocket`](crate::Response::websocket).
#[derive(Debug)]
pub struct WebSocket {
    // Dropped before the body that it belongs to.
    input: InputStream,
    _body: IncomingBody,
    output: OutputStream,
    records: Records,
    closed: Option<Close>,
    has_sent_close: bool,
}

/// Whether the request opens a WebSocket.
#[must_use]
pub fn is_websocket(request: &Request) -> bool {
    request.header("content-type").as_deref() == Some(MEDIA_TYPE)
}

/// The subprotocols that the client offers, in its order. Choose one of them with the header
/// `sec-websocket-protocol` of the response.
#[must_use]
pub fn protocols(request: &Request) -> Vec<String> {
    let offered = request.header("sec-websocket-protocol").unwrap_or_default();
    offered.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

impl WebSocket {
    pub(crate) fn input(request: &Request) -> Result<(InputStream, IncomingBody)> {
        if !is_websocket(request) {
            return Err(Error::new(426, "this is a WebSocket: connect with a WebSocket client"));
        }
        let gone = |()| Error::invalid("the body was read before");
        let body = request.consume().map_err(gone)?;
        Ok((body.stream().map_err(gone)?, body))
    }

    pub(crate) fn new((input, body): (InputStream, IncomingBody), output: OutputStream) -> Self {
        let records = Records::default();
        Self { input, _body: body, output, records, closed: None, has_sent_close: false }
    }

    /// Waits for the next message. `None`: the WebSocket is closed, and [`Self::closed`] has the
    /// reason.
    pub fn receive(&mut self) -> Result<Option<Message>> {
        loop {
            if self.closed.is_some() {
                return Ok(None);
            }
            match self.records.next()? {
                Some(Record::Message(message)) => return Ok(Some(message)),
                Some(Record::Close(close)) => self.closed = Some(close),
                None => match self.input.blocking_read(CHUNK_BYTES) {
                    Ok(bytes) => self.records.push(&bytes),
                    Err(_) => self.closed = Some(Close::lost()),
                },
            }
        }
    }

    /// Waits for the next message, at most `time`. Returns whether [`Self::receive`] returns at
    /// once: a message is there, or the WebSocket is closed.
    pub fn wait(&mut self, time: Duration) -> Result<bool> {
        let timer = subscribe_duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let more = self.input.subscribe();
        loop {
            if self.closed.is_some() || self.records.has_next() {
                return Ok(true);
            }
            let ready = poll(&[&more, &timer]);
            if !ready.contains(&0) {
                return Ok(false);
            }
            match self.input.read(CHUNK_BYTES) {
                Ok(bytes) => self.records.push(&bytes),
                Err(_) => self.closed = Some(Close::lost()),
            }
        }
    }

    /// Sends a message. Waits until the node has taken the message. Fails once the WebSocket is
    /// closed.
    pub fn send(&mut self, message: impl Into<Message>) -> Result<()> {
        if self.has_sent_close || self.closed.is_some() {
            return Err(closed());
        }
        let record = records::encode(&message.into())?;
        self.write(&record)
    }

    /// Closes the WebSocket with a code and a reason of at most 123 bytes. A function that returns
    /// without this closes with code 1000.
    pub fn close(&mut self, code: u16, reason: &str) -> Result<()> {
        let record = records::encode_close(code, reason)?;
        if std::mem::replace(&mut self.has_sent_close, true) {
            return Ok(());
        }
        self.write(&record)
    }

    /// The reason why the WebSocket was closed; `None` while it is open.
    #[must_use]
    pub fn closed(&self) -> Option<&Close> {
        self.closed.as_ref()
    }

    fn write(&mut self, record: &[u8]) -> Result<()> {
        crate::http::write(&self.output, record).map_err(|error| match error {
            StreamError::Closed => {
                self.closed.get_or_insert_with(Close::lost);
                closed()
            }
            StreamError::LastOperationFailed(error) => {
                Error::Internal(format!("the message was not sent: {}", error.to_debug_string()))
            }
        })
    }
}

fn closed() -> Error {
    Error::new(500, "the WebSocket is closed")
}

impl Close {
    /// The end of a stream that has no record of its reason.
    fn lost() -> Self {
        Self { code: 1006, reason: String::new() }
    }
}

impl Message {
    /// The bytes of the message.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// The text of a text message.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(bytes.to_vec())
    }
}
