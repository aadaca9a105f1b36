//! Notifications of S3 stores: the format of Amazon S3, which MinIO, Ceph and others send, too.

use super::{Event, unescape};
use serde_json::Value;
use weir_types::ContentHash;

/// Prefix of the types of events, which some stores leave out.
const TYPE_PREFIX: &str = "s3:";

/// Length above which an id has the hash of the key instead of the key.
const ID_LEN_MAX: usize = 1_024;

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
    let kind = if name.starts_with(TYPE_PREFIX) { name.to_owned() } else { format!("{TYPE_PREFIX}{name}") };
    let data = record.to_string();
    // A sequencer orders the events of a key. Stores without one repeat the same record.
    let of_record = || ContentHash::from_content(data.as_bytes()).to_string();
    let sequencer = text("/s3/object/sequencer").map_or_else(of_record, str::to_owned);
    let mut id = format!("{sequencer}/{kind}/{key}");
    if id.len() > ID_LEN_MAX {
        id = format!("{sequencer:.64}/{}", ContentHash::from_content(id.as_bytes()));
    }
    // Most stores escape keys.
    let subject = unescape(&key.replace('+', " ")).unwrap_or_else(|_| key.to_owned());
    let mut event = Event { data: data.clone().into(), ..Event::default() };
    event.set("id", &id)?;
    event.set("source", &format!("s3://{bucket}"))?;
    event.set("type", &kind)?;
    event.set("subject", &subject)?;
    let time = text("/eventTime").unwrap_or_default();
    if !time.is_empty() {
        event.set("time", time)?;
    }
    event.set("datacontenttype", "application/json")?;
    Ok(event)
}
