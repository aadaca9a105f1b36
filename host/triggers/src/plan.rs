//! Checks the settings of a trigger, and prepares its cause and its request.

mod request;
pub(crate) use request::Occasion;

mod stream;
pub(crate) use stream::StreamPlan;

use crate::event::Event;
use crate::schedule::{CronExpression, Schedule};
use axum::extract::Request;
use http::HeaderValue;
use jiff::tz::TimeZone;
use request::PreparedRequest;
use weir_asynchronous::TriggersConfig;
use weir_call::headers::IDEMPOTENCY_KEY;
use weir_types::api::{EventsSource, MissedPolicy, OverlapPolicy, TriggerSource, TriggerSpec};
use weir_types::{Hasher, Name};

/// Length limit of the name of a time zone.
const ZONE_LEN_MAX: usize = 64;
/// Ticks whose intervals are compared with the shortest interval.
const CHECKED_TICKS: usize = 100;
/// Limits of the types and subjects of events.
const TYPES_MAX: usize = 100;
const TYPE_LEN_MAX: usize = 1_024;

/// The cause of a trigger's requests, and the requests.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) cause: Cause,
    request: PreparedRequest,
}

/// The cause of a trigger's requests.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// The ticks of a schedule.
    Schedule(Schedule),
    /// The messages of a stream.
    Messages(StreamPlan),
    /// Events that clients send.
    Events(EventsSource),
}

impl Plan {
    /// Prepares a trigger whose intervals start at `since_ms`.
    ///
    /// # Errors
    /// A text for the owner if the settings are invalid, or if this node does not know the time zone.
    pub(crate) async fn new(spec: &TriggerSpec, since_ms: u64) -> Result<Self, String> {
        let cause = cause(&spec.source, since_ms).await?;
        let request = PreparedRequest::new(&spec.target, &spec.request)?;
        if !matches!(cause, Cause::Schedule(_)) {
            if spec.missed != MissedPolicy::Skip || spec.overlap != OverlapPolicy::Allow {
                return Err("missed and overlap go with source.cron and source.every_ms".to_owned());
            }
            if request.body_len() > 0 {
                return Err("the message or event is the body: leave out request.body".to_owned());
            }
        }
        Ok(Self { cause, request })
    }

    /// The schedule of a trigger that has one.
    pub(crate) fn schedule(&self) -> Option<&Schedule> {
        match &self.cause {
            Cause::Schedule(schedule) => Some(schedule),
            Cause::Messages(_) | Cause::Events(_) => None,
        }
    }

    /// Checks the plan of a new or changed trigger against the limits of the node.
    pub(crate) fn check(&self, config: &TriggersConfig, now_ms: u64) -> Result<(), String> {
        let body_bytes_max = config.body_bytes_max as usize;
        if self.request.body_len() > body_bytes_max {
            return Err(format!(
                "the body has more than {body_bytes_max} bytes (async.triggers.body_bytes_max)"
            ));
        }
        let Some(schedule) = self.schedule() else { return Ok(()) };
        let ticks = schedule.upcoming(now_ms, CHECKED_TICKS);
        if ticks.is_empty() {
            return Err("the schedule has no tick within the next years; check the date".to_owned());
        }
        let interval_ms_min = config.interval_ms_min;
        let is_dense = |pair: &[u64]| matches!(pair, [one, next] if next - one < interval_ms_min);
        if ticks.windows(2).any(is_dense) {
            return Err(format!(
                "ticks are at least {interval_ms_min} ms apart (async.triggers.interval_ms_min)"
            ));
        }
        Ok(())
    }

    /// The request of the trigger `name`.
    pub(crate) fn request(&self, name: &Name, occasion: Occasion<'_>) -> Request {
        self.request.build(name, occasion)
    }

