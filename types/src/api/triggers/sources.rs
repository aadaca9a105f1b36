//! What causes the requests of a trigger.

use crate::SecretName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Cause of a trigger's requests: one of `cron`, `every_ms`, `nats` and `events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerSource {
    /// Cron expression with five fields, or with six fields of which the first has seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Time zone of the cron expression, as a name of the IANA database; `None` for UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Interval between ticks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// Messages of a NATS JetStream stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nats: Option<NatsSource>,
    /// Events that are sent to `POST /v1/triggers/{name}/events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsSource>,
}

/// Messages of a stream of a NATS server with JetStream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsSource {
    /// Server, as `nats://HOST[:PORT]`, or `tls://HOST[:PORT]` for a connection that has to be encrypted.
    pub url: String,
    /// Stream.
    pub stream: String,
    /// Subject of the messages, which may have wildcards; `None` for all messages of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Durable pull consumer that exists already; `None` for one that the node creates and deletes
    /// with the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Secret with the login: `USER:PASSWORD`, a token, the seed of a user's key, or a credentials file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretName>,
    /// First message of a consumer that the node creates.
    #[serde(default)]
    pub start: StreamStart,
    /// Messages in one request. With 1, the body is the message; above, it is a batch of CloudEvents.
    #[serde(default = "batch_max_default")]
    pub batch_max: u32,
    /// Time for which a batch waits for further messages.
    #[serde(default = "batch_wait_ms_default")]
    pub batch_wait_ms: u64,
    /// Invocations of the trigger that have not ended, at most.
    #[serde(default = "running_max_default")]
    pub running_max: u32,
}

/// First message that a new consumer of a stream receives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamStart {
    /// The first message after the creation.
    #[default]
    New,
    /// The oldest message of the stream.
    Oldest,
}

/// Events of clients: CloudEvents, or notifications of an S3 store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsSource {
    /// Types of events, in which a `*` at the end stands for any end; empty for all types.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Start of the events' subjects. The subject of a notification is the key of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_prefix: Option<String>,
    /// End of the events' subjects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_suffix: Option<String>,
}

impl NatsSource {
    /// The messages of a stream of the server at `url`, one in each request.
    #[must_use]
    pub fn new(url: String, stream: String) -> Self {
        Self {
            url,
            stream,
            subject: None,
            consumer: None,
            secret: None,
            start: StreamStart::default(),
            batch_max: batch_max_default(),
            batch_wait_ms: batch_wait_ms_default(),
            running_max: running_max_default(),
        }
    }
}

impl EventsSource {
    /// Whether the trigger is for events of this type and subject.
    #[must_use]
    pub fn matches(&self, kind: &str, subject: &str) -> bool {
        let is_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => kind.starts_with(start),
            None => kind == pattern,
        };
        (self.types.is_empty() || self.types.iter().any(is_type))
            && self.subject_prefix.as_ref().is_none_or(|prefix| subject.starts_with(prefix))
            && self.subject_suffix.as_ref().is_none_or(|suffix| subject.ends_with(suffix))
    }
}

impl fmt::Display for EventsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = if self.types.is_empty() { "all types".to_owned() } else { self.types.join(", ") };
        write!(f, "events of {types}")?;
        match (&self.subject_prefix, &self.subject_suffix) {
            (None, None) => Ok(()),
            (prefix, suffix) => {
                let [prefix, suffix] = [prefix, suffix].map(|text| text.as_deref().unwrap_or_default());
                write!(f, ", subject {prefix}*{suffix}")
            }
        }
    }
}

impl fmt::Display for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stream {}", self.url, self.stream)?;
        match &self.subject {
            Some(subject) => write!(f, ", subject {subject}"),
            None => Ok(()),
        }
    }
}

const fn batch_max_default() -> u32 {
    1
}

const fn batch_wait_ms_default() -> u64 {
    1_000
}

const fn running_max_default() -> u32 {
    32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_match_by_type_and_subject() {
        let source = EventsSource {
            types: vec!["s3:ObjectCreated:*".to_owned(), "com.example.done".to_owned()],
            subject_prefix: Some("in/".to_owned()),
            subject_suffix: Some(".png".to_owned()),
        };
        assert!(source.matches("s3:ObjectCreated:Put", "in/a.png"));
        assert!(source.matches("com.example.done", "in/.png"));
        assert!(!source.matches("com.example.done.too", "in/a.png"));
        assert!(!source.matches("s3:ObjectRemoved:Delete", "in/a.png"));
        assert!(!source.matches("s3:ObjectCreated:Put", "out/a.png"));
        assert!(EventsSource::default().matches("", "any"));
        assert_eq!(source.to_string(), "events of s3:ObjectCreated:*, com.example.done, subject in/*.png");
    }
}
