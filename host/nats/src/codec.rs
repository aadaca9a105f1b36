//! Frames of the client protocol of NATS.

use crate::NatsError;
use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

/// Length limit of a control line. The first line of a server lists the addresses of its cluster.
const LINE_LEN_MAX: usize = 64 << 10;

/// Size limit of the headers of a message, which take many times their size when they are read.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Frame from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFrame {
    /// Description of the server, as JSON.
    Info(String),
    /// Message of a subscription.
    Message(MessageFrame),
    /// Check of the connection, to answer.
    Ping,
    /// Answer to a check of the connection.
    Pong,
    /// Confirmation.
    Ok,
    /// Error.
    Error(String),
}

/// A message as it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageFrame {
    /// Subject.
    pub subject: String,
    /// Number of the subscription.
    pub subscription: u64,
    /// Subject for the answer.
    pub reply: Option<String>,
    /// Block of headers; empty without headers.
    pub headers: Bytes,
    /// Payload.
    pub payload: Bytes,
    /// Size of a message above a limit, whose headers and payload were discarded.
    pub discarded_bytes: Option<usize>,
}

/// Frame from the client.
#[derive(Clone, Copy)]
pub enum Frame<'a> {
    /// Options and login of the connection, as JSON.
    Connect(&'a str),
    /// Subscription of a subject, with its number.
    Subscribe(&'a str, u64),
    /// Message.
    Publish {
        /// Subject.
        subject: &'a str,
        /// Subject for the answer.
        reply: Option<&'a str>,
        /// Payload.
        payload: &'a [u8],
    },
    /// Check of the connection.
    Ping,
    /// Answer to a check of the connection.
    Pong,
}

/// Parses and writes frames. Discards the contents of messages above a limit.
#[derive(Debug)]
pub struct Codec {
    message_bytes_max: usize,
    /// The message whose contents are to come.
    expected: Option<Expected>,
}

#[derive(Debug)]
struct Expected {
    frame: MessageFrame,
    header_bytes: usize,
    /// Bytes of headers and payload that have not arrived.
    bytes: usize,
}

impl Codec {
    /// A codec that keeps messages up to this size, headers included.
    #[must_use]
    pub fn new(message_bytes_max: usize) -> Self {
        Self { message_bytes_max, expected: None }
    }

    fn line(source: &mut BytesMut) -> Result<Option<BytesMut>, NatsError> {
        let end = source.iter().take(LINE_LEN_MAX).position(|byte| *byte == b'\n');
        let Some(end) = end else {
            if source.len() >= LINE_LEN_MAX {
                return Err(protocol("a line is too long"));
            }
            return Ok(None);
        };
        let mut line = source.split_to(end + 1);
        line.truncate(end);
        if line.last() == Some(&b'\r') {
            line.truncate(end - 1);
        }
        Ok(Some(line))
    }

    /// The contents of the expected message, once they have arrived.
    fn contents(&mut self, source: &mut BytesMut) -> Result<Option<MessageFrame>, NatsError> {
        let Some(expected) = &mut self.expected else { return Ok(None) };
        if expected.frame.discarded_bytes.is_some() {
            let arrived = expected.bytes.min(source.len());
            source.advance(arrived);
            expected.bytes -= arrived;
            if expected.bytes > 0 || source.len() < 2 {
                return Ok(None);
            }
        } else {
            if source.len() < expected.bytes + 2 {
                source.reserve(expected.bytes + 2 - source.len());
                return Ok(None);
            }
            // Copies: a part of the buffer would keep all of it.
            let (headers, payload) = source[..expected.bytes].split_at(expected.header_bytes);
            expected.frame.headers = Bytes::copy_from_slice(headers);
            expected.frame.payload = Bytes::copy_from_slice(payload);
            source.advance(expected.bytes);
        }
        if !source.starts_with(b"\r\n") {
            return Err(protocol("a message has another length than announced"));
        }
        source.advance(2);
        Ok(self.expected.take().map(|expected| expected.frame))
    }

    /// Parses the line of a message: `SUBJECT SID [REPLY] [HEADER-BYTES] BYTES`.
    fn expect(&mut self, rest: &str, has_headers: bool) -> Result<(), NatsError> {
        let bad = || protocol("the line of a message is invalid");
        let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<usize>().ok()).ok_or_else(bad);
        let bytes = number(words.pop())?;
        let header_bytes = if has_headers { number(words.pop())? } else { 0 };
        let (subject, subscription, reply) = match words[..] {
            [subject, subscription] => (subject, subscription, None),
            [subject, subscription, reply] => (subject, subscription, Some(reply.to_owned())),
            _ => return Err(bad()),
        };
        if header_bytes > bytes {
            return Err(bad());
        }
        let is_too_large = bytes > self.message_bytes_max || header_bytes > HEADER_BYTES_MAX;
        let frame = MessageFrame {
            subject: subject.to_owned(),
            subscription: subscription.parse().map_err(|_| bad())?,
            reply,
            headers: Bytes::new(),
            payload: Bytes::new(),
            discarded_bytes: is_too_large.then_some(bytes),
        };
        self.expected = Some(Expected { frame, header_bytes, bytes });
        Ok(())
    }
}

impl Decoder for Codec {
    type Item = ServerFrame;
    type Error = NatsError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<ServerFrame>, NatsError> {
        if self.expected.is_none() {
            let Some(line) = Self::line(source)? else { return Ok(None) };
            let line = std::str::from_utf8(&line).map_err(|_| protocol("a line is not UTF-8"))?;
            let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            let verb = verb.to_ascii_uppercase();
            match verb.as_str() {
                "MSG" | "HMSG" => self.expect(rest, verb == "HMSG")?,
                "PING" => return Ok(Some(ServerFrame::Ping)),
                "PONG" => return Ok(Some(ServerFrame::Pong)),
                "+OK" => return Ok(Some(ServerFrame::Ok)),
                "INFO" => return Ok(Some(ServerFrame::Info(rest.trim().to_owned()))),
                "-ERR" => return Ok(Some(ServerFrame::Error(rest.trim().trim_matches('\'').to_owned()))),
                _ => return Err(protocol("it is not a NATS server, or speaks TLS from the start")),
            }
        }
        Ok(self.contents(source)?.map(ServerFrame::Message))
    }
}

impl Encoder<Frame<'_>> for Codec {
    type Error = NatsError;

    fn encode(&mut self, frame: Frame<'_>, target: &mut BytesMut) -> Result<(), NatsError> {
        match frame {
            Frame::Connect(options) => target.extend_from_slice(format!("CONNECT {options}\r\n").as_bytes()),
            Frame::Subscribe(subject, number) => {
                target.extend_from_slice(format!("SUB {subject} {number}\r\n").as_bytes());
            }
            Frame::Publish { subject, reply, payload } => {
                let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
                target.extend_from_slice(format!("PUB {subject} {reply}{}\r\n", payload.len()).as_bytes());
                target.extend_from_slice(payload);
                target.extend_from_slice(b"\r\n");
            }
            Frame::Ping => target.extend_from_slice(b"PING\r\n"),
            Frame::Pong => target.extend_from_slice(b"PONG\r\n"),
        }
        Ok(())
    }
}

fn protocol(why: &str) -> NatsError {
    NatsError::protocol(why)
}

#[cfg(test)]
mod tests;
