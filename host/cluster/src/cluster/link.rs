//! A node's side of its link to the dispatcher.

use super::Cluster;
use super::dispatcher_server::LINK_PATH;
use super::forward::{ForwardClient, causes};
use super::members::ClusterView;
use crate::placement::{Link, Placements};
use crate::wire::{DispatcherCommand, NodeEvent, PROTOCOL};
use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderName, Method, Request, StatusCode};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use weir_link::{FrameDecoder, FrameEncoder, Message};
use weir_tls::NodeIdentity;

/// The maximum number of messages that wait to be sent over a link. A link with more messages is
/// closed.
pub(super) const MESSAGES_MAX: usize = 65_536;
/// The maximum number of messages that are encoded and sent together.
const MESSAGES_PER_PIECE: usize = 256;
/// The version of the messages, in the request that opens a link and in its response.
pub(super) const LINK_PROTOCOL: HeaderName = HeaderName::from_static("weir-protocol");
/// The size limit of the reason why a link is refused.
const REFUSAL_BYTES_MAX: usize = 4 << 10;
/// The shortest time between two attempts to reach the dispatcher.
const RETRY: Duration = Duration::from_millis(200);

/// The reason why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("it cannot be reached: {0}")]
    Connect(hyper_util::client::legacy::Error),
    #[error("it answered {0}: {1}")]
    Refused(StatusCode, String),
    #[error("it does not speak protocol {PROTOCOL}: run the same version of Weir on all nodes")]
    Protocol,
    #[error("it has been silent for too long")]
    Silent,
    #[error("it does not keep up")]
    Full,
    #[error("the certificates of nodes have changed")]
    Certificates,
    #[error("it has ended the link")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
}

