//! Pace at which a client takes answers.

use crate::AnswersConfig;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Bytes of one answer, or of all answers of a connection, on their way to the client.
#[derive(Debug, Default)]
pub(super) struct WriteProgress {
    /// Bytes handed to the connection and not written to its socket.
    waiting_bytes: AtomicU64,
    /// Bytes written to the socket so far.
    taken_bytes: AtomicU64,
    /// Number of times that the waiting bytes reached zero.
    drained: AtomicU64,
}

impl WriteProgress {
    /// Adds bytes that wait for the client.
    pub(super) fn add(&self, bytes: u64) {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that the client took `bytes`.
    pub(super) fn take(&self, bytes: u64) {
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.remove(bytes);
    }

    /// Removes bytes that were dropped.
    pub(super) fn remove(&self, bytes: u64) {
        if self.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel) == bytes {
            self.drained.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Acquire)
    }
}

/// Detects a client that takes too little, from the polls of the task that serves it. Has a timer
/// only while bytes wait after a poll.
#[derive(Debug)]
pub(super) struct StallTimer {
    window: Duration,
    bytes_min: u64,
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    until: Pin<Box<Sleep>>,
    taken_bytes: u64,
    drained: u64,
}

impl StallTimer {
    /// Creates the timer of a connection, whose client must take the lowest rate.
    pub(super) fn for_connection(config: &AnswersConfig) -> Self {
        let AnswersConfig { stall_ms, bytes_per_s_min, .. } = *config;
        Self::new(Duration::from_millis(stall_ms), bytes_per_s_min.saturating_mul(stall_ms) / 1_000)
    }

    /// Creates the timer of an answer that shares its connection with others.
    pub(super) fn for_stream(config: &AnswersConfig) -> Self {
        Self::new(Duration::from_millis(config.stall_ms), 1)
    }

    /// Creates a timer for a client that must take `bytes_min` within each `window`.
    fn new(window: Duration, bytes_min: u64) -> Self {
        Self { window, bytes_min: bytes_min.max(1), armed: None }
    }

    /// Is ready once bytes have waited throughout a window in which the client took too few.
    pub(super) fn poll(&mut self, progress: &WriteProgress, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if progress.waiting_bytes() == 0 {
                self.armed = None;
                return Poll::Pending;
            }
            let taken_bytes = progress.taken_bytes.load(Ordering::Relaxed);
            let drained = progress.drained.load(Ordering::Relaxed);
            let armed = self.armed.take().filter(|armed| armed.drained == drained);
            let armed = self.armed.insert(armed.unwrap_or_else(|| Armed {
                until: Box::pin(sleep(self.window)),
                taken_bytes,
                drained,
            }));
            ready!(armed.until.as_mut().poll(cx));
            if taken_bytes - armed.taken_bytes < self.bytes_min {
                return Poll::Ready(());
            }
            self.armed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::Instant;

    const WINDOW: Duration = Duration::from_secs(60);

    async fn stalled(timer: &mut StallTimer, progress: &WriteProgress) {
        poll_fn(|cx| timer.poll(progress, cx)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_takes_nothing_is_detected_after_one_window() {
        let progress = WriteProgress::default();
        progress.add(10);
        let started = Instant::now();
        stalled(&mut StallTimer::new(WINDOW, 100), &progress).await;
        assert_eq!(started.elapsed(), WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn steady_client_is_not_detected_and_a_slower_one_is() {
        let progress = WriteProgress::default();
        progress.add(100_000);
        let mut timer = StallTimer::new(WINDOW, 100);
        let started = Instant::now();
        let taking = async {
            for _ in 0..100 {
                sleep(WINDOW / 10).await;
                progress.take(20);
            }
            for _ in 0..100 {
                sleep(WINDOW / 10).await;
                progress.take(5);
            }
        };
        tokio::select! {
            () = stalled(&mut timer, &progress) => {}
            () = taking => panic!("the slow client was not detected"),
        }
        let lasted = started.elapsed();
        assert!(lasted > 10 * WINDOW && lasted <= 12 * WINDOW, "{lasted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn drained_answers_restart_the_window() {
        let progress = WriteProgress::default();
        let mut timer = StallTimer::new(WINDOW, 100);
        let started = Instant::now();
        progress.add(10);
        let taking = async {
            sleep(WINDOW / 2).await;
            progress.take(10);
            progress.add(10);
            std::future::pending::<()>().await;
        };
        let polling = async {
            // The task is polled when the client takes bytes.
            while tokio::time::timeout(WINDOW / 4, stalled(&mut timer, &progress)).await.is_err() {}
        };
        tokio::select! {
            () = polling => {}
            () = taking => {}
        }
        let lasted = started.elapsed();
        assert!(lasted >= WINDOW + WINDOW / 2 && lasted <= 2 * WINDOW, "{lasted:?}");
    }
}
