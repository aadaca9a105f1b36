//! Notifications of S3 stores: the format of Amazon S3, which MinIO, Ceph and others send, too.

use super::{Event, unescape};
use serde_json::Value;

/// Prefix of the types of events, which some stores leave out.
const TYPE_PREFIX: &str = "s3:";

/// The records of a notification; none if the document is no notification. A store sends a test
/// without records when the notification is set up.
pub(super) fn records(document: &Value) -> Option<&[Value]> {
    let is_test = document.get("Event").and_then(Value::as_str) == Some("s3:TestEvent");
    match document.get("Records") {
        Some(Value::Array(records)) => Some(records),
        _ => is_test.then_some(&[]),
    }
}

/// The event of a record. Its data is the record.
pub(super) fn event(record: &Value) -> Result<Event, String> {
    let text = |path: &str| record.pointer(path).and_then(Value::as_str);
    let required =
        |path: &str| text(path).ok_or_else(|| format!("a record of the notification has no {path}"));
    let name = required("/eventName")?;
    let bucket = required("/s3/bucket/name")?;
    let key = required("/s3/object/key")?;
    let time = text("/eventTime").unwrap_or_default();
    // A sequencer orders the events of a key. Stores without one repeat the time when they repeat the event.
    let sequencer = text("/s3/object/sequencer").unwrap_or(time);
    let kind = if name.starts_with(TYPE_PREFIX) { name.to_owned() } else { format!("{TYPE_PREFIX}{name}") };
    let mut event = Event { data: record.to_string().into(), ..Event::default() };
    event.set("id", &format!("{kind}/{key}/{sequencer}"))?;
    event.set("source", &format!("s3://{bucket}"))?;
    event.set("type", &kind)?;
    event.set("subject", &unescape(&key.replace('+', " "))?)?;
    if !time.is_empty() {
        event.set("time", time)?;
    }
    event.set("datacontenttype", "application/json")?;
    Ok(event)
}
