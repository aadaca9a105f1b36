//! The connection of a WebSocket, which measures what its client sends and takes.

use super::frames::{FrameSplitter, HEAD_BYTES_MAX};
use super::session::BUFFER_BYTES;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncBufRead as _, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Time since the client has sent anything, and the bytes that it has taken. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Traffic(Arc<TrafficState>);

#[derive(Debug)]
struct TrafficState {
    opened: Instant,
    /// The time of the last bytes, in milliseconds after `opened`.
    seen_ms: AtomicU64,
    /// Whether the node reads nothing, because the function does not.
    is_paused: AtomicBool,
    /// Whether bytes wait for the client, because its connection takes no more.
    is_blocked: watch::Sender<bool>,
    taken_bytes: AtomicU64,
}

impl Traffic {
    pub(super) fn new() -> Self {
        let opened = Instant::now();
        Self(Arc::new(TrafficState {
            opened,
            seen_ms: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
            is_blocked: watch::Sender::new(false),
            taken_bytes: AtomicU64::new(0),
        }))
    }

    /// Whether the node reads: the client may be silent while it cannot send.
    pub(super) fn set_paused(&self, is_paused: bool) {
        self.note();
        self.0.is_paused.store(is_paused, Ordering::Relaxed);
    }

    fn note(&self) {
        let elapsed_ms = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.seen_ms.store(elapsed_ms, Ordering::Relaxed);
    }

    /// Time since the node has read anything from the client.
    fn unread_time(&self) -> Duration {
        let seen = Duration::from_millis(self.0.seen_ms.load(Ordering::Relaxed));
        self.0.opened.elapsed().saturating_sub(seen)
    }

    fn silence(&self) -> Duration {
        if self.0.is_paused.load(Ordering::Relaxed) { Duration::ZERO } else { self.unread_time() }
    }

    fn set_blocked(&self, is_blocked: bool) {
        self.0.is_blocked.send_if_modified(|now| std::mem::replace(now, is_blocked) != is_blocked);
    }

    /// Returns once bytes wait for the client.
    pub(super) async fn blocked(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.is_blocked.subscribe().wait_for(|is_blocked| *is_blocked).await;
    }

    /// Returns once the client's connection has taken all bytes.
    pub(super) async fn unblocked(&self) {
        let _ = self.0.is_blocked.subscribe().wait_for(|is_blocked| !is_blocked).await;
    }

    /// Bytes that the client has taken.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.0.taken_bytes.load(Ordering::Relaxed)
    }

    /// Returns once the client has been silent for `limit`.
    pub(super) async fn silent_for(&self, limit: Duration) {
        loop {
            let left = limit.saturating_sub(self.silence());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    /// Returns once the node has read nothing for `limit`: the client is silent, or the function
    /// does not receive.
    pub(super) async fn unread_for(&self, limit: Duration) {
        loop {
            let left = limit.saturating_sub(self.unread_time());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

/// An upgraded connection.
pub(super) struct SocketIo {
    io: BufReader<TokioIo<Upgraded>>,
    splitter: FrameSplitter,
    traffic: Traffic,
}

impl SocketIo {
    /// Frames of up to `frame_bytes_max` bytes are split.
    pub(super) fn new(upgraded: Upgraded, frame_bytes_max: usize, traffic: Traffic) -> Self {
        let io = BufReader::with_capacity(BUFFER_BYTES, TokioIo::new(upgraded));
        Self { io, splitter: FrameSplitter::new(frame_bytes_max), traffic }
    }
}

impl AsyncRead for SocketIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, splitter, traffic } = &mut *self;
        let before = buffer.filled().len();
        let mut is_read = false;
        while buffer.remaining() > 0 {
            if splitter.payload_left() == 0 {
                if buffer.remaining() < HEAD_BYTES_MAX {
                    break;
                }
                if let Some(head) = splitter.next_fragment() {
                    buffer.put_slice(head.as_ref());
                    continue;
                }
            }
            let available = match Pin::new(&mut *io).poll_fill_buf(cx)? {
                Poll::Ready(available) => available,
                Poll::Pending if buffer.filled().len() == before => return Poll::Pending,
                Poll::Pending => break,
            };
            let Some(first) = available.first().copied() else { break };
            if !std::mem::replace(&mut is_read, true) {
                traffic.note();
            }
            let payload = usize::try_from(splitter.payload_left()).unwrap_or(usize::MAX);
            let taken = payload.min(available.len()).min(buffer.remaining()).max(1);
            if payload > 0 {
                buffer.put_slice(&available[..taken]);
                splitter.pass(taken);
            } else if let Some(head) = splitter.take(first) {
                buffer.put_slice(head.as_ref());
            }
            Pin::new(&mut *io).consume(taken);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SocketIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.io).poll_write(cx, bytes) else {
            self.traffic.set_blocked(true);
            return Poll::Pending;
        };
        let written = written?;
        self.traffic.0.taken_bytes.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The protocol flushes after its last byte.
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.traffic.set_blocked(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_starts_with_the_last_bytes_and_stops_while_the_node_does_not_read() {
        let traffic = Traffic::new();
        let limit = Duration::from_secs(60);
        let started = Instant::now();
        let client = async {
            sleep(Duration::from_secs(50)).await;
            traffic.note();
            sleep(Duration::from_secs(50)).await;
            traffic.set_paused(true);
            sleep(Duration::from_secs(500)).await;
            traffic.set_paused(false);
        };
        tokio::join!(traffic.silent_for(limit), client);
        assert_eq!(started.elapsed(), Duration::from_secs(660));
    }
}
