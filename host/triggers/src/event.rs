//! Events as [CloudEvents 1.0], in the binary, structured and batched modes of HTTP, and the
//! notifications of S3 stores as such events. Pure.
//!
//! [CloudEvents 1.0]: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md

mod notification;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Version of CloudEvents.
const VERSION: &str = "1.0";
/// Prefix of the headers of the binary mode.
const PREFIX: &str = "ce-";
/// Limits of the attributes of an event.
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_LEN_MAX: usize = 2_048;
/// Events in one request of a client.
const EVENTS_MAX: usize = 1_000;

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Identifies the event at its source.
    pub(crate) id: String,
    pub(crate) source: String,
    /// The attribute `type`.
    pub(crate) kind: String,
    pub(crate) subject: Option<String>,
    /// Time as RFC 3339.
    pub(crate) time: Option<String>,
    /// Further attributes, by name.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) content_type: Option<String>,
    pub(crate) data: Bytes,
}

impl Event {
    /// The headers of the binary mode, without the content type.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in self.texts() {
            let name = HeaderName::from_bytes(format!("{PREFIX}{name}").as_bytes());
            headers.extend(name.ok().map(|name| (name, header_value(&escape(value)))));
        }
        headers
    }

    /// The event in the JSON format.
    fn json(&self) -> Value {
        let mut json: Map<String, Value> =
            self.texts().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        let content_type = self.content_type.as_deref();
        json.extend(content_type.map(|kind| ("datacontenttype".to_owned(), Value::from(kind))));
        let data =
            if content_type.is_none_or(is_json) { serde_json::from_slice(&self.data).ok() } else { None };
        let text = || std::str::from_utf8(&self.data).ok().map(Value::from);
        if let Some(data) =
            data.or_else(|| content_type.filter(|kind| kind.starts_with("text/")).and_then(|_| text()))
        {
            json.insert("data".to_owned(), data);
        } else if !self.data.is_empty() {
            json.insert("data_base64".to_owned(), Value::from(BASE64_STANDARD.encode(&self.data)));
        }
        Value::Object(json)
    }

    /// All attributes with texts, by their names.
    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let own =
            [("specversion", VERSION), ("id", &self.id), ("source", &self.source), ("type", &self.kind)];
        let optional = [("subject", &self.subject), ("time", &self.time)];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let further = self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        own.into_iter().chain(optional).chain(further)
    }

    /// Sets an attribute.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if value.len() > ATTRIBUTE_LEN_MAX {
            return Err(format!("the attribute {name:.32} has more than {ATTRIBUTE_LEN_MAX} bytes"));
        }
        match name {
            "specversion" if value != VERSION => {
                return Err(format!("specversion is {VERSION}, not {value:.32}"));
            }
            "specversion" => {}
            "id" => value.clone_into(&mut self.id),
            "source" => value.clone_into(&mut self.source),
            "type" => value.clone_into(&mut self.kind),
            "subject" => self.subject = Some(value.to_owned()),
            "time" => self.time = Some(value.to_owned()),
            "datacontenttype" => self.content_type = Some(value.to_owned()),
            other if is_attribute(other) => {
                if self.attributes.len() >= ATTRIBUTES_MAX {
                    return Err(format!("an event has at most {ATTRIBUTES_MAX} further attributes"));
                }
                if self.attributes.iter().any(|(known, _)| known == other) {
                    return Err(format!("an event has the attribute {other:.32} once"));
                }
                self.attributes.push((other.to_owned(), value.to_owned()));
            }
            other => return Err(format!("{other:.32?} is not the name of an attribute")),
        }
        Ok(())
    }

    /// Identifies the event: its source and id.
    pub(crate) fn key(&self) -> String {
        format!("{} {}{}", self.source.len(), self.source, self.id)
    }

    /// Refuses an event that lacks a required attribute.
    fn complete(self) -> Result<Self, String> {
        match [("id", &self.id), ("source", &self.source), ("type", &self.kind)]
            .iter()
            .find(|(_, it)| it.is_empty())
        {
            Some((name, _)) => Err(format!("an event has the attribute {name}")),
            None => Ok(self),
        }
    }
}