impl LinkEnd {
    /// Whether no process listens at the dispatcher's address: the dispatcher has ended.
    fn is_refused(&self) -> bool {
        let Self::Connect(error) = self else { return false };
        causes(error)
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// The heartbeats of one end of a link, and those that it misses of the other end.
///
/// The silence of the other end is counted in heartbeats of this end. The suspension of this process
/// counts as one heartbeat, however long it lasts, and so not as silence of the other end.
pub(super) struct Heartbeat {
    interval: Interval,
    silent: u32,
    silent_max: u32,
}

impl Heartbeat {
    pub(super) fn new(period: Duration, silence_max: Duration) -> Self {
        let mut interval = interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let silent_max = silence_max.as_nanos().div_ceil(period.as_nanos().max(1));
        Self { interval, silent: 0, silent_max: u32::try_from(silent_max).unwrap_or(u32::MAX) }
    }

    /// Records a message from the other end.
    pub(super) fn heard(&mut self) {
        self.silent = 0;
    }

    /// Completes when the next heartbeat is due. Returns whether the other end has been silent for
    /// too long.
    pub(super) async fn tick(&mut self) -> bool {
        self.interval.tick().await;
        self.silent = self.silent.saturating_add(1);
        self.silent > self.silent_max
    }
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
        let begun = Instant::now();
        let end = hold(&cluster, &placements, &address, over).await;
        placements.place_alone();
        if let Some(end) = end {
            tracing::warn!(dispatcher = dispatcher.node.0, why = %end, "no connection to the dispatcher: this node places calls itself");
            if end.is_refused() {
                // It would otherwise remain the dispatcher until its lease expires.
                cluster.lost.send_replace(Some(dispatcher));
            }
            // A link that was open for longer is opened again at once: the attempt shows whether
            // the dispatcher has ended.
            tokio::select! {
                () = sleep_until(begun + RETRY) => {}
                changed = view.changed() => if changed.is_err() { return },
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
    cluster.lost.send_if_modified(|lost| lost.take().is_some());
    tracing::info!(address, "connected to the dispatcher");
    let mut heartbeat = Heartbeat::new(cluster.heartbeat, cluster.heartbeat_timeout);
    loop {
        tokio::select! {
            received = commands.next() => match received {
                Some(Ok(received)) => {
                    heartbeat.heard();
                    placements.execute(received);
                }
                Some(Err(error)) => return Some(LinkEnd::Broken(error)),
                None => return Some(LinkEnd::Closed),
            },
            is_silent = heartbeat.tick() => {
                if is_silent {
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
) -> Result<impl Stream<Item = io::Result<Vec<DispatcherCommand>>>, LinkEnd> {
    let mut request = Request::new(Body::from_stream(encoded(outbox).map(Ok::<_, Infallible>)));
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(LINK_PROTOCOL, PROTOCOL.into());
    let response = client.send(address, LINK_PATH, request).await.map_err(LinkEnd::Connect)?;
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        let why = axum::body::to_bytes(Body::new(body), REFUSAL_BYTES_MAX).await.unwrap_or_default();
        return Err(LinkEnd::Refused(head.status, String::from_utf8_lossy(&why).trim().to_owned()));
    }
    let protocol = head.headers.get(LINK_PROTOCOL);
    if protocol.is_none_or(|protocol| protocol.as_bytes() != PROTOCOL.to_string().as_bytes()) {
        return Err(LinkEnd::Protocol);
    }
    Ok(messages(Body::new(body)))
}

/// Encodes the messages of a queue. Those that wait at the same time are sent together.
pub(super) fn encoded<M: Message>(queue: mpsc::Receiver<M>) -> impl Stream<Item = Bytes> {
    let state = (queue, FrameEncoder::default(), Vec::new());
    futures::stream::unfold(state, async |(mut queue, mut encoder, mut waiting)| {
        let received = queue.recv_many(&mut waiting, MESSAGES_PER_PIECE).await;
        (received > 0).then(|| (encoder.encode(waiting.drain(..)), (queue, encoder, waiting)))
    })
}

/// Decodes the messages in a body, as they arrive. The stream ends after the first error: the body of
/// a broken connection fails again at every read.
pub(super) fn messages<M: Message>(body: Body) -> impl Stream<Item = io::Result<Vec<M>>> {
    let state = Some((body.into_data_stream(), FrameDecoder::default()));
    futures::stream::unfold(state, async |state| {
        let (mut body, mut decoder) = state?;
        let bytes = body.next().await?;
        match decode(bytes, &mut decoder) {
            Ok(messages) => Some((Ok(messages), Some((body, decoder)))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

fn decode<M: Message>(
    bytes: Result<Bytes, axum::Error>,
    decoder: &mut FrameDecoder<M>,
) -> io::Result<Vec<M>> {
    decoder.receive(&bytes.map_err(io::Error::other)?);
    let mut messages = Vec::new();
    while let Some(message) = decoder.decode().map_err(io::Error::other)? {
        messages.push(message);
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(500);
    const SILENCE_MAX: Duration = Duration::from_secs(2);

    /// The time until the other end counts as lost.
    async fn time_until_silent(heartbeat: &mut Heartbeat) -> Duration {
        let begun = Instant::now();
        while !heartbeat.tick().await {}
        begun.elapsed()
    }

    #[tokio::test]
    async fn messages_end_after_an_error() {
        let broken =
            futures::stream::repeat_with(|| Err::<Bytes, _>(io::Error::other("the connection broke")));
        let received: Vec<_> = messages::<NodeEvent>(Body::from_stream(broken)).take(3).collect().await;
        assert!(matches!(received[..], [Err(_)]), "{received:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_noticed_within_a_heartbeat_of_the_timeout() {
        let mut heartbeat = Heartbeat::new(PERIOD, SILENCE_MAX);
        assert_eq!(time_until_silent(&mut heartbeat).await, SILENCE_MAX);
        tokio::time::advance(PERIOD / 2).await;
        heartbeat.heard();
        assert_eq!(time_until_silent(&mut heartbeat).await, SILENCE_MAX + PERIOD / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_process_waits_for_the_other_end() {
        let mut heartbeat = Heartbeat::new(PERIOD, SILENCE_MAX);
        assert!(!heartbeat.tick().await);
        tokio::time::advance(SILENCE_MAX * 10).await;
        assert!(!heartbeat.tick().await, "the messages of the other end are not read yet");
        assert_eq!(time_until_silent(&mut heartbeat).await, PERIOD * 3);
    }
}
