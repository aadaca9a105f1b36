//! Events of a cluster: each node keeps its own, and answers the other nodes that ask for them, with
//! `GET /cluster/v1/events?tenant=TENANT&after=NUMBER`. Nodes also record who joins, leaves and
//! becomes the dispatcher.

use super::Cluster;
use super::members::{ClusterView, Member};
use axum::Json;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use http::{Method, Uri};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use weir_call::Fault;
use weir_telemetry::Metrics;
use weir_telemetry::events::{EventLog, NewEvent};
use weir_types::api::{Event, EventKind, EventResource};
use weir_types::{ErrorCode, NodeId, TenantId};

/// The path of the API.
pub const EVENTS_PATH: &str = "/cluster/v1/events";

/// The time limit for another node's response.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The size limit of another node's response: both rings that a tenant sees, with texts of full
/// length, or the counts of a thousand canaries.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Responds to a node that has shown the cluster's secret.
pub fn answer_events(events: &EventLog, method: &Method, uri: &Uri) -> Result<Response, Fault> {
    if *method != Method::GET {
        return Err(Fault::new(ErrorCode::MethodNotAllowed, "events are read (GET)"));
    }
    let invalid = || Fault::new(ErrorCode::InvalidRequest, format!("{uri} names no tenant and number"));
    let mut tenant = None;
    let mut after = 0;
    for (key, value) in uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        match key {
            "tenant" => tenant = Some(TenantId::new(value).map_err(|_| invalid())?),
            "after" => after = value.parse().map_err(|_| invalid())?,
            // Of a later version.
            _ => {}
        }
    }
    Ok(Json(events.list(&tenant.ok_or_else(invalid)?, after)).into_response())
}

impl Cluster {
    /// The events of the other nodes that `tenant` may see, by node; `None` for nodes that do not
    /// answer. `after` has the numbers of the latest events that are known already.
    pub async fn events_elsewhere(
        &self,
        tenant: &TenantId,
        after: &HashMap<NodeId, u64>,
    ) -> Vec<(NodeId, Option<Vec<Event>>)> {
        let target = |node: NodeId| {
            let after = after.get(&node).copied().unwrap_or(0);
            format!("{EVENTS_PATH}?tenant={tenant}&after={after}")
        };
        self.ask_others(target).await
    }

    /// Reads JSON from all other nodes, at the target for each; `None` for nodes that do not answer.
    pub async fn ask_others<T: DeserializeOwned>(
        &self,
        target: impl Fn(NodeId) -> String,
    ) -> Vec<(NodeId, Option<T>)> {
        self.ask_others_within(ANSWER_MAX, target).await
    }

    /// Like [`ask_others`](Self::ask_others), with a time limit for all answers.
    pub async fn ask_others_within<T: DeserializeOwned>(
        &self,
        time_max: Duration,
        target: impl Fn(NodeId) -> String,
    ) -> Vec<(NodeId, Option<T>)> {
        let others: Vec<NodeId> =
            self.view.borrow().nodes.keys().copied().filter(|node| *node != self.node).collect();
        let asked = others.into_iter().map(async |node| {
            let target = target(node);
            let asked = async {
                let response = self.ask(node, Method::GET, &target).await.ok()?;
                let is_ok = response.status().is_success();
                let body = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.ok()?;
                is_ok.then(|| serde_json::from_slice(&body).ok())?
            };
            (node, tokio::time::timeout(time_max, asked).await.ok().flatten())
        });
        join_all(asked).await
    }

    /// Records this node's membership, and changes of the members and the dispatcher, until the
    /// future is dropped.
    pub fn note_changes(&self, metrics: Arc<Metrics>) -> impl Future<Output = ()> + Send + use<> {
        let mut view = self.view.clone();
        let own = self.node;
        let address = self.address.clone();
        metrics.events.set_node(own);
        async move {
            metrics.events.record(joined(own, &address));
            // Earlier members have recorded themselves.
            let mut before = view.borrow_and_update().clone();
            if before.dispatcher.is_some_and(|dispatcher| dispatcher.node == own) {
                changes(
                    &ClusterView::default(),
                    &ClusterView { nodes: Default::default(), ..before.clone() },
                )
                .for_each(|event| metrics.events.record(event));
            }
            while view.changed().await.is_ok() {
                let now = view.borrow_and_update().clone();
                changes(&before, &now).for_each(|event| metrics.events.record(event));
                before = now;
            }
        }
    }
}

