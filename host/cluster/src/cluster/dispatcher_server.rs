//! The dispatcher's side of the links, where other nodes request placements.

use super::Cluster;
use super::link::{MESSAGES_MAX, line, lines};
use crate::placement::{LinkId, Placements};
use crate::wire::{DispatcherCommand, Hello, NodeEvent};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use http::StatusCode;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
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
    events: Body,
    stop: &CancellationToken,
) -> Response {
    if !cluster.is_dispatcher() || stop.is_cancelled() {
        return (StatusCode::CONFLICT, "this node is not the dispatcher\n").into_response();
    }
    // The election may have just come: it is handled before the first node joins.
    cluster.begin_dispatching(placements);
    let (sender, commands) = mpsc::channel(MESSAGES_MAX);
    let hearing = hear(placements.clone(), events, sender, cluster.heartbeat_timeout, stop.clone());
    // Aborted when the response body is dropped, that is, when the link ends.
    let hearing = AbortOnDropHandle::new(tokio::spawn(hearing));
    Body::from_stream(tell(commands, hearing, cluster.heartbeat, stop.clone())).into_response()
}

/// Streams commands, with heartbeats between them, until either node stops or disconnects.
fn tell(
    commands: mpsc::Receiver<DispatcherCommand>,
    hearing: AbortOnDropHandle<()>,
    heartbeat: Duration,
    stop: CancellationToken,
) -> impl Stream<Item = Result<bytes::Bytes, Infallible>> {
    let mut beats = interval(heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    futures::stream::unfold(
        (commands, hearing, beats, stop),
        async |(mut commands, hearing, mut beats, stop)| {
            let command = tokio::select! {
                command = commands.recv() => command?,
                _ = beats.tick() => DispatcherCommand::Beat,
                () = stop.cancelled() => return None,
            };
            Some((Ok(line(&command)), (commands, hearing, beats, stop)))
        },
    )
}

/// Receives a node's events until the node falls silent.
async fn hear(
    placements: Arc<Placements>,
    events: Body,
    commands: mpsc::Sender<DispatcherCommand>,
    silence_max: Duration,
    stop: CancellationToken,
) {
    let mut events = std::pin::pin!(lines::<NodeEvent>(events));
    let Ok(Some(Ok(NodeEvent::Hello(hello)))) = timeout(silence_max, events.next()).await else { return };
    let broken = CancellationToken::new();
    let Some(mut linked) = LinkedNode::join(placements, hello, commands, broken.clone(), stop) else {
        return;
    };
    loop {
        let heard = tokio::select! {
            heard = timeout(silence_max, events.next()) => heard,
            () = broken.cancelled() => {
                tracing::warn!(node = linked.node.0, "a node reads its commands too slowly: link closed");
                return;
            }
        };
        match heard {
            Ok(Some(Ok(NodeEvent::Leaving))) => {
                linked.is_orderly = true;
                return;
            }
            Ok(Some(Ok(event))) => linked.placements.hear(linked.node, linked.link, event),
            Ok(Some(Err(error))) => {
                tracing::warn!(node = linked.node.0, %error, "link to a node failed");
                return;
            }
            Ok(None) => return,
            Err(_) => {
                tracing::warn!(node = linked.node.0, "no heartbeat from a node: it counts as lost");
                return;
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
        tracing::info!(node = node.0, address = hello.address, "node connected to this dispatcher");
        let link = placements.join(hello, commands, broken)?;
        Some(Self { placements, node, link, is_orderly: false, stop })
    }
}

impl Drop for LinkedNode {
    fn drop(&mut self) {
        let is_orderly = self.is_orderly || self.stop.is_cancelled();
        self.placements.leave(self.node, self.link, is_orderly);
    }
}
