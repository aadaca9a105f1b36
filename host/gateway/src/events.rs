//! `/v1/events`: the events of the node and of the other nodes of its cluster, listed or followed.

use super::Caller;
use super::error::ApiError;
use crate::NodeState;
use crate::state::{FOLLOWERS_MAX, NodeExtractor};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::{Stream, stream};
use http::HeaderMap;
use http::header::ACCEPT;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Interval, MissedTickBehavior, interval};
use weir_telemetry::events::{NewEvent, visible};
use weir_types::api::{Event, EventKind, EventPage, EventResource};
use weir_types::{ErrorCode, NodeId, TenantId};

/// The interval at which a follower's node asks the other nodes for their events.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Events listed by default, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Every node records changes of the cluster; those within this time are the same.
const SAME_MS: u64 = 60_000;
/// Recent events of nodes that a follower remembers, to recognize the records of other nodes.
const REMEMBERED_MAX: usize = 200;

/// Query of `GET /v1/events`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventQuery {
    /// Kinds, separated by commas.
    kind: Option<String>,
    name: Option<String>,
    since_ms: Option<u64>,
    limit: Option<usize>,
    follow: bool,
}

/// The events that a client wants.
struct Filter {
    tenant: TenantId,
    kinds: Vec<EventKind>,
    name: Option<String>,
    since_ms: u64,
}

impl Filter {
    fn new(query: &EventQuery, tenant: TenantId) -> Result<Self, ApiError> {
        let kinds = query.kind.iter().flat_map(|kinds| kinds.split(',')).filter(|kind| !kind.is_empty());
        let kinds = kinds.map(str::parse).collect::<Result<_, _>>();
        let kinds = kinds.map_err(|error: weir_types::api::UnknownEventKind| {
            ApiError::new(ErrorCode::InvalidRequest, error.to_string())
        })?;
        Ok(Self { tenant, kinds, name: query.name.clone(), since_ms: query.since_ms.unwrap_or(0) })
    }

    fn selects(&self, event: &Event) -> bool {
        // `digits` selects the events of all its versions.
        let is_named = |name: &String| {
            event.name == *name || event.name.split(':').next().is_some_and(|event| event == name)
        };
        visible(event, &self.tenant)
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self.name.as_ref().is_none_or(is_named)
            && event.at_ms >= self.since_ms
    }
}

/// `GET /v1/events`. With `follow=true` or `accept: text/event-stream`, the events are followed.
pub(super) async fn events(
    State(node): NodeExtractor,
    Extension(Caller { tenant, .. }): Extension<Caller>,
    query: Result<Query<EventQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| {
        let text = format!("{error}; takes kind=A,B, name=NAME, since_ms=N, limit=N and follow=true");
        ApiError::new(ErrorCode::InvalidRequest, text)
    })?;
    let filter = Filter::new(&query, tenant)?;
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_followed = query.follow || accepts.is_some_and(|accept| accept.contains("text/event-stream"));
    let limit = query.limit.unwrap_or(if is_followed && query.since_ms.is_none() { 0 } else { LIMIT });
    if limit > LIMIT_MAX {
        let text = format!("limit = {limit} is above {LIMIT_MAX}");
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    if !is_followed {
        return Ok(Json(list(&node, &filter, limit).await.page).into_response());
    }
    let Ok(permit) = node.permits.event_followers.clone().try_acquire_owned() else {
        let text = format!("{FOLLOWERS_MAX} clients follow the events of this node already; try again");
        return Err(ApiError::new(ErrorCode::QueueFull, text));
    };
    // Before the list, so that no event falls between the two.
    let news = node.metrics.events.follow();
    let Listed { page, known } = list(&node, &filter, limit).await;
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follower = Follower {
        node,
        filter,
        news,
        known,
        ticks,
        pending: VecDeque::new(),
        recent: VecDeque::new(),
        _permit: permit,
    };
    page.events.into_iter().for_each(|event| follower.queue(event));
    Ok(Sse::new(follower.into_stream()).keep_alive(KeepAlive::default()).into_response())
}

/// A list of events, and the latest number of each node.
struct Listed {
    page: EventPage,
    known: HashMap<Option<NodeId>, u64>,
}

/// The newest `limit` events of all nodes, oldest first.
async fn list(node: &NodeState, filter: &Filter, limit: usize) -> Listed {
    let own = node.metrics.events.list(&filter.tenant, 0);
    let elsewhere = match &node.cluster {
        Some(cluster) => cluster.events_elsewhere(&filter.tenant, &HashMap::new()).await,
        None => Vec::new(),
    };
    let mut known = HashMap::new();
    let mut unreachable = Vec::new();
    let mut all = own;
    for (other, answer) in elsewhere {
        match answer {
            Some(events) => all.extend(events),
            None => unreachable.push(other),
        }
    }
    for event in &all {
        let latest: &mut u64 = known.entry(event.node).or_default();
        *latest = event.number.max(*latest);
    }
    all.retain(|event| filter.selects(event));
    all.sort_by_key(|event| (event.at_ms, event.node, event.number));
    let mut events: Vec<Event> = Vec::with_capacity(all.len());
    for event in all {
        if !events.iter().rev().any(|before| is_same(before, &event)) {
            events.push(event);
        }
    }
    events.drain(..events.len().saturating_sub(limit));
    Listed { page: EventPage { events, unreachable }, known }
}

/// Whether two nodes have recorded the same change of the cluster.
fn is_same(one: &Event, other: &Event) -> bool {
    one.resource == EventResource::Node
        && one.node != other.node
        && (one.kind, &one.name, &one.text) == (other.kind, &other.name, &other.text)
        && one.at_ms.abs_diff(other.at_ms) < SAME_MS
}

