//! Polling for messages that are due, instead of sleeping until they arrive.
//!
//! The system wakes a sleeping thread 20 to 60 us after a message has arrived, if the processor was
//! idle. A polling thread notices the message within 1 us, but occupies a processor. Therefore a
//! thread polls only around the time at which the message is expected:
//!
//! ```text
//!   wait begins        expected
//!   │  sleep  │◄─ lead ─►│◄─ tail ─►│  sleep until the message arrives
//!             └──────── poll ───────┘
//! ```
//!
//! The expected wait is the shortest of the last waits. The lead follows the delay of the system's
//! timers. A thread polls for at most [`POLL_TIME_MAX`] per wait, and sleeps if the message is far
//! away. After a poll in vain, the thread sleeps through the next waits, so that an irregular or idle
//! peer costs almost no processor time. In each process, at most a quarter of the processors poll
//! ([`PROCESSORS_PER_POLL`]).
//!
//! Polling looks at the same descriptors as sleeping. Therefore no message is lost between both, and
//! the end of the peer is noticed in both.

use std::hint::spin_loop;
use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Number of waits that the forecast remembers.
const WAITS_LEN: usize = 4;
/// Longest wait before a message for which a thread polls. A wake-up is at most a hundredth of a
/// longer wait.
const EXPECTED_MAX: Duration = Duration::from_millis(10);
/// Maximum time between the start of polling and the expected message.
const LEAD_MAX: Duration = Duration::from_micros(100);
/// Increase of the lead after a message that arrived before polling.
const LEAD_STEP: Duration = Duration::from_micros(10);
/// Time of polling before a message that the lead aims at.
const POLL_TIME_AIM: Duration = Duration::from_micros(30);
/// Minimum time for which sleeping is worthwhile.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// Time of polling after the message was expected.
const TAIL: Duration = Duration::from_micros(50);
/// Maximum time of polling per wait.
const POLL_TIME_MAX: Duration = Duration::from_micros(200);
/// Points that a poll in vain costs; a successful poll restores one point. Polling is worthwhile
/// only if two of three polls succeed.
const MISS_POINTS: u32 = 2;
/// Maximum number of points. While it is reached, one of 64 waits polls.
const POINTS_MAX: u32 = 12;
/// Number of processors for each thread of a process that may poll.
const PROCESSORS_PER_POLL: usize = 4;

/// Number of polling threads of this process.
static POLLING: AtomicUsize = AtomicUsize::new(0);
/// Maximum number of polling threads of this process.
static POLLING_MAX: LazyLock<usize> = LazyLock::new(|| match available_parallelism() {
    Ok(processors) if processors.get() > 1 => (processors.get() / PROCESSORS_PER_POLL).max(1),
    // The only processor has to send the message.
    _ => 0,
});

/// Expected time of the next message of one kind: of a reply after its request, or of a request
/// after the previous reply. The default forecast expects nothing until it has seen some messages.
#[derive(Debug, Clone)]
pub struct Forecast {
    may_poll: bool,
    /// The last waits, in a ring.
    waits: [Duration; WAITS_LEN],
    /// Number of waits so far.
    count: usize,
    lead: Duration,
    /// Points of polls in vain.
    points: u32,
    /// Number of next waits without polling.
    pauses: u32,
}

/// Reason for the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// A message, or the end of the peer.
    Message,
    /// A wake-up.
    Woken,
    /// Neither, by the deadline.
    Late,
}

/// Course of a wait: sleep, poll, sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WaitPlan {
    /// Time before polling. Zero: poll at once.
    sleep: Duration,
    poll: Duration,
}

/// Phase of a wait in which the message arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// The thread did not poll.
    Unpolled,
    /// Before the thread polled.
    Early,
    /// While the thread polled; after a sleep, for this time.
    Polled(Option<Duration>),
    /// After the thread had polled in vain.
    Missed,
}

/// Permission to poll, returned on drop.
struct PollPermit;

impl Default for Forecast {
    fn default() -> Self {
        let waits = [Duration::ZERO; WAITS_LEN];
        Self { may_poll: true, waits, count: 0, lead: LEAD_MAX, points: 0, pauses: 0 }
    }
}

