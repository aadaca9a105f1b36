//! The dispatcher's side of the links, where other nodes request placements.

use super::Cluster;
use super::link::{Heartbeat, LINK_PROTOCOL, MESSAGES_MAX, encoded, messages};
use crate::placement::{LinkId, Placements};
use crate::wire::{DispatcherCommand, Hello, NodeEvent, PROTOCOL};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use http::{Request, StatusCode};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use weir_types::NodeId;

/// The path at which a node opens a link.
pub const LINK_PATH: &str = "/cluster/v1/link";

/// Responds to a node that has shown the cluster's secret: streams commands while the node sends
/// events.
pub fn answer_link(
    cluster: &Arc<Cluster>,
    placements: &Arc<Placements>,
    request: Request<Body>,
    stop: &CancellationToken,
) -> Response {
    let protocol = request.headers().get(LINK_PROTOCOL);
    if protocol.is_none_or(|protocol| protocol.as_bytes() != PROTOCOL.to_string().as_bytes()) {
        let other = protocol.map(|protocol| String::from_utf8_lossy(protocol.as_bytes()));
        let other = other.as_deref().unwrap_or("an earlier one");
        let why = format!(
            "this node is of Weir {} and speaks protocol {PROTOCOL} on links, the other node {other}: run the same version on all nodes\n",
            env!("CARGO_PKG_VERSION")
        );
        return (StatusCode::CONFLICT, why).into_response();
    }
    if !cluster.is_dispatcher() || stop.is_cancelled() {
        return (StatusCode::CONFLICT, "this node is not the dispatcher\n").into_response();
    }
    // The election may have just come: it is handled before the first node joins.
    cluster.begin_dispatching(placements);
    let (sender, commands) = mpsc::channel(MESSAGES_MAX);
    let times = LinkTimes { heartbeat: cluster.heartbeat, silence_max: cluster.heartbeat_timeout };
    let hearing = hear(placements.clone(), request.into_body(), sender, times, stop.clone());
    // Aborted when the response body is dropped, that is, when the link ends.
    let hearing = AbortOnDropHandle::new(tokio::spawn(hearing));
    let commands = encoded(commands).map(move |bytes| {
        let _held = &hearing;
        Ok::<_, Infallible>(bytes)
    });
    ([(LINK_PROTOCOL, PROTOCOL)], Body::from_stream(commands)).into_response()
}

/// The intervals of a link.
#[derive(Clone, Copy)]
struct LinkTimes {
    heartbeat: Duration,
    silence_max: Duration,
}

/// Receives a node's events until the node leaves or falls silent, or until `stop`. The commands
/// end at the same time.
async fn hear(
    placements: Arc<Placements>,
    events: Body,
    commands: mpsc::Sender<DispatcherCommand>,
    LinkTimes { heartbeat, silence_max }: LinkTimes,
    stop: CancellationToken,
) {
    let mut events = std::pin::pin!(messages::<NodeEvent>(events));
    let introduced = tokio::select! {
        introduced = timeout(silence_max, introduction(&mut events)) => introduced,
        () = stop.cancelled() => return,
    };
    let Ok(Some((hello, first))) = introduced else { return };
    let broken = CancellationToken::new();
    // The placements hold the sender: they end the commands when this node stops placing.
    let beating = commands.downgrade();
    let joined = LinkedNode::join(placements, hello, commands, broken.clone(), stop.clone());
    let Some(mut linked) = joined else { return };
    if linked.hear(first) {
        return;
    }
    let node = linked.node.0;
    let mut heartbeat = Heartbeat::new(heartbeat, silence_max);
    loop {
        tokio::select! {
            received = events.next() => match received {
                Some(Ok(received)) => {
                    heartbeat.heard();
                    if linked.hear(received) {
                        return;
                    }
                }
                Some(Err(error)) => return tracing::warn!(node, %error, "link to a node failed"),
                None => return,
            },
            is_silent = heartbeat.tick() => {
                if is_silent {
                    return tracing::warn!(node, "no heartbeat from a node: it counts as lost");
                }
                let Some(commands) = beating.upgrade() else { return };
                if commands.try_send(DispatcherCommand::Beat).is_err() {
                    broken.cancel();
                }
            }
            () = broken.cancelled() => {
                return tracing::warn!(node, "a node reads its commands too slowly: link closed");
            }
            () = stop.cancelled() => return,
        }
    }
}

/// Receives a node's introduction, and the events that arrive with it. `None` if the node sends
/// something else.
async fn introduction(
    events: &mut (impl Stream<Item = io::Result<Vec<NodeEvent>>> + Unpin),
) -> Option<(Hello, Vec<NodeEvent>)> {
    loop {
        match events.next().await? {
            Ok(mut received) if !received.is_empty() => {
                let NodeEvent::Hello(hello) = received.remove(0) else { return None };
                return Some((hello, received));
            }
            // The frame of the introduction has not arrived completely.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the introduction of a node cannot be read");
                return None;
            }
        }
    }
}

/// A linked node; dropping this ends its link.
struct LinkedNode {
    placements: Arc<Placements>,
    node: NodeId,
    link: LinkId,
    is_orderly: bool,
    /// Cancelled when this node shuts down: the other nodes then continue with their running calls.
    stop: CancellationToken,
}

impl LinkedNode {
    fn join(
        placements: Arc<Placements>,
        hello: Hello,
        commands: mpsc::Sender<DispatcherCommand>,
        broken: CancellationToken,
        stop: CancellationToken,
    ) -> Option<Self> {
        let node = hello.node;
        tracing::info!(node = node.0, address = &*hello.address, "node connected to this dispatcher");
        let link = placements.join(hello, commands, broken)?;
        Some(Self { placements, node, link, is_orderly: false, stop })
    }

    /// Handles events of the node. Returns whether the node leaves in good order.
    fn hear(&mut self, mut events: Vec<NodeEvent>) -> bool {
        if let Some(at) = events.iter().position(|event| matches!(event, NodeEvent::Leaving)) {
            events.truncate(at);
            self.is_orderly = true;
        }
        self.placements.hear(self.node, self.link, events);
        self.is_orderly
    }
}

impl Drop for LinkedNode {
    fn drop(&mut self) {
        let is_orderly = self.is_orderly || self.stop.is_cancelled();
        self.placements.leave(self.node, self.link, is_orderly);
    }
}
