//! Pull consumers of JetStream streams.

use crate::NatsError;
use crate::codec::MessageFrame;
use crate::connection::{ByteStream, Connection};
use crate::headers::MessageHeaders;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// Subscription of pulled messages.
const PULLED: u64 = 2;
/// Time after which the server delivers a message again that was not acknowledged.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// A durable consumer to create, or to use.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerSettings<'a> {
    /// Stream.
    pub stream: &'a str,
    /// Consumer.
    pub name: &'a str,
    /// Subjects of the messages; none for all.
    pub subject: Option<&'a str>,
    /// Whether a new consumer starts with the oldest message of the stream, not with the next one.
    pub from_oldest: bool,
    /// Messages that are delivered and not acknowledged, at most.
    pub unacknowledged_max: u32,
}

/// A consumer and the connection that pulls from it.
pub struct Consumer<S> {
    connection: Connection<S>,
    stream: String,
    name: String,
    inbox: String,
    /// Messages that the server may still send for the latest pull.
    outstanding: u32,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Subject.
    pub subject: String,
    /// Headers.
    pub headers: MessageHeaders,
    /// Payload.
    pub payload: Bytes,
    /// Size of a message above the limit, which arrived without headers and payload.
    pub discarded_bytes: Option<usize>,
    /// Position in the stream.
    pub sequence: u64,
    /// Time at which the stream stored the message, in Unix nanoseconds.
    pub stored_at_ns: u64,
    /// Subject for the acknowledgement.
    ack: String,
}

/// What a consumer received.
#[derive(Debug)]
pub enum Pulled {
    /// A message.
    Message(Message),
    /// The latest pull has ended; it may have delivered fewer messages than it asked for.
    Ended,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledgement {
    /// It was processed.
    Done,
    /// It is delivered again, after this time.
    Again(Duration),
    /// It is not delivered again, although it was not processed.
    Never,
}

/// Answer of the JetStream API.
#[derive(Deserialize)]
struct ApiAnswer {
    error: Option<ApiError>,
    config: Option<ConsumerConfig>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct ConsumerConfig {
    deliver_subject: Option<String>,
    #[serde(default)]
    ack_policy: String,
}

impl<S: ByteStream> Consumer<S> {
    /// Creates the consumer unless it exists, and prepares to pull from it.
    ///
    /// # Errors
    /// If the server has no such stream, or has a consumer of this name with other settings.
    pub async fn create(
        connection: Connection<S>,
        settings: ConsumerSettings<'_>,
    ) -> Result<Self, NatsError> {
        let ConsumerSettings { stream, name, subject, from_oldest, unacknowledged_max } = settings;
        let mut config = json!({
            "durable_name": name,
            "description": "made by Weir for a trigger",
            "ack_policy": "explicit",
            "ack_wait": nanoseconds(ACK_WAIT),
            "deliver_policy": if from_oldest { "all" } else { "new" },
            "replay_policy": "instant",
            "max_ack_pending": unacknowledged_max,
            "max_deliver": -1,
        });
        if let Some(subject) = subject {
            config["filter_subject"] = subject.into();
        }
        let request = json!({"stream_name": stream, "config": config});
        let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
        Self::open(connection, &subject, &request, stream, name).await
    }

    /// Prepares to pull from a consumer that exists.
    ///
    /// # Errors
    /// If there is no such consumer, or if it is not one for pulls with explicit acknowledgements.
    pub async fn bind(connection: Connection<S>, stream: &str, name: &str) -> Result<Self, NatsError> {
        let subject = format!("$JS.API.CONSUMER.INFO.{stream}.{name}");
        Self::open(connection, &subject, &Value::Null, stream, name).await
    }

    async fn open(
        mut connection: Connection<S>,
        subject: &str,
        request: &Value,
        stream: &str,
        name: &str,
    ) -> Result<Self, NatsError> {
        let config = call(&mut connection, subject, request).await?.config;
        let is_usable = |config: &ConsumerConfig| {
            config.ack_policy == "explicit" && config.deliver_subject.as_ref().is_none_or(String::is_empty)
        };
        if !config.as_ref().is_some_and(is_usable) {
            let text = format!("the consumer {name} is not a pull consumer with explicit acknowledgements");
            return Err(NatsError::Refused(text));
        }
        let inbox = connection.inbox("p");
        connection.subscribe(&inbox, PULLED).await?;
        Ok(Self { connection, stream: stream.to_owned(), name: name.to_owned(), inbox, outstanding: 0 })
    }

    /// Whether the latest pull has ended, so that another one may begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Asks for messages; the server ends the pull after `wait`.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn pull(&mut self, messages: u32, wait: Duration) -> Result<(), NatsError> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.name);
        let request = json!({"batch": messages, "expires": nanoseconds(wait)}).to_string();
        self.connection.publish(&subject, Some(&self.inbox), request.as_bytes()).await?;
        self.outstanding = messages;
        Ok(())
    }