    /// The request for `events` of the trigger `name`, which was created at `created_at_ms`. `keys`
    /// identify the events: the same ones make one invocation, however often they arrive.
    pub(crate) fn event_request(
        &self,
        name: &Name,
        created_at_ms: u64,
        events: &[Event],
        keys: impl IntoIterator<Item = String>,
    ) -> Request {
        let occasion = match events {
            [event] => Occasion::Event(event),
            batch => Occasion::Batch(batch),
        };
        let mut request = self.request(name, occasion);
        let mut hasher = Hasher::default();
        hasher.update(format!("{name} {created_at_ms}").as_bytes());
        for key in keys {
            hasher.update(format!("\n{key}").as_bytes());
        }
        let key = HeaderValue::from_str(&format!("trigger-{}", hasher.finish()));
        request.headers_mut().extend(key.ok().map(|key| (IDEMPOTENCY_KEY, key)));
        request
    }
}

async fn cause(source: &TriggerSource, since_ms: u64) -> Result<Cause, String> {
    let TriggerSource { cron, timezone, every_ms, nats, events } = source;
    if timezone.is_some() && cron.is_none() {
        return Err("source.timezone goes with source.cron".to_owned());
    }
    match (cron, every_ms, nats, events) {
        (Some(expression), None, None, None) => {
            let expression = CronExpression::parse(expression)?;
            Ok(Cause::Schedule(Schedule::Cron { expression, zone: zone(timezone.as_deref()).await? }))
        }
        (None, Some(0), None, None) => Err("source.every_ms is at least 1".to_owned()),
        (None, Some(every_ms), None, None) => {
            Ok(Cause::Schedule(Schedule::Every { every_ms: *every_ms, start_ms: since_ms }))
        }
        (None, None, Some(nats), None) => StreamPlan::new(nats).map(Cause::Messages),
        (None, None, None, Some(events)) => check_events(events).map(Cause::Events),
        _ => Err("source has one of cron, every_ms, nats and events".to_owned()),
    }
}

fn check_events(source: &EventsSource) -> Result<EventsSource, String> {
    let EventsSource { types, subject_prefix, subject_suffix } = source;
    let texts = types.iter().chain(subject_prefix).chain(subject_suffix);
    if types.len() > TYPES_MAX || texts.clone().any(|text| text.is_empty() || text.len() > TYPE_LEN_MAX) {
        return Err(format!(
            "source.events has at most {TYPES_MAX} types; types and subjects have 1 to {TYPE_LEN_MAX} bytes"
        ));
    }
    Ok(source.clone())
}

