//! Checks the settings of a trigger, and prepares its schedule and its request.

use crate::schedule::{CronExpression, Schedule};
use axum::body::Body;
use axum::extract::Request;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use weir_asynchronous::TriggersConfig;
use weir_call::headers::{CALLBACK, PREFER, PRIORITY, VERSION_KEY};
use weir_types::Name;
use weir_types::api::{SCHEDULED_AT_HEADER, TRIGGER_HEADER, TriggerRequest, TriggerSpec, TriggerTarget};

/// Length limit of the path and query of a request.
const PATH_LEN_MAX: usize = 2_048;
/// Limits of the headers of a request.
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 8 << 10;
/// Length limit of the name of a time zone.
const ZONE_LEN_MAX: usize = 64;
/// Ticks whose intervals are compared with the shortest interval.
const CHECKED_TICKS: usize = 100;

/// Headers that belong to a connection or to the node.
const OWN_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "prefer",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The schedule of a trigger, and its request.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    request: PreparedRequest,
}

#[derive(Debug, Clone)]
struct PreparedRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: bytes::Bytes,
}

impl Plan {
    /// Prepares a trigger whose intervals start at `since_ms`.
    ///
    /// # Errors
    /// A text for the owner if the settings are invalid, or if this node does not know the time zone.
    pub(crate) async fn new(spec: &TriggerSpec, since_ms: u64) -> Result<Self, String> {
        let schedule = schedule(spec, since_ms).await?;
        let request = PreparedRequest::new(&spec.target, &spec.request)?;
        Ok(Self { schedule, request })
    }

    /// Checks the plan of a new or changed trigger against the limits of the node.
    pub(crate) fn check(&self, config: &TriggersConfig, now_ms: u64) -> Result<(), String> {
        let body_bytes_max = config.body_bytes_max as usize;
        if self.request.body.len() > body_bytes_max {
            return Err(format!(
                "the body has more than {body_bytes_max} bytes (async.triggers.body_bytes_max)"
            ));
        }
        let ticks = self.schedule.upcoming(now_ms, CHECKED_TICKS);
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

    /// The request of the tick at `scheduled_at_ms`; `None` for a request by hand.
    pub(crate) fn request(&self, name: &Name, scheduled_at_ms: Option<u64>) -> Request {
        let PreparedRequest { method, uri, headers, body } = self.request.clone();
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(PREFER, HeaderValue::from_static("respond-async"));
        // Names and times are ASCII.
        headers.extend(
            HeaderValue::from_str(name.as_str())
                .ok()
                .map(|name| (HeaderName::from_static(TRIGGER_HEADER), name)),
        );
        let scheduled = scheduled_at_ms.and_then(|at_ms| {
            let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
            HeaderValue::from_str(&at.to_string()).ok()
        });
        headers.extend(scheduled.map(|at| (HeaderName::from_static(SCHEDULED_AT_HEADER), at)));
        request
    }
}

async fn schedule(spec: &TriggerSpec, since_ms: u64) -> Result<Schedule, String> {
    let source = &spec.source;
    match (&source.cron, source.every_ms) {
        (Some(expression), None) => {
            let expression = CronExpression::parse(expression)?;
            let zone = zone(source.timezone.as_deref()).await?;
            Ok(Schedule::Cron { expression, zone })
        }
        (None, Some(0)) => Err("source.every_ms is at least 1".to_owned()),
        (None, Some(_)) if source.timezone.is_some() => {
            Err("source.timezone goes with source.cron".to_owned())
        }
        (None, Some(every_ms)) => Ok(Schedule::Every { every_ms, start_ms: since_ms }),
        _ => Err("source has one of cron and every_ms".to_owned()),
    }
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

impl PreparedRequest {
    fn new(target: &TriggerTarget, request: &TriggerRequest) -> Result<Self, String> {
        let TriggerRequest { method, path, headers, body, body_base64 } = request;
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| format!("request.method: {method:?} is not a method"))?;
        if !path.starts_with('/') || path.len() > PATH_LEN_MAX {
            return Err(format!("request.path starts with / and has at most {PATH_LEN_MAX} characters"));
        }
        let body = match (body, body_base64) {
            (Some(_), Some(_)) => return Err("request has one of body and body_base64".to_owned()),
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(base64)) => BASE64_STANDARD
                .decode(base64)
                .map_err(|error| format!("request.body_base64 is not base64: {error}"))?,
            (None, None) => Vec::new(),
        };
        let uri = match (&target.function, &target.inference, target.version) {
            (Some(_), None, Some(_)) => {
                return Err("target.version goes with target.inference".to_owned());
            }
            (Some(function), None, None) => format!("/fn/{function}{path}"),
            (None, Some(_), _) if method != Method::POST || path != "/" => {
                return Err("an inference has neither request.method nor request.path".to_owned());
            }
            (None, Some(model), None) => format!("/v2/models/{model}/infer"),
            (None, Some(model), Some(version)) => format!("/v2/models/{model}/versions/{version}/infer"),
            _ => return Err("target has one of function and inference".to_owned()),
        };
        let uri = uri.parse().map_err(|_| format!("request.path: {path:?} is not a path and query"))?;
        let mut headers = check_headers(headers)?;
        if !body.is_empty() {
            headers.insert(CONTENT_LENGTH, body.len().into());
            if target.inference.is_some() {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            }
        }
        Ok(Self { method, uri, headers, body: body.into() })
    }
}

fn check_headers(given: &std::collections::BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let bytes: usize = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    if given.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "request.headers has at most {HEADERS_MAX} headers and {HEADER_BYTES_MAX} bytes"
        ));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let unusable = || format!("request.headers: {name:?} is not a header with a value of visible ASCII");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
        let is_option = [CALLBACK, PRIORITY, VERSION_KEY].contains(&name);
        if OWN_HEADERS.contains(&name.as_str()) || (name.as_str().starts_with("weir-") && !is_option) {
            return Err(format!("request.headers: the node sets {name}"));
        }
        headers.insert(name.clone(), HeaderValue::from_str(value).map_err(|_| unusable())?);
    }
    Ok(headers)
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
        let request = plan.request(&Name::new("nightly").unwrap(), Some(1_500));
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "/fn/f/a?b=c"));
        let header = |name: &str| request.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!(header("weir-trigger"), "nightly");
        assert_eq!(header("weir-scheduled-at"), "1970-01-01T00:00:01.5Z");
        assert_eq!(
            [header("x-kind"), header("content-length"), header("prefer")],
            ["daily", "2", "respond-async"]
        );
        let by_hand = plan.request(&Name::new("nightly").unwrap(), None);
        assert!(!by_hand.headers().contains_key("weir-scheduled-at"));
    }

    #[tokio::test]
    async fn invalid_settings_are_refused() {
        for (json, said) in [
            (r#"{"source": {}, "target": {"function": "f"}}"#, "one of cron and every_ms"),
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
