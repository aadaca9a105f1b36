//! A node's side of its link to the dispatcher.

use super::desk::LINK_PATH;
use super::wire::{News, Order};
use super::{Cluster, members::Dispatcher};
use crate::dispatch::Placements;
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

/// Messages that wait to be sent over a link; one that falls further behind is given up.
pub(super) const MESSAGES_MAX: usize = 65_536;
/// The longest message.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The pause before a dispatcher that cannot be had is asked again.
const RETRY: Duration = Duration::from_millis(200);

/// Why a link is over.
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
    #[error("it has ended the link")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(std::io::Error),
}

/// Ask whoever is the dispatcher, and place alone while there is none, until `stop`.
pub(super) async fn run(cluster: Arc<Cluster>, placements: Arc<Placements>, stop: CancellationToken) {
    let mut view = cluster.view.clone();
    loop {
        let dispatcher = view.borrow_and_update().dispatcher();
        match dispatcher {
            Some((dispatcher, address)) if dispatcher.node != cluster.node => {
                let is_another = |view: &super::View| view.dispatcher.is_some_and(|now| now != dispatcher);
                tokio::select! {
                    end = hold(&cluster, &placements, &address, &stop) => {
                        placements.place_alone();
                        tell(dispatcher, &end);
                        if end.is_none() {
                            return;
                        }
                        tokio::select! {
                            () = sleep(RETRY) => {}
                            () = stop.cancelled() => return,
                        }
                    }
                    // The same dispatcher stays while none is known: the link says whether it is there.
                    changed = async { view.wait_for(is_another).await.map(drop) } => {
                        let is_over = changed.is_err();
                        placements.place_alone();
                        if is_over {
                            return;
                        }
                    }
                }
            }
            _ => {
                placements.place_alone();
                tokio::select! {
                    changed = view.changed() => if changed.is_err() { return },
                    () = stop.cancelled() => return,
                }
            }
        }
    }
}

fn tell(dispatcher: Dispatcher, end: &Option<LinkEnd>) {
    if let Some(end) = end {
        tracing::warn!(dispatcher = dispatcher.node.0, why = %end, "no link to the dispatcher: placing calls here");
    }
}

/// Have a link for as long as it lasts. None if it was ended from here.
async fn hold(
    cluster: &Cluster,
    placements: &Placements,
    address: &str,
    stop: &CancellationToken,
) -> Option<LinkEnd> {
    let (news, outbox) = mpsc::channel(MESSAGES_MAX);
    let orders = match timeout(cluster.heartbeat_timeout, open(cluster, address, outbox)).await {
        Ok(Ok(orders)) => orders,
        Ok(Err(end)) => return Some(end),
        Err(_) => return Some(LinkEnd::Silent),
    };
    let mut orders = std::pin::pin!(orders);
    placements.ask(news.clone());
    tracing::info!(address, "asking the dispatcher");
    let mut heard = Instant::now();
    let mut beats = interval(cluster.heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = orders.next() => match order {
                Some(Ok(order)) => {
                    heard = Instant::now();
                    placements.order(order);
                }
                Some(Err(error)) => return Some(LinkEnd::Broken(error)),
                None => return Some(LinkEnd::Closed),
            },
            _ = beats.tick() => {
                if heard.elapsed() > cluster.heartbeat_timeout {
                    return Some(LinkEnd::Silent);
                }
                if news.try_send(News::Beat).is_err() {
                    return Some(LinkEnd::Full);
                }
            }
            () = stop.cancelled() => {
                placements.place_alone();
                let _ = news.try_send(News::Leaving);
                drop(news);
                // The dispatcher ends the link once it has heard that.
                let _ = timeout(cluster.heartbeat_timeout, async { while orders.next().await.is_some() {} }).await;
                return None;
            }
        }
    }
}

async fn open(
    cluster: &Cluster,
    address: &str,
    outbox: mpsc::Receiver<News>,
) -> Result<impl Stream<Item = Result<Order, std::io::Error>>, LinkEnd> {
    let outbox = futures::stream::unfold(outbox, async |mut outbox| {
        let news = outbox.recv().await?;
        Some((line(&news), outbox))
    });
    let mut request = Request::new(Body::from_stream(outbox.map(Ok::<_, std::convert::Infallible>)));
    *request.method_mut() = Method::POST;
    let response = cluster.client.send(address, LINK_PATH, request).await.map_err(LinkEnd::Connect)?;
    if response.status() != StatusCode::OK {
        return Err(LinkEnd::Refused(response.status()));
    }
    Ok(lines(Body::new(response.into_body())))
}

/// A message as it is sent.
pub(super) fn line(message: &impl Serialize) -> Bytes {
    // Plain values: writing them cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// The messages in a body.
pub(super) fn lines<T: DeserializeOwned>(body: Body) -> impl Stream<Item = Result<T, std::io::Error>> {
    let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    FramedRead::new(bytes, LinesCodec::new_with_max_length(LINE_BYTES_MAX)).map(|line| {
        let line = line.map_err(std::io::Error::other)?;
        serde_json::from_str(&line).map_err(std::io::Error::other)
    })
}