/// Finds a time zone in the database of the system.
async fn zone(name: Option<&str>) -> Result<TimeZone, String> {
    let Some(name) = name.filter(|name| !name.eq_ignore_ascii_case("utc")) else { return Ok(TimeZone::UTC) };
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
    if name.len() > ZONE_LEN_MAX || !name.bytes().all(is_valid) {
        return Err("source.timezone is a name such as Europe/Berlin".to_owned());
    }
    let sought = name.to_owned();
    // Reads a file.
    let found = tokio::task::spawn_blocking(move || jiff::tz::db().get(&sought));
    let unknown = || {
        format!(
            "the node does not know the time zone {name:?}: check the name, or install the system's time zones on the node (package tzdata)"
        )
    };
    found.await.map_err(|error| error.to_string())?.map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> TriggerSpec {
        serde_json::from_str(json).unwrap()
    }

    #[tokio::test]
    async fn request_of_a_tick_names_the_trigger_and_the_time() {
        let spec = spec(
            r#"{"source": {"every_ms": 1000}, "target": {"function": "f"},
                "request": {"path": "/a?b=c", "headers": {"x-kind": "daily"}, "body": "{}"}}"#,
        );
        let plan = Plan::new(&spec, 0).await.unwrap();
        let request = plan.request(&Name::new("nightly").unwrap(), Occasion::Tick(1_500));
        assert_eq!(
            (request.method(), request.uri().to_string().as_str()),
            (&http::Method::POST, "/fn/f/a?b=c")
        );
        let header = |name: &str| request.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!(header("weir-trigger"), "nightly");
        assert_eq!(header("weir-scheduled-at"), "1970-01-01T00:00:01.5Z");
        assert_eq!(
            [header("x-kind"), header("content-length"), header("prefer")],
            ["daily", "2", "respond-async"]
        );
        let by_hand = plan.request(&Name::new("nightly").unwrap(), Occasion::ByHand);
        assert!(!by_hand.headers().contains_key("weir-scheduled-at"));
    }

    #[tokio::test]
    async fn invalid_settings_are_refused() {
        for (json, said) in [
            (r#"{"source": {}, "target": {"function": "f"}}"#, "one of cron, every_ms"),
            (r#"{"source": {"cron": "* * * * *", "every_ms": 1}, "target": {"function": "f"}}"#, "one of"),
            (r#"{"source": {"every_ms": 0}, "target": {"function": "f"}}"#, "at least 1"),
            (r#"{"source": {"every_ms": 5, "timezone": "UTC"}, "target": {"function": "f"}}"#, "goes with"),
            (
                r#"{"source": {"cron": "* * * * *", "timezone": "../x"}, "target": {"function": "f"}}"#,
                "such as",
            ),
            (
                r#"{"source": {"cron": "* * * * *", "timezone": "No/Where"}, "target": {"function": "f"}}"#,
                "tzdata",
            ),
            (r#"{"source": {"every_ms": 5}, "target": {}}"#, "one of function and inference"),
            (r#"{"source": {"every_ms": 5}, "target": {"function": "f", "inference": "m"}}"#, "one of"),
            (r#"{"source": {"every_ms": 5}, "target": {"function": "f", "version": 1}}"#, "target.version"),
            (
                r#"{"source": {"every_ms": 5}, "target": {"inference": "m"}, "request": {"path": "/x"}}"#,
                "neither",
            ),
            (
                r#"{"source": {"every_ms": 5}, "target": {"function": "f"}, "request": {"path": "x"}}"#,
                "starts with /",
            ),
            (
                r#"{"source": {"every_ms": 5}, "target": {"function": "f"}, "request": {"method": "A B"}}"#,
                "method",
            ),
            (
                r#"{"source": {"every_ms": 5}, "target": {"function": "f"}, "request": {"headers": {"Prefer": "x"}}}"#,
                "the node sets prefer",
            ),
            (
                r#"{"source": {"every_ms": 5}, "target": {"function": "f"}, "request": {"headers": {"weir-trigger": "x"}}}"#,
                "the node sets",
            ),
            (
                r#"{"source": {"every_ms": 5}, "target": {"function": "f"}, "request": {"body_base64": "?"}}"#,
                "not base64",
            ),
        ] {
            let error = Plan::new(&spec(json), 0).await.unwrap_err();
            assert!(error.contains(said), "{json}: {error}");
        }
    }

    #[tokio::test]
    async fn limits_apply_to_new_triggers() {
        let config =
            TriggersConfig { interval_ms_min: 2_000, body_bytes_max: 2, ..TriggersConfig::default() };
        for (json, said) in [
            (r#"{"source": {"every_ms": 1999}, "target": {"function": "f"}}"#, "interval_ms_min"),
            (r#"{"source": {"cron": "0,1 * * * * *"}, "target": {"function": "f"}}"#, "interval_ms_min"),
            (r#"{"source": {"cron": "0 0 31 2 *"}, "target": {"function": "f"}}"#, "no tick"),
            (
                r#"{"source": {"every_ms": 5000}, "target": {"function": "f"}, "request": {"body": "abc"}}"#,
                "body_bytes_max",
            ),
        ] {
            let error = Plan::new(&spec(json), 0).await.unwrap().check(&config, 0).unwrap_err();
            assert!(error.contains(said), "{json}: {error}");
        }
        let fine = spec(r#"{"source": {"cron": "*/2 * * * * *"}, "target": {"function": "f"}}"#);
        Plan::new(&fine, 0).await.unwrap().check(&config, 0).unwrap();
    }
}
