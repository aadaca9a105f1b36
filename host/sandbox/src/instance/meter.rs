//! CPU time and wall-clock time of one invocation.

use super::extension::DeadlineExtension;
use super::usage::SandboxUsage;
use crate::clock::thread_cpu_time;
use crate::engine::Engines;
use futures::FutureExt;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The exceeded time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeOverrun {
    CpuTime,
    Deadline,
}

/// Limits of time of a guest.
pub(super) struct GuestTimes {
    pub(super) cpu_time_max: Duration,
    pub(super) deadline: Instant,
    /// Replaces the deadline once granted.
    pub(super) extension: Option<DeadlineExtension>,
}

/// Polls a guest and charges it the CPU time of the thread, until it ends or exceeds either time
/// limit.
///
/// A spinning guest yields at every epoch tick, so a poll takes little more than one tick. A guest
/// that waits in a host call is stopped by the deadline. Dropping the future unwinds the guest:
/// this is how a disconnected client cancels it.
pub(super) struct MeteredGuest<'a, Guest> {
    guest: Pin<&'a mut Guest>,
    engines: Arc<Engines>,
    usage: Arc<SandboxUsage>,
    cpu_time: Duration,
    times: GuestTimes,
    /// Created at the first wait: most guests never wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a, Guest: Future> MeteredGuest<'a, Guest> {
    pub(super) fn new(
        guest: Pin<&'a mut Guest>,
        engines: Arc<Engines>,
        usage: Arc<SandboxUsage>,
        times: GuestTimes,
    ) -> Self {
        Self { guest, engines, usage, cpu_time: Duration::ZERO, times, timer: None }
    }
}

impl<Guest: Future> Future for MeteredGuest<'_, Guest> {
    type Output = Result<Guest::Output, TimeOverrun>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let ticking = this.engines.ticking();
        let started = std::time::Instant::now();
        let before = Reading::before(started);
        let polled = this.guest.as_mut().poll(cx);
        drop(ticking);
        this.cpu_time += before.charge(started.elapsed());
        this.usage.set_cpu_time(this.cpu_time);
        if let Poll::Ready(answer) = polled {
            return Poll::Ready(Ok(answer));
        }
        if this.usage.cpu_time() >= this.times.cpu_time_max {
            return Poll::Ready(Err(TimeOverrun::CpuTime));
        }
        let GuestTimes { deadline, extension, .. } = &mut this.times;
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(*deadline)));
        ready!(timer.poll_unpin(cx));
        if let Some(later) = extension.as_ref().and_then(DeadlineExtension::granted) {
            *extension = None;
            *deadline = later;
            timer.as_mut().reset(later);
            ready!(timer.poll_unpin(cx));
        }
        Poll::Ready(Err(TimeOverrun::Deadline))
    }
}

/// Shorter polls are charged their elapsed time. Longer polls are overcharged by at most this.
const BRIEF: Duration = Duration::from_micros(200);

/// A reading of the thread's CPU clock.
#[derive(Clone, Copy)]
struct Reading {
    at: std::time::Instant,
    cpu_time: Duration,
}

thread_local! {
    static LAST: Cell<Option<Reading>> = const { Cell::new(None) };
}

impl Reading {
    /// The thread's CPU time at `at` or shortly before. Readings are reused, because reading the
    /// clock is a system call.
    fn before(at: std::time::Instant) -> Self {
        let recent = LAST.get().filter(|last| at.saturating_duration_since(last.at) < BRIEF);
        recent.unwrap_or_else(|| {
            let now = Self { at, cpu_time: thread_cpu_time() };
            LAST.set(Some(now));
            now
        })
    }

    /// The CPU time of a poll that began after this reading and just took `elapsed`: less than
    /// `elapsed` if the thread was not running all the time.
    fn charge(self, elapsed: Duration) -> Duration {
        if elapsed < BRIEF {
            return elapsed;
        }
        elapsed.min(thread_cpu_time().saturating_sub(self.cpu_time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn waiting_thread_is_charged_cpu_time_only() {
        // An old reading, with much CPU time spent since.
        let started = Instant::now();
        Reading::before(started);
        while started.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        let before = Reading::before(started);
        std::thread::sleep(Duration::from_millis(5));
        let elapsed = started.elapsed();
        let charged = before.charge(elapsed);
        assert!(charged < Duration::from_millis(2), "{charged:?} of {elapsed:?}");
        assert_eq!(before.charge(BRIEF / 2), BRIEF / 2);
    }
}