impl Forecast {
    /// Creates the forecast of a thread that always sleeps: for rare messages, and for peers that
    /// need the processors themselves.
    #[must_use]
    pub fn sleeping() -> Self {
        Self { may_poll: false, ..Self::default() }
    }

    /// Returns whether a wait may poll at all.
    pub(crate) fn may_poll(&self) -> bool {
        self.may_poll
    }

    /// Waits until `look` finds something, at most until the deadline. `look` sleeps until it finds
    /// something or its own deadline has passed, but looks at least once.
    pub(crate) fn wait(
        &mut self,
        until: Option<Instant>,
        mut look: impl FnMut(Option<Instant>) -> io::Result<Ready>,
    ) -> io::Result<Ready> {
        let began = Instant::now();
        let (ready, arrival) = match self.plan() {
            Some(plan) => poll_by(plan, began, until, &mut look)?,
            None => (look(until)?, Arrival::Unpolled),
        };
        // A wake-up or a deadline says nothing about messages.
        if ready == Ready::Message {
            self.note(began.elapsed(), arrival);
        }
        Ok(ready)
    }

    /// Plans a wait. `None`: sleep.
    fn plan(&mut self) -> Option<WaitPlan> {
        if self.pauses > 0 {
            self.pauses -= 1;
            return None;
        }
        let expected =
            self.waits.iter().min().copied().filter(|_| self.may_poll && self.count >= WAITS_LEN)?;
        if expected > EXPECTED_MAX {
            return None;
        }
        let sleep = expected.saturating_sub(self.lead);
        let sleep = if sleep < SLEEP_MIN { Duration::ZERO } else { sleep };
        let poll = expected.saturating_sub(sleep).saturating_add(TAIL).min(POLL_TIME_MAX);
        Some(WaitPlan { sleep, poll })
    }

    /// Learns from a message that arrived after `waited`.
    fn note(&mut self, waited: Duration, arrival: Arrival) {
        if let Some(oldest) = self.waits.get_mut(self.count % WAITS_LEN) {
            *oldest = waited;
        }
        self.count = self.count.saturating_add(1);
        match arrival {
            Arrival::Unpolled => {}
            Arrival::Early => self.lead = self.lead.saturating_add(LEAD_STEP).min(LEAD_MAX),
            Arrival::Polled(polled) => {
                self.points = self.points.saturating_sub(1);
                // Without a sleep, the time says nothing about timers.
                let excess = polled.map(|polled| polled.saturating_sub(POLL_TIME_AIM));
                self.lead = self.lead.saturating_sub(excess.unwrap_or_default() / 8);
            }
            Arrival::Missed => {
                self.points = self.points.saturating_add(MISS_POINTS).min(POINTS_MAX);
                self.pauses = (1 << (self.points / MISS_POINTS)) - 1;
            }
        }
    }
}

/// Waits by a plan.
fn poll_by(
    plan: WaitPlan,
    began: Instant,
    until: Option<Instant>,
    look: &mut impl FnMut(Option<Instant>) -> io::Result<Ready>,
) -> io::Result<(Ready, Arrival)> {
    let at = |time: Instant| until.map_or(time, |until| until.min(time));
    if !plan.sleep.is_zero() {
        let ready = look(Some(at(began + plan.sleep)))?;
        if ready != Ready::Late {
            return Ok((ready, Arrival::Early));
        }
    }
    let Some(permit) = PollPermit::take() else { return Ok((look(until)?, Arrival::Unpolled)) };
    let polls_since = Instant::now();
    let poll_until = at(polls_since + plan.poll);
    loop {
        let ready = look(Some(began))?;
        let now = Instant::now();
        if ready != Ready::Late {
            let slept = !plan.sleep.is_zero();
            return Ok((ready, Arrival::Polled(slept.then_some(now - polls_since))));
        }
        if now >= poll_until {
            break;
        }
        spin_loop();
    }
    drop(permit);
    Ok((look(until)?, Arrival::Missed))
}

impl PollPermit {
    fn take() -> Option<Self> {
        let room = |polling: usize| (polling < *POLLING_MAX).then_some(polling + 1);
        POLLING.fetch_update(Relaxed, Relaxed, room).ok().map(|_| Self)
    }
}

impl Drop for PollPermit {
    fn drop(&mut self) {
        POLLING.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
