//! The dispatcher's side of the links, where other nodes request placements.

use super::Cluster;
use super::link::{MESSAGES_MAX, line, lines};
use super::wire::{Hello, News, Order};
use crate::dispatch::{LinkId, Placements};
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
pub(crate) const LINK_PATH: &str = "/cluster/v1/link";

/// Responds to a node that has shown the cluster's secret: streams orders while the node sends
/// events.
pub(crate) fn answer_link(
    cluster: &Arc<Cluster>,
    placements: &Arc<Placements>,
    news: Body,
    stop: &CancellationToken,
) -> Response {
    if !cluster.is_dispatcher() || stop.is_cancelled() {
        return (StatusCode::CONFLICT, "this node is not the dispatcher\n").into_response();
    }
    let (sender, orders) = mpsc::channel(MESSAGES_MAX);
    let hearing = hear(placements.clone(), news, sender, cluster.heartbeat_timeout, stop.clone());
    // Aborted when the response body is dropped, that is, when the link ends.
    let hearing = AbortOnDropHandle::new(tokio::spawn(hearing));
    Body::from_stream(tell(orders, hearing, cluster.heartbeat, stop.clone())).into_response()
}

/// Streams orders, with heartbeats between them, until the other node or this one is gone.
fn tell(
    orders: mpsc::Receiver<Order>,
    hearing: AbortOnDropHandle<()>,
    heartbeat: Duration,
    stop: CancellationToken,
) -> impl Stream<Item = Result<bytes::Bytes, Infallible>> {
    let mut beats = interval(heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    futures::stream::unfold((orders, hearing, beats, stop), async |(mut orders, hearing, mut beats, stop)| {
        let order = tokio::select! {
            order = orders.recv() => order?,
            _ = beats.tick() => Order::Beat,
            () = stop.cancelled() => return None,
        };
        Some((Ok(line(&order)), (orders, hearing, beats, stop)))
    })
}

/// Receives a node's events until the node falls silent.
async fn hear(
    placements: Arc<Placements>,
    news: Body,
    orders: mpsc::Sender<Order>,
    silence_max: Duration,
    stop: CancellationToken,
) {
    let mut news = std::pin::pin!(lines::<News>(news));
    let Ok(Some(Ok(News::Hello(hello)))) = timeout(silence_max, news.next()).await else { return };
    let broken = CancellationToken::new();
    let Some(mut linked) = Linked::join(placements, hello, orders, broken.clone(), stop) else { return };
    loop {
        let heard = tokio::select! {
            heard = timeout(silence_max, news.next()) => heard,
            () = broken.cancelled() => {
                tracing::warn!(node = linked.node.0, "a node does not keep up with its orders: its link is given up");
                return;
            }
        };
        match heard {
            Ok(Some(Ok(News::Leaving))) => {
                linked.is_orderly = true;
                return;
            }
            Ok(Some(Ok(news))) => linked.placements.hear(linked.node, linked.link, news),
            Ok(Some(Err(error))) => {
                tracing::warn!(node = linked.node.0, %error, "the link of a node broke");
                return;
            }
            Ok(None) => return,
            Err(_) => {
                tracing::warn!(
                    node = linked.node.0,
                    "a node has been silent for too long: it counts as lost"
                );
                return;
            }
        }
    }
}

/// A linked node; dropping this ends its link.
struct Linked {
    placements: Arc<Placements>,
    node: NodeId,
    link: LinkId,
    is_orderly: bool,
    /// Cancelled when this node shuts down: the other nodes then continue with their running calls.
    stop: CancellationToken,
}

impl Linked {
    fn join(
        placements: Arc<Placements>,
        hello: Hello,
        orders: mpsc::Sender<Order>,
        broken: CancellationToken,
        stop: CancellationToken,
    ) -> Option<Self> {
        let node = hello.node;
        tracing::info!(node = node.0, address = hello.address, "a node asks this one where to run calls");
        let link = placements.join(hello, orders, broken)?;
        Some(Self { placements, node, link, is_orderly: false, stop })
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let is_orderly = self.is_orderly || self.stop.is_cancelled();
        self.placements.leave(self.node, self.link, is_orderly);
    }
}