/// The events between two states of a cluster.
fn changes(before: &ClusterView, now: &ClusterView) -> impl Iterator<Item = NewEvent> {
    let come = now.nodes.iter().filter(|(node, _)| !before.nodes.contains_key(node));
    let come = come.map(|(node, Member { address, .. })| joined(*node, address));
    let gone = before.nodes.iter().filter(|(node, _)| !now.nodes.contains_key(node));
    let gone = gone.map(|(node, Member { address, .. })| {
        of_node(
            EventKind::NodeLeft,
            *node,
            format!("node {} at {address} left the cluster, or was lost", node.0),
        )
    });
    let elected = now.dispatcher.filter(|dispatcher| before.dispatcher != Some(*dispatcher));
    let elected = elected.map(|dispatcher| {
        let text =
            format!("node {} places calls from revision {} on", dispatcher.node.0, dispatcher.elected_at.0);
        of_node(EventKind::Elected, dispatcher.node, text)
    });
    // Collected: the iterator must not borrow the states.
    let all: Vec<NewEvent> = gone.chain(come).chain(elected).collect();
    all.into_iter()
}

fn joined(node: NodeId, address: &str) -> NewEvent {
    of_node(EventKind::NodeJoined, node, format!("node {} at {address} joined the cluster", node.0))
}

fn of_node(kind: EventKind, node: NodeId, text: String) -> NewEvent {
    let resource = EventResource::Node;
    NewEvent { tenant: None, kind, resource, name: node.0.to_string(), text, repeats: None }
}

#[cfg(test)]
mod tests {
    use super::super::members::Dispatcher;
    use super::*;
    use weir_datastore::Revision;

    fn view(nodes: &[u32], dispatcher: Option<(u32, u64)>) -> ClusterView {
        let member = |node: &u32| {
            let address = format!("host-{node}:1");
            (NodeId(*node), Member { address, version: String::new(), protocol: 0, secret: None })
        };
        let dispatcher = dispatcher
            .map(|(node, revision)| Dispatcher { node: NodeId(node), elected_at: Revision(revision) });
        ClusterView { nodes: nodes.iter().map(member).collect(), dispatcher, ..Default::default() }
    }

    #[test]
    fn joins_losses_and_elections_are_events() {
        let before = view(&[1, 2], Some((1, 5)));
        let now = view(&[2, 3], Some((2, 9)));
        let told: Vec<_> = changes(&before, &now).map(|event| (event.kind, event.name)).collect();
        assert_eq!(
            told,
            [
                (EventKind::NodeLeft, "1".to_owned()),
                (EventKind::NodeJoined, "3".to_owned()),
                (EventKind::Elected, "2".to_owned())
            ]
        );
        assert_eq!(changes(&now, &now).count(), 0);
        // The same node was elected again.
        assert_eq!(changes(&now, &view(&[2, 3], Some((2, 12)))).count(), 1);
    }

    #[test]
    fn other_nodes_get_the_events_of_a_tenant_after_a_number() {
        let events = EventLog::default();
        for name in [1, 2] {
            events.record(of_node(EventKind::NodeLeft, NodeId(name), String::new()));
        }
        let status = |target: &str| {
            let uri = target.parse().unwrap();
            answer_events(&events, &Method::GET, &uri).map(|response| response.status().as_u16())
        };
        assert_eq!(status("/cluster/v1/events?tenant=a&after=1").unwrap(), 200);
        assert_eq!(status("/cluster/v1/events?tenant=a").unwrap(), 200);
        assert_eq!(status("/cluster/v1/events?after=1").unwrap_err().code, ErrorCode::InvalidRequest);
        assert_eq!(
            status("/cluster/v1/events?tenant=a&after=x").unwrap_err().code,
            ErrorCode::InvalidRequest
        );
    }
}
