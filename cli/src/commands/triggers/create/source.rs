//! The source of a trigger.

use clap::{ArgGroup, ValueEnum};
use jiff::SignedDuration;
use weir_types::SecretName;
use weir_types::api::{EventsSource, NatsSource, StreamStart, TriggerSource};

/// The arguments that choose a source.
const SOURCES: [&str; 4] = ["cron", "every", "nats", "events"];
/// Sources without the options of streams. clap drops a requirement that conflicts with an argument.
const NO_STREAMS: [&str; 3] = ["cron", "every", "events"];

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = ArgGroup::new("cause").args(SOURCES).required(true).multiple(true))]
pub(super) struct SourceArgs {
    /// Schedule as a cron expression with 5 fields (minute, hour, day, month, weekday), or with 6
    /// fields of which the first has seconds
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "nats", "events"])]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron", conflicts_with_all = ["every", "nats", "events"])]
    timezone: Option<String>,
    /// Schedule as an interval, such as 30s or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration_ms, conflicts_with_all = ["nats", "events"])]
    every: Option<u64>,
    /// Messages of a NATS JetStream server, nats://HOST[:PORT], or tls://HOST[:PORT]
    #[arg(long, value_name = "URL", requires = "stream", conflicts_with = "events")]
    nats: Option<String>,
    /// Stream of the NATS server
    #[arg(long, value_name = "NAME", requires = "nats", conflicts_with_all = NO_STREAMS)]
    stream: Option<String>,
    /// Subject of the messages, such as orders.* [default: all messages of the stream]
    #[arg(long, value_name = "SUBJECT", requires = "nats", conflicts_with_all = ["cron", "every", "events", "consumer"])]
    subject: Option<String>,
    /// Durable pull consumer of the stream that exists already [default: one that Weir creates]
    #[arg(long, value_name = "NAME", requires = "nats", conflicts_with_all = NO_STREAMS)]
    consumer: Option<String>,
    /// Secret with the login at the NATS server: USER:PASSWORD, a token, the seed of a user's key, or
    /// the contents of a credentials file
    #[arg(long, value_name = "NAME", requires = "nats", conflicts_with_all = NO_STREAMS)]
    login_secret: Option<SecretName>,
    /// First message of a new consumer [default: new]
    #[arg(long, value_name = "MESSAGE", requires = "nats", conflicts_with_all = NO_STREAMS)]
    start: Option<StartArg>,
    /// Messages in one request; above 1, requests have batches of CloudEvents [default: 1]
    #[arg(long, value_name = "MESSAGES", requires = "nats", conflicts_with_all = NO_STREAMS)]
    batch_max: Option<u32>,
    /// Time for which a batch waits for further messages [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms, requires = "batch_max", conflicts_with_all = NO_STREAMS)]
    batch_wait: Option<u64>,
    /// Invocations of the trigger that have not ended, at most [default: 32]
    #[arg(long, value_name = "INVOCATIONS", requires = "nats", conflicts_with_all = NO_STREAMS)]
    running_max: Option<u32>,
    /// Events of this type, sent to POST /v1/triggers/NAME/events as CloudEvents or as notifications
    /// of an S3 store; a * at the end stands for any end; may be repeated
    #[arg(long, value_name = "TYPE")]
    events: Vec<String>,
    /// Start of the events' subjects, such as the folder of an object
    #[arg(long, value_name = "TEXT", requires = "events", conflicts_with_all = ["cron", "every", "nats"])]
    subject_prefix: Option<String>,
    /// End of the events' subjects, such as .png
    #[arg(long, value_name = "TEXT", requires = "events", conflicts_with_all = ["cron", "every", "nats"])]
    subject_suffix: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StartArg {
    /// The first message after the creation of the trigger
    New,
    /// The oldest message of the stream
    Oldest,
}

impl SourceArgs {
    pub(super) fn source(&self) -> TriggerSource {
        TriggerSource {
            cron: self.cron.clone(),
            timezone: self.timezone.clone(),
            every_ms: self.every,
            nats: self.nats(),
            events: self.events(),
        }
    }

    fn nats(&self) -> Option<NatsSource> {
        let mut source = NatsSource {
            subject: self.subject.clone(),
            consumer: self.consumer.clone(),
            secret: self.login_secret.clone(),
            ..NatsSource::new(self.nats.clone()?, self.stream.clone()?)
        };
        if let Some(StartArg::Oldest) = self.start {
            source.start = StreamStart::Oldest;
        }
        source.batch_max = self.batch_max.unwrap_or(source.batch_max);
        source.batch_wait_ms = self.batch_wait.unwrap_or(source.batch_wait_ms);
        source.running_max = self.running_max.unwrap_or(source.running_max);
        Some(source)
    }

    fn events(&self) -> Option<EventsSource> {
        let is_any = self.events.iter().any(|kind| kind == "*");
        let types = if is_any { Vec::new() } else { self.events.clone() };
        (!self.events.is_empty()).then(|| EventsSource {
            types,
            subject_prefix: self.subject_prefix.clone(),
            subject_suffix: self.subject_suffix.clone(),
        })
    }
}

/// Parses a duration such as `30s` to milliseconds.
pub(super) fn duration_ms(text: &str) -> Result<u64, String> {
    let duration: SignedDuration =
        text.parse().map_err(|_| "takes a duration such as 30s, 5m or 2h".to_owned())?;
    let duration_ms = u64::try_from(duration.as_millis()).ok().filter(|duration_ms| *duration_ms > 0);
    duration_ms.ok_or_else(|| "takes a positive duration".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        source: SourceArgs,
    }

    fn source(line: &str) -> Result<TriggerSource, clap::Error> {
        Line::try_parse_from(format!("weir {line}").split_whitespace()).map(|line| line.source.source())
    }

    #[test]
    fn durations_are_positive_milliseconds() {
        assert_eq!(duration_ms("1m30s"), Ok(90_000));
        assert!(duration_ms("-5s").is_err() && duration_ms("0s").is_err() && duration_ms("soon").is_err());
    }

    #[test]
    fn one_source_is_chosen_with_its_options() {
        let nats =
            source("--nats nats://h --stream S --subject a.* --batch-max 10 --batch-wait 2s --start oldest");
        let nats = nats.unwrap().nats.unwrap();
        assert_eq!((nats.batch_max, nats.batch_wait_ms, nats.running_max), (10, 2_000, 32));
        assert_eq!((nats.start, nats.subject.as_deref()), (StreamStart::Oldest, Some("a.*")));
        let events =
            source("--events s3:ObjectCreated:* --events x --subject-suffix .png").unwrap().events.unwrap();
        assert_eq!((events.types.len(), events.subject_suffix.as_deref()), (2, Some(".png")));
        assert_eq!(source("--events * --events x").unwrap().events, Some(EventsSource::default()));
        assert_eq!(source("--every 1s").unwrap().every_ms, Some(1_000));
        for line in [
            "",
            "--every 1s --cron x",
            "--nats nats://h",
            "--nats nats://h --stream S --events x",
            "--cron x --stream S",
            "--every 1s --timezone UTC",
            "--every 1s --subject-prefix a",
            "--stream S",
        ] {
            assert!(source(line).is_err(), "{line}");
        }
    }

    #[test]
    fn missing_source_error_lists_only_sources() {
        let error = source("").unwrap_err().to_string();
        assert!(
            error.contains("--cron <EXPRESSION>|--every <DURATION>|--nats <URL>|--events <TYPE>"),
            "{error}"
        );
        assert!(!error.contains("--timezone"), "{error}");
    }
}