    /// The next message, or the end of the latest pull. May be dropped and called again.
    ///
    /// # Errors
    /// If the connection failed, or the consumer was deleted.
    pub async fn next(&mut self) -> Result<Pulled, NatsError> {
        loop {
            let frame = self.connection.message().await?;
            if frame.subscription != PULLED {
                continue;
            }
            if let Some(message) = Message::parse(&frame) {
                self.outstanding = self.outstanding.saturating_sub(1);
                return Ok(Pulled::Message(message));
            }
            let headers = MessageHeaders::parse(&frame.headers);
            match headers.status {
                // A sign of life.
                Some(100) => {}
                Some(404 | 408) => {
                    self.outstanding = 0;
                    return Ok(Pulled::Ended);
                }
                _ => return Err(NatsError::Refused(headers.status_text())),
            }
        }
    }

    /// Reports the outcome of a message to the server.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn acknowledge(&mut self, message: &Message, what: Acknowledgement) -> Result<(), NatsError> {
        self.connection.publish(&message.ack, None, what.to_string().as_bytes()).await
    }

    /// Deletes the consumer. Its unacknowledged messages are forgotten.
    ///
    /// # Errors
    /// If the connection failed, or the server refuses.
    pub async fn delete(mut self) -> Result<(), NatsError> {
        let subject = format!("$JS.API.CONSUMER.DELETE.{}.{}", self.stream, self.name);
        call(&mut self.connection, &subject, &Value::Null).await.map(drop)
    }
}

impl Message {
    /// Reads the position of a message from its subject for the acknowledgement:
    /// `$JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMER-SEQUENCE.TIME.PENDING[.RANDOM]`.
    fn parse(frame: &MessageFrame) -> Option<Self> {
        let ack = frame.reply.as_ref()?;
        let words: Vec<&str> = ack.strip_prefix("$JS.ACK.")?.split('.').collect();
        let position = if words.len() == 7 { words.get(3..6)? } else { words.get(5..8)? };
        let [sequence, _, stored_at_ns] = position else { return None };
        Some(Self {
            subject: frame.subject.clone(),
            headers: MessageHeaders::parse(&frame.headers),
            payload: frame.payload.clone(),
            discarded_bytes: frame.discarded_bytes,
            sequence: sequence.parse().ok()?,
            stored_at_ns: stored_at_ns.parse().ok()?,
            ack: ack.clone(),
        })
    }
}

impl fmt::Display for Acknowledgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("+ACK"),
            Self::Again(delay) => write!(f, "-NAK {{\"delay\": {}}}", nanoseconds(*delay)),
            Self::Never => f.write_str("+TERM"),
        }
    }
}

async fn call<S: ByteStream>(
    connection: &mut Connection<S>,
    subject: &str,
    request: &Value,
) -> Result<ApiAnswer, NatsError> {
    let request = if request.is_null() { String::new() } else { request.to_string() };
    let answer = connection.request(subject, request.as_bytes()).await?;
    let answer: ApiAnswer =
        serde_json::from_slice(&answer).map_err(|error| NatsError::Protocol(error.to_string()))?;
    match answer.error {
        Some(error) => Err(NatsError::Refused(error.description)),
        None => Ok(answer),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(reply: &str) -> MessageFrame {
        MessageFrame {
            subject: "orders.new".to_owned(),
            subscription: PULLED,
            reply: Some(reply.to_owned()),
            headers: Bytes::new(),
            payload: Bytes::from_static(b"x"),
            discarded_bytes: None,
        }
    }

    #[test]
    fn position_is_read_from_old_and_new_subjects() {
        for reply in [
            "$JS.ACK.ORDERS.weir.1.42.7.1700000000000000000.3",
            "$JS.ACK._.hash.ORDERS.weir.1.42.7.1700000000000000000.3",
            "$JS.ACK.hub.hash.ORDERS.weir.1.42.7.1700000000000000000.3.random",
        ] {
            let message = Message::parse(&frame(reply)).unwrap();
            assert_eq!((message.sequence, message.stored_at_ns), (42, 1_700_000_000_000_000_000), "{reply}");
        }
        for reply in ["$JS.ACK.ORDERS.weir", "_INBOX.a.p", "$JS.ACK.a.b.c.d.e.f.g"] {
            assert_eq!(Message::parse(&frame(reply)), None, "{reply}");
        }
    }

    #[test]
    fn acknowledgements_have_the_words_of_the_server() {
        assert_eq!(Acknowledgement::Done.to_string(), "+ACK");
        assert_eq!(
            Acknowledgement::Again(Duration::from_millis(1_500)).to_string(),
            "-NAK {\"delay\": 1500000000}"
        );
        assert_eq!(Acknowledgement::Never.to_string(), "+TERM");
    }
}
