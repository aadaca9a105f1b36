//! Checks of the parsers of triggers and events with arbitrary bytes, for fuzz targets and for tests
//! without a fuzzer.

#![allow(clippy::expect_used, reason = "a finding is a panic")]

#[path = "../../../fuzz/round_trip.rs"]
mod round_trip;

use crate::event::{self, Event};
use crate::plan::{Occasion, Plan};
use crate::record::{TriggerKey, TriggerRecord, TriggerState};
use crate::schedule::{CronExpression, Schedule};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::tz::TimeZone;
use round_trip::round_trip;
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};
use weir_asynchronous::TriggersConfig;
use weir_datastore::Key;
use weir_types::Name;
use weir_types::api::TriggerSpec;

/// Times after which a schedule has ticks: now, the last ones that dates have, and none.
const TIMES_MS: [u64; 4] = [0, 1_770_000_000_000, 253_402_207_200_000, u64::MAX];
/// Content type of a batch of CloudEvents.
const BATCH_TYPE: HeaderValue = HeaderValue::from_static("application/cloudevents-batch+json");

/// Loads time zones.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime without I/O starts")
});

/// Reads or refuses bytes as a cron expression, as the settings of a trigger, and as its records.
pub fn trigger(bytes: &[u8]) {
    round_trip::<TriggerRecord>(bytes);
    round_trip::<TriggerState>(bytes);
    if let Some(spec) = round_trip::<TriggerSpec>(bytes)
        && let Ok(plan) = RUNTIME.block_on(Plan::new(&spec, 0))
    {
        let _ = plan.check(&TriggersConfig::default(), TIMES_MS[1]);
        plan.schedule().into_iter().for_each(ticks);
        let name = Name::new("t").expect("a valid name");
        for occasion in [Occasion::ByHand, Occasion::Tick(TIMES_MS[1]), Occasion::Tick(u64::MAX)] {
            let request = plan.request(&name, occasion);
            assert!(request.uri().path().starts_with('/'), "{}", request.uri());
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(expression) = CronExpression::parse(text) {
        ticks(&Schedule::Cron { expression, zone: TimeZone::UTC });
    }
    if let Ok(key) = Key::new(text) {
        let written = TriggerKey::parse(&key).map(|parsed| match parsed {
            TriggerKey::Spec(id) => id.spec_key(),
            TriggerKey::State(id) => id.state_key(),
        });
        assert!(written.is_none_or(|written| written == Ok(key)));
    }
}

/// The next tick is later, and is the latest tick at its time.
fn ticks(schedule: &Schedule) {
    for after_ms in TIMES_MS {
        if let Some(next_ms) = schedule.next(after_ms) {
            assert!(next_ms > after_ms, "{schedule:?}");
            assert_eq!(schedule.latest(after_ms, next_ms), Some(next_ms), "{schedule:?}");
        }
    }
}

/// Reads or refuses a request with events: lines of headers, an empty line, and the body.
pub fn event(bytes: &[u8]) {
    let (headers, body) = request(bytes);
    let Ok(events) = event::parse(&headers, &body) else { return };
    for event in &events {
        let content_type = event.content_type.as_deref().unwrap_or_default();
        // Headers cannot have each content type, and one that stands for other modes is another
        // request.
        if content_type.to_ascii_lowercase().contains("cloudevents")
            || HeaderValue::from_str(content_type).is_err()
        {
            continue;
        }
        let mut headers = event.headers();
        headers.extend(event.content_type.as_deref().map(|kind| (CONTENT_TYPE, event::header_value(kind))));
        let again = event::parse(&headers, &event.data).expect("the headers of an event are an event");
        assert_eq!(again.iter().map(texts).collect::<Vec<_>>(), [texts(event)]);
        assert_eq!(again[0].data, event.data);
    }
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, BATCH_TYPE)]);
    let again = match event::parse(&headers, &event::batch_body(&events)) {
        Ok(again) => again,
        // A batch nests the data deeper.
        Err(why) => return assert!(why.contains("recursion limit"), "{why}"),
    };
    assert_eq!(again.iter().map(texts).collect::<Vec<_>>(), events.iter().map(texts).collect::<Vec<_>>());
    for (again, event) in again.iter().zip(&events) {
        assert_eq!(again.data.is_empty(), event.data.is_empty(), "{event:?}");
    }
}

/// An event without its data and content type, with its further attributes in alphabetic order.
fn texts(event: &Event) -> Event {
    let mut event = event.clone();
    event.attributes.sort();
    Event { data: Bytes::new(), content_type: None, ..event }
}

fn request(bytes: &[u8]) -> (HeaderMap, Bytes) {
    let mut headers = HeaderMap::new();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(parts.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            let _ = headers.try_append(name, value);
        }
    }
    (headers, Bytes::copy_from_slice(rest))
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::{mutated, seeds};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_accepted() {
        seeds("trigger").iter().for_each(|seed| trigger(seed));
        for seed in seeds("event") {
            event(&seed);
            let (headers, body) = request(&seed);
            assert!(event::parse(&headers, &body).is_ok(), "{}", String::from_utf8_lossy(&seed));
        }
    }

    proptest! {
        #[test]
        fn mutated_triggers_are_read_or_refused(bytes in mutated("trigger")) {
            trigger(&bytes);
        }

        #[test]
        fn mutated_events_are_read_or_refused(bytes in mutated("event")) {
            event(&bytes);
        }
    }
}
