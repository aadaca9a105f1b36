//! The connection of a WebSocket, which measures the silence of its client.

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

/// Time since the client has sent anything. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Silence(Arc<SilenceState>);

#[derive(Debug)]
struct SilenceState {
    opened: Instant,
    /// The time of the last bytes, in milliseconds after `opened`.
    seen_ms: AtomicU64,
    /// Whether the node reads nothing, because the function does not.
    is_paused: AtomicBool,
}

impl Silence {
    pub(super) fn new() -> Self {
        let opened = Instant::now();
        Self(Arc::new(SilenceState { opened, seen_ms: AtomicU64::new(0), is_paused: AtomicBool::new(false) }))
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

    fn length(&self) -> Duration {
        if self.0.is_paused.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let seen = Duration::from_millis(self.0.seen_ms.load(Ordering::Relaxed));
        self.0.opened.elapsed().saturating_sub(seen)
    }

    /// Returns once the client has been silent for `limit`.
    pub(super) async fn lasts(&self, limit: Duration) {
        loop {
            let left = limit.saturating_sub(self.length());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

/// An upgraded connection.
pub(super) struct SocketIo {
    io: TokioIo<Upgraded>,
    silence: Silence,
}

impl SocketIo {
    pub(super) fn new(upgraded: Upgraded, silence: Silence) -> Self {
        Self { io: TokioIo::new(upgraded), silence }
    }
}

impl AsyncRead for SocketIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.silence.note();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SocketIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
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
        let silence = Silence::new();
        let limit = Duration::from_secs(60);
        let started = Instant::now();
        let client = async {
            sleep(Duration::from_secs(50)).await;
            silence.note();
            sleep(Duration::from_secs(50)).await;
            silence.set_paused(true);
            sleep(Duration::from_secs(500)).await;
            silence.set_paused(false);
        };
        tokio::join!(silence.lasts(limit), client);
        assert_eq!(started.elapsed(), Duration::from_secs(660));
    }
}
