//! Events of the node, for operators and owners: bounded, in memory, in the order of their first
//! occurrence.
//!
//! Each tenant has a ring, so that no tenant pushes the events of another out; one more ring has the
//! events of the node. A repeated event raises the count of the one before.

use crate::logs::now_ms;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;
use tokio::sync::broadcast;
use weir_types::api::{Event, EventKind, EventResource};
use weir_types::{NodeId, TenantId};

/// Events that a ring keeps.
pub const EVENTS_MAX: usize = 500;
/// Length limit of names and descriptions.
const TEXT_BYTES_MAX: usize = 512;
/// Time in which a repeated event is counted instead of added.
const REPEAT_MS: u64 = 60_000;
/// Events that are buffered for a follower.
const FOLLOW_LEN_MAX: usize = 256;

/// An event to record.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Owner of the resource; `None` for events of the node.
    pub tenant: Option<TenantId>,
    /// What happened.
    pub kind: EventKind,
    /// Kind of the resource.
    pub resource: EventResource,
    /// Name of the resource.
    pub name: String,
    /// Description.
    pub text: String,
    /// Events that agree in this and all of the above, except the text, are repetitions of each
    /// other; `None`: every event counts.
    pub repeats: Option<&'static str>,
}

/// The events of a node. Recording and reading never wait.
pub struct EventLog {
    node: OnceLock<NodeId>,
    state: Mutex<EventState>,
    news: broadcast::Sender<Event>,
}

#[derive(Default)]
struct EventState {
    /// The number of the latest event.
    latest: u64,
    rings: HashMap<Option<TenantId>, Ring>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    /// The latest event of each kind of repetition.
    repeated: HashMap<RepeatKey, u64>,
}

type RepeatKey = (EventKind, EventResource, String, &'static str);

impl Default for EventLog {
    fn default() -> Self {
        let news = broadcast::Sender::new(FOLLOW_LEN_MAX);
        Self { node: OnceLock::new(), state: Mutex::default(), news }
    }
}

impl EventLog {
    /// Sets the node that later events name.
    pub fn set_node(&self, node: NodeId) {
        // The number of a node never changes.
        let _ = self.node.set(node);
    }

    /// Records an event that happens now.
    pub fn record(&self, new: NewEvent) {
        self.record_at(now_ms(), new);
    }

    fn record_at(&self, at_ms: u64, new: NewEvent) {
        let NewEvent { tenant, kind, resource, name, text, repeats } = new;
        let name = cut(name);
        let mut state = self.state.lock();
        let number = state.latest + 1;
        let ring = state.rings.entry(tenant.clone()).or_default();
        let key = repeats.map(|repeats| (kind, resource, name.clone(), repeats));
        if let Some(key) = &key
            && ring.repeat(key, at_ms)
        {
            return;
        }
        let node = self.node.get().copied();
        let text = cut(text);
        let event =
            Event { number, at_ms, first_at_ms: at_ms, count: 1, node, tenant, kind, resource, name, text };
        ring.add(event.clone(), key);
        state.latest = number;
        // Under the lock, so that followers get events in order. Fails without followers.
        let _ = self.news.send(event);
    }

    /// The events of `tenant` and of the node with a number above `after`, oldest first.
    pub fn list(&self, tenant: &TenantId, after: u64) -> Vec<Event> {
        let state = self.state.lock();
        let rings = [Some(tenant.clone()), None].into_iter().filter_map(|ring| state.rings.get(&ring));
        let mut events: Vec<Event> =
            rings.flat_map(|ring| &ring.events).filter(|event| event.number > after).cloned().collect();
        drop(state);
        events.sort_unstable_by_key(|event| event.number);
        events
    }

    /// New events of all tenants and of the node; for a client, only those that it may
    /// [see](visible). A receiver that misses events reads them from [`list`](Self::list).
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.news.subscribe()
    }
}

/// Whether a client of `tenant` may see an event.
#[must_use]
pub fn visible(event: &Event, tenant: &TenantId) -> bool {
    event.tenant.as_ref().is_none_or(|owner| owner == tenant)
}

