//! The settings of a stream, checked.

use crate::record::TriggerId;
use std::time::Duration;
use weir_types::ContentHash;
use weir_types::api::NatsSource;

/// Time for which a pull of single messages waits.
const PULL_WAIT: Duration = Duration::from_secs(30);
/// Port of NATS.
const PORT_DEFAULT: u16 = 4222;
/// Length limits.
const NAME_LEN_MAX: usize = 128;
const SUBJECT_LEN_MAX: usize = 255;
const URL_LEN_MAX: usize = 512;
/// Limits of the settings of batches and invocations.
const BATCH_MAX: u32 = 1_000;
const BATCH_WAIT_MS: (u64, u64) = (100, 60_000);
const RUNNING_MAX: u32 = 1_000;

/// A stream to read.
#[derive(Debug, Clone)]
pub(crate) struct StreamPlan {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls_required: bool,
    pub(crate) source: NatsSource,
}

impl StreamPlan {
    /// # Errors
    /// A text for the owner of the trigger.
    pub(crate) fn new(source: &NatsSource) -> Result<Self, String> {
        let wrong =
            || format!("source.nats.url is nats://HOST[:PORT] or tls://HOST[:PORT], not {:.64?}", source.url);
        let uri: http::Uri = source.url.parse().map_err(|_| wrong())?;
        let is_tls_required = match uri.scheme_str() {
            Some("nats") => false,
            Some("tls") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err(
                "source.nats.url has no login; source.nats.secret names the secret that has it".to_owned()
            );
        }
        let is_bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if !is_bare || host.is_empty() || source.url.len() > URL_LEN_MAX {
            return Err(wrong());
        }
        check_name("stream", &source.stream)?;
        if let Some(consumer) = &source.consumer {
            check_name("consumer", consumer)?;
        }
        let is_subject = |subject: &String| {
            (1..=SUBJECT_LEN_MAX).contains(&subject.len())
                && subject.bytes().all(|byte| byte.is_ascii_graphic())
                && subject.split('.').all(|word| !word.is_empty())
        };
        if !source.subject.as_ref().is_none_or(is_subject) {
            return Err("source.nats.subject is words between dots, such as orders.* or orders.>".to_owned());
        }
        let ranges = [
            ("batch_max", u64::from(source.batch_max), 1, u64::from(BATCH_MAX)),
            ("batch_wait_ms", source.batch_wait_ms, BATCH_WAIT_MS.0, BATCH_WAIT_MS.1),
            ("running_max", u64::from(source.running_max), 1, u64::from(RUNNING_MAX)),
        ];
        for (name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(format!("source.nats.{name} is from {least} to {most}"));
            }
        }
        if source.consumer.is_some() && source.subject.is_some() {
            return Err(
                "a consumer that exists has its own subject: leave out source.nats.subject".to_owned()
            );
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == authority.host() => PORT_DEFAULT,
            None => return Err(wrong()),
        };
        Ok(Self { host: host.to_owned(), port, is_tls_required, source: source.clone() })
    }

    /// The time for which a pull waits for messages.
    pub(crate) fn pull_wait(&self) -> Duration {
        if self.source.batch_max == 1 { PULL_WAIT } else { Duration::from_millis(self.source.batch_wait_ms) }
    }

    /// The time for which messages are held for a batch.
    pub(crate) fn hold_max(&self) -> Duration {
        if self.source.batch_max == 1 { Duration::ZERO } else { self.pull_wait() }
    }

    /// The consumer of a trigger. The name of one that the node creates is that of the trigger and its
    /// tenant, so that clusters that share a server should have tenants or triggers of other names.
    pub(crate) fn consumer(&self, id: &TriggerId) -> String {
        let own = || {
            let readable = format!("weir-{}-{}", id.tenant, id.name).replace('.', "_");
            // Names have hyphens, too: only the hash is unique.
            let hash = ContentHash::from_content(format!("{}/{}", id.tenant, id.name).as_bytes()).to_string();
            format!("{readable:.100}-{hash:.8}")
        };
        self.source.consumer.clone().unwrap_or_else(own)
    }

    /// Whether another plan reads through the same consumer, which therefore has to stay. The servers
    /// of a cluster have many addresses, so another address alone is no reason to lose the position.
    pub(crate) fn keeps_consumer_of(&self, other: &Self) -> bool {
        let [new, old] = [&self.source, &other.source];
        old.consumer.is_some()
            || (new.consumer.is_none() && new.stream == old.stream && new.start == old.start)
    }
}

/// Names of streams and consumers are words of subjects.
fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(is_valid) {
        return Err(format!("source.nats.{what} has 1 to {NAME_LEN_MAX} of the characters A-Z a-z 0-9 - _"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "callers pass literals")]
    fn plan(settings: serde_json::Value) -> Result<StreamPlan, String> {
        let mut source = json!({"url": "nats://h", "stream": "S"});
        source.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        StreamPlan::new(&serde_json::from_value(source).unwrap())
    }

    #[test]
    fn servers_are_hosts_with_ports() {
        let server =
            |url: &str| plan(json!({"url": url})).map(|plan| (plan.host, plan.port, plan.is_tls_required));
        assert_eq!(server("nats://nats.example"), Ok(("nats.example".to_owned(), 4222, false)));
        assert_eq!(server("tls://[::1]:5000"), Ok(("::1".to_owned(), 5000, true)));
        for url in [
            "http://h",
            "h:4222",
            "nats://h/path",
            "nats://",
            "nats://h\r\nPUB",
            "nats://h:99999",
            "nats://h?x=1",
        ] {
            assert!(server(url).is_err(), "{url}");
        }
        assert!(server("nats://me:secret@h").unwrap_err().contains("secret"));
    }

    #[test]
    fn names_and_subjects_are_words_of_the_protocol() {
        assert!(plan(json!({"subject": "orders.*.>"})).is_ok());
        for settings in [
            json!({"stream": "a.b"}),
            json!({"stream": ""}),
            json!({"stream": "a b"}),
            json!({"consumer": "a>"}),
            json!({"subject": "a b"}),
            json!({"subject": "a..b"}),
            json!({"subject": "a\r\nPUB x 0"}),
            json!({"batch_max": 0}),
            json!({"batch_max": 1_001}),
            json!({"batch_wait_ms": 60_001}),
            json!({"running_max": 0}),
            json!({"consumer": "c", "subject": "s"}),
        ] {
            assert!(plan(settings.clone()).is_err(), "{settings}");
        }
    }

    #[test]
    fn consumer_stays_while_its_stream_is_read() {
        let plan = |settings| plan(settings).unwrap();
        let old = plan(json!({}));
        assert!(plan(json!({"subject": "a", "batch_max": 9})).keeps_consumer_of(&old));
        assert!(plan(json!({"url": "tls://h:4222"})).keeps_consumer_of(&old));
        assert!(!plan(json!({"stream": "T"})).keeps_consumer_of(&old));
        assert!(!plan(json!({"start": "oldest"})).keeps_consumer_of(&old));
        assert!(!plan(json!({"consumer": "c"})).keeps_consumer_of(&old));
        assert!(old.keeps_consumer_of(&plan(json!({"consumer": "c"}))));
    }
}
