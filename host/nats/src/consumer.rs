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
use tokio::time::{Instant, timeout_at};

/// Subscription of pulled messages.
const PULLED: u64 = 2;
/// Time that an acknowledgement takes, after the wait of a batch.
const ACK_MARGIN: Duration = Duration::from_secs(30);
/// Time after the wait of a pull in which the server has to end it.
const PULL_MARGIN: Duration = Duration::from_secs(10);

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
    /// The longest time for which the client holds a message for a batch. Messages that are not
    /// acknowledged half a minute later are delivered again.
    pub hold_max: Duration,
}

/// A consumer and the connection that pulls from it.
pub struct Consumer<S> {
    connection: Connection<S>,
    stream: String,
    name: String,
    inbox: String,
    /// Messages that the server may still send for the latest pull.
    outstanding: u32,
    /// End of the latest pull, if the server answers.
    pull_ends_at: Instant,
    /// Limits of a pull: messages and time.
    pull_max: (u32, Duration),
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

/// Message, or end of a pull.
#[derive(Debug)]
pub enum Pulled {
    /// A message.
    Message(Message),
    /// The latest pull has ended; it may have delivered fewer messages than it asked for.
    Ended,
}

/// Acknowledgement of a message.
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
    #[serde(default)]
    headers_only: bool,
    /// Limits of a consumer; 0 or less for none.
    #[serde(default)]
    max_batch: i64,
    #[serde(default)]
    max_expires: i64,
    #[serde(default)]
    ack_wait: i64,
}

