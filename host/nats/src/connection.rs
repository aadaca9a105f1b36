//! A connection to a server.

use crate::codec::{Codec, Frame, MessageFrame, ServerFrame};
use crate::headers::MessageHeaders;
use crate::{Login, NatsError};
use futures::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::codec::{Framed, FramedParts};

/// Time limit of each answer of the server.
const ANSWER_S_MAX: u64 = 10;
/// Silence after which the client checks the connection.
const SILENCE: Duration = Duration::from_secs(20);
/// Subscription of the answers to requests.
const ANSWERS: u64 = 1;

/// A stream of bytes to the server: TCP, or TLS over it.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Description of the server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Version.
    pub version: String,
    /// Whether the connection has to change to TLS before the login.
    pub tls_required: bool,
    /// Whether messages have headers.
    pub headers: bool,
    nonce: Option<String>,
}

/// A connection after the login.
pub struct Connection<S> {
    framed: Framed<S, Codec>,
    /// Prefix of the subjects of answers.
    inbox: String,
    requests: u64,
    /// Time of the latest frame of the server.
    heard_at: Instant,
    /// Time of a check of the connection that the server has not answered.
    checked_at: Option<Instant>,
}

impl<S: ByteStream> Connection<S> {
    /// Receives the description of the server, lets `secure` change the connection to TLS, and logs
    /// in. Messages above `message_bytes_max` arrive without their contents.
    ///
    /// # Errors
    /// If the server refuses the login, has no headers, or does not answer.
    pub async fn open<F>(
        stream: S,
        message_bytes_max: usize,
        login: &Login,
        secure: impl FnOnce(S, Server) -> F,
    ) -> Result<Self, NatsError>
    where
        F: Future<Output = Result<S, NatsError>>,
    {
        let mut framed = Framed::new(stream, Codec::new(message_bytes_max));
        let server = match answer(framed.next()).await?.ok_or(NatsError::Closed)?? {
            ServerFrame::Info(text) => serde_json::from_str::<Server>(&text)
                .map_err(|error| NatsError::protocol(&format!("the first line: {error}")))?,
            ServerFrame::Error(text) => return Err(NatsError::refused(&text)),
            _ => return Err(NatsError::protocol("the first line is not a description of the server")),
        };
        if !server.headers {
            return Err(NatsError::Refused(
                "the server has no headers; NATS 2.2 or later has them".to_owned(),
            ));
        }
        // What follows in clear text is not to be believed.
        let FramedParts { io, codec, .. } = framed.into_parts();
        let framed = Framed::new(answer(secure(io, server.clone())).await??, codec);
        let inbox = format!("_INBOX.{:032x}", rand::random::<u128>());
        let mut connection = Self { framed, inbox, requests: 0, heard_at: Instant::now(), checked_at: None };
        let mut options = options();
        login.add_to(&mut options, server.nonce.as_deref())?;
        answer(connection.log_in(&Value::from(options).to_string())).await??;
        Ok(connection)
    }

    /// Logs in, and waits for the answer to a check of the connection, which follows a refusal.
    async fn log_in(&mut self, options: &str) -> Result<(), NatsError> {
        self.framed.feed(Frame::Connect(options)).await?;
        let answers = format!("{}.r.*", self.inbox);
        self.framed.feed(Frame::Subscribe(&answers, ANSWERS)).await?;
        self.framed.send(Frame::Ping).await?;
        loop {
            match self.framed.next().await.ok_or(NatsError::Closed)?? {
                ServerFrame::Pong => return Ok(()),
                ServerFrame::Ping => self.framed.send(Frame::Pong).await?,
                ServerFrame::Error(text) => return Err(NatsError::refused(&text)),
                ServerFrame::Info(_) | ServerFrame::Ok | ServerFrame::Message(_) => {}
            }
        }
    }

    /// A subject for answers that no other client uses.
    pub(crate) fn inbox(&self, name: &str) -> String {
        format!("{}.{name}", self.inbox)
    }

    pub(crate) async fn subscribe(&mut self, subject: &str, number: u64) -> Result<(), NatsError> {
        answer(self.framed.send(Frame::Subscribe(subject, number))).await?
    }

    pub(crate) async fn publish(
        &mut self,
        subject: &str,
        reply: Option<&str>,
        payload: &[u8],
    ) -> Result<(), NatsError> {
        let sending = self.framed.send(Frame::Publish { subject, reply, payload });
        answer(sending).await?
    }

    /// Sends a request, and returns the payload of its answer. Messages of other subscriptions that
    /// arrive meanwhile are lost, so that requests come before the first pull.
    pub(crate) async fn request(&mut self, subject: &str, payload: &[u8]) -> Result<bytes::Bytes, NatsError> {
        self.requests += 1;
        let reply = self.inbox(&format!("r.{}", self.requests));
        self.publish(subject, Some(&reply), payload).await?;
        let waiting = async {
            loop {
                let message = self.message().await?;
                if message.subject == reply {
                    return Ok::<_, NatsError>(message);
                }
            }
        };
        let message = answer(waiting).await??;
        let headers = MessageHeaders::parse(&message.headers);
        match headers.status {
            Some(503) => Err(NatsError::Refused(
                "nobody answers; the server has no JetStream, or the login may not use it".to_owned(),
            )),
            Some(_) => Err(NatsError::refused(&headers.status_text())),
            None => Ok(message.payload),
        }
    }

    /// The next message of any subscription. Answers the server's checks, and checks a silent
    /// connection. May be dropped and called again: no message is lost.
    pub(crate) async fn message(&mut self) -> Result<MessageFrame, NatsError> {
        loop {
            // The times last longer than this future, which callers drop to do other work.
            let silent_until = self.checked_at.unwrap_or(self.heard_at) + SILENCE;
            let Ok(frame) = timeout_at(silent_until, self.framed.next()).await else {
                if self.checked_at.is_some() {
                    return Err(NatsError::Timeout(SILENCE.as_secs()));
                }
                self.checked_at = Some(Instant::now());
                answer(self.framed.send(Frame::Ping)).await??;
                continue;
            };
            self.heard_at = Instant::now();
            self.checked_at = None;
            match frame.ok_or(NatsError::Closed)?? {
                ServerFrame::Message(message) => return Ok(message),
                ServerFrame::Ping => answer(self.framed.send(Frame::Pong)).await??,
                ServerFrame::Error(text) => return Err(NatsError::refused(&text)),
                ServerFrame::Info(_) | ServerFrame::Ok | ServerFrame::Pong => {}
            }
        }
    }
}

fn options() -> Map<String, Value> {
    let options = json!({
        "verbose": false,
        "pedantic": false,
        "echo": false,
        "headers": true,
        "no_responders": true,
        "protocol": 1,
        "name": "weir",
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
    });
    match options {
        Value::Object(options) => options,
        _ => Map::new(),
    }
}

/// Bounds the wait for an answer.
pub(crate) async fn answer<T>(waiting: impl Future<Output = T>) -> Result<T, NatsError> {
    timeout(Duration::from_secs(ANSWER_S_MAX), waiting).await.map_err(|_| NatsError::Timeout(ANSWER_S_MAX))
}

#[cfg(test)]
mod tests;