impl Ring {
    /// Counts the repetition of a recent event. Returns false if there is none.
    fn repeat(&mut self, key: &RepeatKey, at_ms: u64) -> bool {
        let Some(number) = self.repeated.get(key) else { return false };
        let Ok(place) = self.events.binary_search_by_key(number, |event| event.number) else { return false };
        let Some(event) = self.events.get_mut(place) else { return false };
        if at_ms.saturating_sub(event.first_at_ms) >= REPEAT_MS {
            return false;
        }
        event.count += 1;
        event.at_ms = at_ms;
        true
    }

    fn add(&mut self, event: Event, key: Option<RepeatKey>) {
        if let Some(key) = key {
            self.repeated.insert(key, event.number);
        }
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX
            && let Some(oldest) = self.events.pop_front()
        {
            self.repeated.retain(|_, number| *number != oldest.number);
        }
    }
}

/// Shortens a text to its limit.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(tenant: Option<&str>, name: &str, repeats: Option<&'static str>) -> NewEvent {
        NewEvent {
            tenant: tenant.map(|tenant| TenantId::new(tenant).unwrap()),
            kind: EventKind::Fault,
            resource: EventResource::Function,
            name: name.into(),
            text: format!("{name} failed"),
            repeats,
        }
    }

    fn names(events: &EventLog, tenant: &str) -> Vec<(String, u64)> {
        let events = events.list(&TenantId::new(tenant).unwrap(), 0);
        events.into_iter().map(|event| (event.name, event.count)).collect()
    }

    #[test]
    fn tenants_see_their_own_events_and_those_of_the_node() {
        let events = EventLog::default();
        events.record(event(Some("a"), "one", None));
        events.record(event(None, "node", None));
        events.record(event(Some("b"), "two", None));
        assert_eq!(names(&events, "a"), [("one".into(), 1), ("node".into(), 1)]);
        assert_eq!(names(&events, "b"), [("node".into(), 1), ("two".into(), 1)]);
        assert_eq!(events.list(&TenantId::new("b").unwrap(), 2).len(), 1, "after the second");
    }

    #[test]
    fn ring_of_one_tenant_leaves_those_of_others_alone() {
        let events = EventLog::default();
        events.record(event(Some("quiet"), "kept", None));
        for number in 0..2 * EVENTS_MAX {
            events.record(event(Some("loud"), &number.to_string(), Some("trap")));
        }
        assert_eq!(names(&events, "quiet"), [("kept".into(), 1)]);
        let loud = names(&events, "loud");
        assert_eq!((loud.len(), loud.last()), (EVENTS_MAX, Some(&("999".to_owned(), 1))));
        let loud = Some(TenantId::new("loud").unwrap());
        assert_eq!(events.state.lock().rings[&loud].repeated.len(), EVENTS_MAX);
    }

    #[test]
    fn repetitions_within_a_minute_are_counted() {
        let events = EventLog::default();
        let mut news = events.follow();
        for at_ms in [0, 10, REPEAT_MS - 1, REPEAT_MS, REPEAT_MS + 5] {
            events.record_at(at_ms, event(Some("a"), "f", Some("trap")));
        }
        events.record_at(1, event(Some("a"), "f", Some("memory")));
        assert_eq!(names(&events, "a"), [("f".into(), 3), ("f".into(), 2), ("f".into(), 1)]);
        let listed = events.list(&TenantId::new("a").unwrap(), 0);
        assert_eq!((listed[0].first_at_ms, listed[0].at_ms), (0, REPEAT_MS - 1));
        let heard: Vec<u64> = std::iter::from_fn(|| news.try_recv().ok()).map(|event| event.number).collect();
        assert_eq!(heard, [1, 2, 3], "followers hear of first occurrences");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let events = EventLog::default();
        events.record(event(Some("a"), &"é".repeat(TEXT_BYTES_MAX), None));
        let name = names(&events, "a").remove(0).0;
        assert!(name.len() <= TEXT_BYTES_MAX + '…'.len_utf8() && name.ends_with("é…"), "{name}");
    }
}