/// A client that follows events.
struct Follower {
    node: Arc<NodeState>,
    filter: Filter,
    news: Receiver<Event>,
    /// The latest events of each node that were sent or skipped.
    known: HashMap<Option<NodeId>, u64>,
    ticks: Interval,
    pending: VecDeque<Event>,
    /// Recent events of nodes.
    recent: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    /// Streams events until the node ends.
    fn into_stream(self) -> impl Stream<Item = Result<SseEvent, Infallible>> {
        stream::unfold(self, |mut follower| async move {
            let event = follower.next().await?;
            let id = format!("{}-{}", event.node.map_or(0, |node| node.0), event.number);
            let sent = SseEvent::default().event(event.kind.as_str()).id(id).json_data(&event).ok()?;
            Some((Ok(sent), follower))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        let stop = self.node.shutdown.stopping.clone();
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            tokio::select! {
                event = self.news.recv() => match event {
                    Ok(event) => self.hear(event),
                    Err(RecvError::Lagged(_)) => self.catch_up(),
                    Err(RecvError::Closed) => return None,
                },
                _ = self.ticks.tick() => self.ask_others().await,
                () = stop.cancelled() => return None,
            }
        }
    }

    /// Takes an event of a node, unless it is known already.
    fn hear(&mut self, event: Event) {
        let latest = self.known.entry(event.node).or_default();
        if event.number > *latest {
            *latest = event.number;
            if self.filter.selects(&event) {
                self.queue(event);
            }
        }
    }

    /// Queues an event, unless another node has recorded the same change.
    fn queue(&mut self, event: Event) {
        if event.resource == EventResource::Node {
            if self.recent.iter().any(|recent| is_same(recent, &event)) {
                return;
            }
            self.recent.push_back(event.clone());
            if self.recent.len() > REMEMBERED_MAX {
                self.recent.pop_front();
            }
        }
        self.pending.push_back(event);
    }

    /// Reads the events of this node that the channel has lost.
    fn catch_up(&mut self) {
        let own = self.node.cluster.as_ref().map(|cluster| cluster.node());
        let after = self.known.get(&own).copied().unwrap_or(0);
        let missed = self.node.metrics.events.list(&self.filter.tenant, after);
        missed.into_iter().for_each(|event| self.hear(event));
    }

    async fn ask_others(&mut self) {
        let Some(cluster) = self.node.cluster.clone() else { return };
        let after = self.known.iter().filter_map(|(node, number)| Some(((*node)?, *number))).collect();
        for (_, events) in cluster.events_elsewhere(&self.filter.tenant, &after).await {
            events.into_iter().flatten().for_each(|event| self.hear(event));
        }
    }
}

impl NodeState {
    /// Records an event of a tenant's resource.
    pub(crate) fn note(
        &self,
        kind: EventKind,
        resource: EventResource,
        tenant: &TenantId,
        name: &(impl ToString + ?Sized),
        text: String,
    ) {
        let tenant = Some(tenant.clone());
        self.metrics.events.record(NewEvent {
            tenant,
            kind,
            resource,
            name: name.to_string(),
            text,
            repeats: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(node: u32, kind: EventKind, name: &str, at_ms: u64) -> Event {
        let resource = if kind == EventKind::Deployed { EventResource::Model } else { EventResource::Node };
        Event {
            number: 1,
            at_ms,
            first_at_ms: at_ms,
            count: 1,
            node: Some(NodeId(node)),
            tenant: None,
            kind,
            resource,
            name: name.into(),
            text: name.into(),
        }
    }

    fn filter(query: &EventQuery) -> Result<Filter, ApiError> {
        Filter::new(query, TenantId::default())
    }

    #[test]
    fn events_are_selected_by_kind_name_time_and_owner() {
        let deployed = event(1, EventKind::Deployed, "digits:3", 50);
        let left = event(1, EventKind::NodeLeft, "2", 90);
        let selected = |query: EventQuery| {
            let filter = filter(&query).unwrap();
            [&deployed, &left].map(|event| filter.selects(event))
        };
        assert_eq!(selected(EventQuery::default()), [true, true]);
        let kinds = |kinds: &str| EventQuery { kind: Some(kinds.into()), ..EventQuery::default() };
        assert_eq!(selected(kinds("node-left,elected")), [false, true]);
        for (name, expected) in [("digits", [true, false]), ("digits:3", [true, false]), ("2", [false, true])]
        {
            let query = EventQuery { name: Some(name.into()), ..EventQuery::default() };
            assert_eq!(selected(query), expected, "{name}");
        }
        assert_eq!(selected(EventQuery { since_ms: Some(51), ..EventQuery::default() }), [false, true]);
        let other = Event { tenant: Some(TenantId::new("other").unwrap()), ..deployed.clone() };
        assert!(!filter(&EventQuery::default()).unwrap().selects(&other));
        let error = filter(&kinds("exploded")).err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }

    #[test]
    fn changes_that_several_nodes_record_are_the_same() {
        let left = event(1, EventKind::NodeLeft, "3", 1_000);
        assert!(is_same(&left, &event(2, EventKind::NodeLeft, "3", 1_700)));
        assert!(!is_same(&left, &event(2, EventKind::NodeLeft, "4", 1_700)));
        assert!(!is_same(&left, &event(1, EventKind::NodeLeft, "3", 1_700)), "the same node says it twice");
        assert!(!is_same(&left, &event(2, EventKind::NodeLeft, "3", 1_000 + SAME_MS)));
        let deployed = event(1, EventKind::Deployed, "m:1", 1_000);
        assert!(!is_same(&deployed, &event(2, EventKind::Deployed, "m:1", 1_000)));
    }
}