impl ConsumerConfig {
    /// The longest wait of a pull. Held messages have to be acknowledged in time.
    fn wait_max(&self, is_held: bool) -> Duration {
        let limit = |nanoseconds: i64| u64::try_from(nanoseconds).ok().filter(|limit| *limit > 0);
        let expires = limit(self.max_expires).map_or(Duration::MAX, Duration::from_nanos);
        // Half of the time for an acknowledgement remains for the request.
        let ack = limit(self.ack_wait).filter(|_| is_held);
        expires.min(ack.map_or(Duration::MAX, |wait| Duration::from_nanos(wait / 2)))
    }
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
        let ConsumerSettings { stream, name, subject, from_oldest, unacknowledged_max, hold_max } = settings;
        let mut config = json!({
            "durable_name": name,
            "description": "made by Weir for a trigger",
            "ack_policy": "explicit",
            "ack_wait": nanoseconds(hold_max * 2 + ACK_MARGIN),
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
        Self::open(connection, &subject, &request, settings).await
    }

    /// Prepares to pull from a consumer that exists.
    ///
    /// # Errors
    /// If there is no such consumer, or if it is not one for pulls with explicit acknowledgements.
    pub async fn bind(connection: Connection<S>, settings: ConsumerSettings<'_>) -> Result<Self, NatsError> {
        let subject = format!("$JS.API.CONSUMER.INFO.{}.{}", settings.stream, settings.name);
        Self::open(connection, &subject, &Value::Null, settings).await
    }

    async fn open(
        mut connection: Connection<S>,
        subject: &str,
        request: &Value,
        settings: ConsumerSettings<'_>,
    ) -> Result<Self, NatsError> {
        let ConsumerSettings { stream, name, hold_max, .. } = settings;
        let config = call(&mut connection, subject, request).await?.config;
        let is_usable = |config: &ConsumerConfig| {
            config.ack_policy == "explicit"
                && !config.headers_only
                && config.deliver_subject.as_ref().is_none_or(String::is_empty)
        };
        let Some(config) = config.filter(is_usable) else {
            let text = format!(
                "the consumer {name} is not one for pulls of whole messages with explicit acknowledgements"
            );
            return Err(NatsError::Refused(text));
        };
        let messages_max = u32::try_from(config.max_batch).ok().filter(|limit| *limit > 0);
        let pull_max = (messages_max.unwrap_or(u32::MAX), config.wait_max(!hold_max.is_zero()));
        let inbox = connection.inbox("p");
        connection.subscribe(&inbox, PULLED).await?;
        Ok(Self {
            connection,
            stream: stream.to_owned(),
            name: name.to_owned(),
            inbox,
            outstanding: 0,
            pull_ends_at: Instant::now(),
            pull_max,
        })
    }

    /// Whether the latest pull has ended, so that another one may begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Asks for messages; the server ends the pull after `wait`. Both are limited by the consumer.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn pull(&mut self, messages: u32, wait: Duration) -> Result<(), NatsError> {
        let messages = messages.min(self.pull_max.0);
        let wait = wait.min(self.pull_max.1);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.name);
        let request = json!({"batch": messages, "expires": nanoseconds(wait)}).to_string();
        self.connection.publish(&subject, Some(&self.inbox), request.as_bytes()).await?;
        self.outstanding = messages;
        self.pull_ends_at = Instant::now() + wait + PULL_MARGIN;
        Ok(())
    }

    /// The next message, or the end of the latest pull. May be dropped and called again.
    ///
    /// # Errors
    /// If the connection failed, or the consumer was deleted.
    pub async fn next(&mut self) -> Result<Pulled, NatsError> {
        loop {
            let frame = if self.outstanding == 0 {
                self.connection.message().await?
            } else {
                let arriving = timeout_at(self.pull_ends_at, self.connection.message());
                arriving.await.map_err(|_| NatsError::Timeout(PULL_MARGIN.as_secs()))??
            };
            if frame.subscription != PULLED {
                continue;
            }
            if let Some(message) = Message::parse(&frame, &self.stream, &self.name) {
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
                Some(_) => return Err(NatsError::refused(&headers.status_text())),
                // A message of another client, which may publish to the inbox.
                None => {}
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

    /// Deletes a consumer, with its position. One that does not exist is no error.
    ///
    /// # Errors
    /// If the connection failed, or the server refuses.
    pub async fn delete(mut connection: Connection<S>, stream: &str, name: &str) -> Result<(), NatsError> {
        let subject = format!("$JS.API.CONSUMER.DELETE.{stream}.{name}");
        match call(&mut connection, &subject, &Value::Null).await {
            Err(NatsError::Refused(text)) if text.contains("not found") => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

impl Message {
    /// The memory that the message takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.headers.values.iter().map(|(name, value)| name.len() + value.len());
        self.payload.len() + self.subject.len() + self.ack.len() + headers.sum::<usize>()
    }

    /// Reads the position of a message from its subject for the acknowledgement:
    /// `$JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMER-SEQUENCE.TIME.PENDING[.RANDOM]`.
    fn parse(frame: &MessageFrame, stream: &str, consumer: &str) -> Option<Self> {
        let ack = frame.reply.as_ref()?;
        let words: Vec<&str> = ack.strip_prefix("$JS.ACK.")?.split('.').collect();
        let position = if words.len() == 7 { words.get(..6)? } else { words.get(2..8)? };
        let [of_stream, of_consumer, _, sequence, _, stored_at_ns] = position else { return None };
        if [*of_stream, *of_consumer] != [stream, consumer] {
            return None;
        }
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
        serde_json::from_slice(&answer).map_err(|error| NatsError::protocol(&error.to_string()))?;
    match answer.error {
        Some(error) => Err(NatsError::refused(&error.description)),
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
            let message = Message::parse(&frame(reply), "ORDERS", "weir").unwrap();
            assert_eq!((message.sequence, message.stored_at_ns), (42, 1_700_000_000_000_000_000), "{reply}");
        }
        for reply in ["$JS.ACK.ORDERS.weir", "_INBOX.a.p", "$JS.ACK.a.b.c.d.e.f.g"] {
            assert_eq!(Message::parse(&frame(reply), "ORDERS", "weir"), None, "{reply}");
        }
        let other = "$JS.ACK.OTHER.weir.1.42.7.1700000000000000000.3";
        assert_eq!(Message::parse(&frame(other), "ORDERS", "weir"), None, "another stream's");
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
