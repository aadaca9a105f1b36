//! Processor time and wall-clock time of one invocation.

use super::usage::Usage;
use crate::component::Engines;
use futures::FutureExt;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Which of the two ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overrun {
    CpuTime,
    Deadline,
}

/// Polls a guest, charging it the processor time of the thread, until it ends or runs out of either time.
///
/// A spinning guest yields at every epoch tick, so a poll takes little more than one; a guest that waits in a host call is stopped by the
/// deadline. Dropping the future unwinds the guest, which is how a client that goes away cancels it.
pub(crate) struct Metered<'a, Guest> {
    guest: Pin<&'a mut Guest>,
    engines: Arc<Engines>,
    usage: Arc<Usage>,
    cpu_time: Duration,
    cpu_time_max: Duration,
    deadline: Instant,
    /// Made at the first wait: most guests never wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a, Guest: Future> Metered<'a, Guest> {
    pub(crate) fn new(
        guest: Pin<&'a mut Guest>,
        engines: Arc<Engines>,
        usage: Arc<Usage>,
        cpu_time_max: Duration,
        deadline: Instant,
    ) -> Self {
        Self { guest, engines, usage, cpu_time: Duration::ZERO, cpu_time_max, deadline, timer: None }
    }
}

impl<Guest: Future> Future for Metered<'_, Guest> {
    type Output = Result<Guest::Output, Overrun>;

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
        if this.cpu_time >= this.cpu_time_max {
            return Poll::Ready(Err(Overrun::CpuTime));
        }
        let deadline = this.deadline;
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        timer.poll_unpin(cx).map(|()| Err(Overrun::Deadline))
    }
}

/// Polls shorter than this are charged as they took. Longer ones are charged too much by at most this.
const BRIEF: Duration = Duration::from_micros(200);

/// When the thread's clock was read, and what it said.
#[derive(Clone, Copy)]
struct Reading {
    at: std::time::Instant,
    cpu_time: Duration,
}

thread_local! {
    static LAST: Cell<Option<Reading>> = const { Cell::new(None) };
}

impl Reading {
    /// The thread's processor time at `at`, which is now, or shortly before that: its clock is a system call.
    fn before(at: std::time::Instant) -> Self {
        let recent = LAST.get().filter(|last| at.saturating_duration_since(last.at) < BRIEF);
        recent.unwrap_or_else(|| {
            let now = Self { at, cpu_time: thread_cpu_time() };
            LAST.set(Some(now));
            now
        })
    }

    /// The processor time of a poll that has begun after this and has just taken `elapsed`: less than that where the thread did not run all the
    /// while.
    fn charge(self, elapsed: Duration) -> Duration {
        if elapsed < BRIEF {
            return elapsed;
        }
        elapsed.min(thread_cpu_time().saturating_sub(self.cpu_time))
    }
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel counts up from zero: neither part is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_that_waits_is_charged_for_what_it_computed() {
        // Long ago, and much computed since.
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