/// A batch in the JSON format.
pub(crate) fn batch_body(events: &[Event]) -> Bytes {
    Value::from(events.iter().map(Event::json).collect::<Vec<_>>()).to_string().into()
}

/// Reads the events of a request: CloudEvents in any mode, or the notification of an S3 store.
///
/// # Errors
/// A text for the client if the request has none.
pub(crate) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Vec<Event>, String> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/cloudevents+json" {
        return Ok(vec![from_json(json(body)?)?]);
    }
    if essence == "application/cloudevents-batch+json" {
        let Value::Array(events) = json(body)? else { return Err("a batch is a JSON array".to_owned()) };
        return limited(&events)?.iter().cloned().map(from_json).collect();
    }
    if headers.contains_key("ce-specversion") {
        return Ok(vec![from_headers(headers, body)?]);
    }
    match notification::records(&json(body)?) {
        Some(records) => limited(records)?.iter().map(notification::event).collect(),
        None => Err("the body is neither a CloudEvent (headers ce-*, or application/cloudevents+json) nor the notification of an S3 store".to_owned()),
    }
}

fn limited(events: &[Value]) -> Result<&[Value], String> {
    if events.len() > EVENTS_MAX {
        return Err(format!("a request has at most {EVENTS_MAX} events"));
    }
    Ok(events)
}

fn json(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))
}

fn from_headers(headers: &HeaderMap, body: &Bytes) -> Result<Event, String> {
    let mut event = Event { data: body.clone(), ..Event::default() };
    for (name, value) in headers {
        let Some(attribute) = name.as_str().strip_prefix(PREFIX) else { continue };
        let value = value.to_str().map_err(|_| format!("the header {name} has characters outside ASCII"))?;
        event.set(attribute, &unescape(value)?)?;
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    event.content_type = content_type.map(str::to_owned);
    event.complete()
}

fn from_json(json: Value) -> Result<Event, String> {
    let Value::Object(members) = json else { return Err("an event is a JSON object".to_owned()) };
    if !members.contains_key("specversion") {
        return Err("an event has the attribute specversion".to_owned());
    }
    let mut event = Event::default();
    let mut data = None;
    for (name, value) in members {
        match (name.as_str(), value) {
            ("data", value) => data = Some(value),
            ("data_base64", Value::String(text)) => {
                let bytes = BASE64_STANDARD.decode(text).map_err(|error| format!("data_base64: {error}"))?;
                event.data = bytes.into();
            }
            (_, Value::Null) => {}
            (name, Value::String(text)) => event.set(name, &text)?,
            (name, value @ (Value::Bool(_) | Value::Number(_))) => event.set(name, &value.to_string())?,
            (name, _) => return Err(format!("the attribute {name:.32} is a text, a number or a boolean")),
        }
    }
    if let Some(data) = data {
        let is_text = event.content_type.as_deref().is_some_and(|kind| !is_json(kind));
        event.data = match data {
            Value::String(text) if is_text => text.into(),
            data => data.to_string().into(),
        };
        event.content_type.get_or_insert_with(|| "application/json".to_owned());
    }
    event.complete()
}

/// Whether a name is one of an attribute: lower-case letters and digits, and not that of the data.
fn is_attribute(name: &str) -> bool {
    !name.is_empty()
        && name != "data"
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Whether data of this content type is JSON.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.ends_with("/json") || essence.ends_with("+json")
}

/// A header's value; empty if the text cannot be one.
pub(crate) fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Escapes a text for a header of an event: spaces, quotes, percent signs, and characters that are
/// not printable ASCII become percent-encoded UTF-8.
fn escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        match byte {
            b' ' | b'"' | b'%' => _ = write!(escaped, "%{byte:02X}"),
            0x21..=0x7e => escaped.push(char::from(byte)),
            _ => _ = write!(escaped, "%{byte:02X}"),
        }
        escaped
    })
}

fn unescape(text: &str) -> Result<String, String> {
    let bad = || format!("{text:.64?} is not escaped as a header of an event");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(bad)?;
        let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests;
