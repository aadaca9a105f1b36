//! A node's side of its link to the dispatcher.

use super::Cluster;
use super::dispatcher_server::LINK_PATH;
use super::forward::ForwardClient;
use super::members::ClusterView;
use crate::placement::{Link, Placements};
use crate::wire::{DispatcherCommand, NodeEvent};
use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Method, Request, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;
use weir_tls::NodeIdentity;

/// The maximum number of messages that wait to be sent over a link. A link with more messages is
/// closed.
pub(super) const MESSAGES_MAX: usize = 65_536;
/// The size limit of a message. The longest messages list resident models and running invocations
/// with the parts of their models.
const LINE_BYTES_MAX: usize = 8 << 20;
/// The pause before the node tries to reach the dispatcher again.
const RETRY: Duration = Duration::from_millis(200);

/// The reason why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("it cannot be reached: {0}")]
    Connect(hyper_util::client::legacy::Error),
    #[error("it answered {0}")]
    Refused(StatusCode),
    #[error("it has been silent for too long")]
    Silent,
    #[error("it does not keep up")]
    Full,
    #[error("the certificates of nodes have changed")]
    Certificates,
    #[error("it has ended the link")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(std::io::Error),
}

/// Keeps a link to the current dispatcher, and places alone while there is none, until `stop`.
pub(super) async fn run(cluster: Arc<Cluster>, placements: Arc<Placements>, stop: CancellationToken) {
    let mut view = cluster.view.clone();
    while !stop.is_cancelled() {
        let dispatcher = view.borrow_and_update().dispatcher();
        let Some((dispatcher, address)) =
            dispatcher.filter(|(dispatcher, _)| dispatcher.node != cluster.node)
        else {
            placements.place_alone();
            cluster.begin_dispatching(&placements);
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                () = cluster.give_up_waiting(&placements) => {}
                () = stop.cancelled() => {}
            }
            continue;
        };
        let mut changes = cluster.view.clone();
        let over = async {
            // An unknown dispatcher counts as the same one: the link shows whether it is alive.
            let is_another = |view: &ClusterView| view.dispatcher.is_some_and(|now| now != dispatcher);
            tokio::select! {
                _ = changes.wait_for(is_another) => {}
                () = stop.cancelled() => {}
            }
        };
        let end = hold(&cluster, &placements, &address, over).await;
        placements.place_alone();
        if let Some(end) = end {
            tracing::warn!(dispatcher = dispatcher.node.0, why = %end, "no connection to the dispatcher: this node places calls itself");
            tokio::select! {
                () = sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

/// Keeps a link open until it fails or `over` completes; in the latter case returns `None`.
async fn hold(
    cluster: &Cluster,
    placements: &Placements,
    address: &str,
    over: impl Future<Output = ()>,
) -> Option<LinkEnd> {
    let (events, outbox) = mpsc::channel(MESSAGES_MAX);
    let mut over = std::pin::pin!(over);
    // Before the connection is opened. The next link checks the dispatcher's certificate again.
    let mut certificates = cluster.auth.identity().map(NodeIdentity::changes);
    let mut changed = std::pin::pin!(async move {
        match &mut certificates {
            Some(certificates) => _ = certificates.changed().await,
            None => std::future::pending().await,
        }
    });
    // A separate connection: calls with large or unread bodies cannot delay the nodes' messages.
    let client = ForwardClient::new(&cluster.auth, cluster.heartbeat_timeout);
    let opened = tokio::select! {
        opened = timeout(cluster.heartbeat_timeout, open(&client, address, outbox)) => opened,
        () = &mut over => return None,
    };
    let commands = match opened {
        Ok(Ok(commands)) => commands,
        Ok(Err(end)) => return Some(end),
        Err(_) => return Some(LinkEnd::Silent),
    };
    let mut commands = std::pin::pin!(commands);
    let broken = CancellationToken::new();
    placements.ask(Link { events: events.clone(), broken: broken.clone() });
    tracing::info!(address, "connected to the dispatcher");
    let mut heard = Instant::now();
    let mut beats = interval(cluster.heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = commands.next() => match command {
                Some(Ok(command)) => {
                    heard = Instant::now();
                    placements.execute(command);
                }
                Some(Err(error)) => return Some(LinkEnd::Broken(error)),
                None => return Some(LinkEnd::Closed),
            },
            _ = beats.tick() => {
                if heard.elapsed() > cluster.heartbeat_timeout {
                    return Some(LinkEnd::Silent);
                }
                if events.try_send(NodeEvent::Beat).is_err() {
                    return Some(LinkEnd::Full);
                }
            }
            () = broken.cancelled() => return Some(LinkEnd::Full),
            () = &mut changed => return Some(LinkEnd::Certificates),
            () = &mut over => break,
        }
    }
    // Running calls continue; the dispatcher closes the link once it has received this.
    placements.place_alone();
    let _ = events.try_send(NodeEvent::Leaving);
    drop(events);
    let _ = timeout(cluster.heartbeat, async { while commands.next().await.is_some() {} }).await;
    None
}

async fn open(
    client: &ForwardClient,
    address: &str,
    outbox: mpsc::Receiver<NodeEvent>,
) -> Result<impl Stream<Item = Result<DispatcherCommand, std::io::Error>>, LinkEnd> {
    let outbox = futures::stream::unfold(outbox, async |mut outbox| {
        let event = outbox.recv().await?;
        Some((line(&event), outbox))
    });
    let mut request = Request::new(Body::from_stream(outbox.map(Ok::<_, std::convert::Infallible>)));
    *request.method_mut() = Method::POST;
    let response = client.send(address, LINK_PATH, request).await.map_err(LinkEnd::Connect)?;
    if response.status() != StatusCode::OK {
        return Err(LinkEnd::Refused(response.status()));
    }
    Ok(lines(Body::new(response.into_body())))
}

/// Encodes a message as a line.
pub(super) fn line(message: &impl Serialize) -> Bytes {
    // Structs of strings and numbers: serialising them cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Decodes the messages in a body.
pub(super) fn lines<T: DeserializeOwned>(body: Body) -> impl Stream<Item = Result<T, std::io::Error>> {
    let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    FramedRead::new(bytes, LinesCodec::new_with_max_length(LINE_BYTES_MAX)).map(|line| {
        let line = line.map_err(std::io::Error::other)?;
        serde_json::from_str(&line).map_err(std::io::Error::other)
    })
}
