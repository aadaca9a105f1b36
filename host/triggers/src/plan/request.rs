//! The requests of a trigger.

use crate::event::{Event, batch_body, header_value};
use axum::body::Body;
use axum::extract::Request;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use jiff::Timestamp;
use weir_call::headers::{CALLBACK, PREFER, PRIORITY, VERSION_KEY};
use weir_types::Name;
use weir_types::api::{SCHEDULED_AT_HEADER, TRIGGER_HEADER, TriggerRequest, TriggerTarget};

/// Length limit of the path and query of a request.
const PATH_LEN_MAX: usize = 2_048;
/// Limits of the headers of a request.
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 8 << 10;
/// Type of the CloudEvent of a tick.
const TICK_TYPE: &str = "weir.trigger.tick";
/// Content type of a batch of CloudEvents.
const BATCH_TYPE: &str = "application/cloudevents-batch+json";

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

/// The cause of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Occasion<'a> {
    /// A client sends the request by hand.
    ByHand,
    /// The tick that is scheduled at this time, in Unix milliseconds.
    Tick(u64),
    /// An event.
    Event(&'a Event),
    /// Several events.
    Batch(&'a [Event]),
}

/// The parts of all requests of a trigger.
#[derive(Debug, Clone)]
pub(crate) struct PreparedRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl PreparedRequest {
    pub(super) fn new(target: &TriggerTarget, request: &TriggerRequest) -> Result<Self, String> {
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

    /// Length of the body that the settings have.
    pub(super) fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Builds a request.
    pub(super) fn build(&self, name: &Name, occasion: Occasion<'_>) -> Request {
        let Self { method, uri, headers, body } = self.clone();
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(PREFER, HeaderValue::from_static("respond-async"));
        headers.insert(HeaderName::from_static(TRIGGER_HEADER), header_value(name.as_str()));
        let body = match occasion {
            Occasion::ByHand => body,
            Occasion::Tick(at_ms) => {
                let at = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                headers.insert(HeaderName::from_static(SCHEDULED_AT_HEADER), header_value(&at));
                headers.extend(tick_event(name, &at).headers());
                body
            }
            Occasion::Event(event) => {
                headers.extend(event.headers());
                if let Some(content_type) = &event.content_type {
                    headers.insert(CONTENT_TYPE, header_value(content_type));
                }
                event.data.clone()
            }
            Occasion::Batch(events) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(BATCH_TYPE));
                batch_body(events)
            }
        };
        if !body.is_empty() {
            headers.insert(CONTENT_LENGTH, body.len().into());
        }
        *request.body_mut() = Body::from(body);
        request
    }
}

/// The attributes of a tick as a CloudEvent.
fn tick_event(name: &Name, at: &str) -> Event {
    Event {
        id: at.to_owned(),
        source: format!("/v1/triggers/{name}"),
        kind: TICK_TYPE.to_owned(),
        time: Some(at.to_owned()),
        ..Event::default()
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
