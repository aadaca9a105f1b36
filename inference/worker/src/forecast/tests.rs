use super::*;
use parking_lot::Mutex;
use proptest::prelude::*;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Waits for a message that arrives after `message`, while timers are late by `lateness`, in virtual
/// time. Returns the arrival and the time of polling.
fn wait(forecast: &mut Forecast, message: Duration, lateness: Duration) -> (Arrival, Duration) {
    let (waited, arrival, polled) = match forecast.plan() {
        None => (message + lateness, Arrival::Unpolled, Duration::ZERO),
        Some(WaitPlan { sleep, .. }) if !sleep.is_zero() && message <= sleep => {
            (message + lateness, Arrival::Early, Duration::ZERO)
        }
        Some(WaitPlan { sleep, poll }) => {
            assert!(poll <= POLL_TIME_MAX && sleep <= EXPECTED_MAX, "{sleep:?}, {poll:?}");
            let from = if sleep.is_zero() { sleep } else { sleep + lateness };
            let polled = message.saturating_sub(from);
            if polled <= poll {
                (from + polled, Arrival::Polled((!sleep.is_zero()).then_some(polled)), polled)
            } else {
                (message + lateness, Arrival::Missed, poll)
            }
        }
    };
    forecast.note(waited, arrival);
    (arrival, polled)
}

#[test]
fn regular_messages_are_polled_for_briefly() {
    for (message, lateness) in [(us(60), us(60)), (us(250), us(60)), (us(3_000), us(90)), (us(9_000), us(5))]
    {
        let mut forecast = Forecast::default();
        let arrivals: Vec<_> = (0..200).map(|_| wait(&mut forecast, message, lateness)).collect();
        assert!(arrivals[..WAITS_LEN].iter().all(|(arrival, _)| *arrival == Arrival::Unpolled));
        let settled = &arrivals[100..];
        let hits = settled.iter().filter(|(arrival, _)| matches!(arrival, Arrival::Polled(_))).count();
        assert!(hits >= 90, "{message:?}: {settled:?}");
        let longest = settled.iter().map(|(_, polled)| *polled).max().unwrap();
        assert!(longest <= us(60), "{message:?}: {longest:?}");
    }
}

#[test]
fn far_messages_are_slept_for() {
    let mut forecast = Forecast::default();
    assert!((0..100).all(|_| wait(&mut forecast, EXPECTED_MAX + us(1), us(60)).0 == Arrival::Unpolled));
    let mut forecast = Forecast::sleeping();
    assert!((0..100).all(|_| wait(&mut forecast, us(10), us(0)).0 == Arrival::Unpolled));
}

#[test]
fn irregular_messages_cost_few_polls() {
    let mut forecast = Forecast::default();
    let waits = [us(100), us(5_000), us(5_000), us(5_000)].into_iter().cycle().take(10_000);
    let polled = waits.filter(|message| wait(&mut forecast, *message, us(60)).1 > Duration::ZERO);
    let polled = polled.count();
    assert!(polled < 500, "{polled} of 10000 waits polled");
}

#[test]
fn messages_that_become_regular_are_polled_for_again() {
    let mut forecast = Forecast::default();
    for message in [us(100), us(5_000), us(5_000), us(5_000)].into_iter().cycle().take(1_000) {
        wait(&mut forecast, message, us(60));
    }
    let hits = (0..200).map(|_| wait(&mut forecast, us(300), us(60)));
    let hits = hits.filter(|(arrival, _)| matches!(arrival, Arrival::Polled(_))).count();
    assert!(hits > 100, "{hits}");
}

/// Held by tests that take permits.
static PERMITS: Mutex<()> = Mutex::new(());

#[test]
fn permits_to_poll_are_limited_and_returned() {
    let _lock = PERMITS.lock();
    for _ in 0..2 {
        let permits: Vec<_> = std::iter::from_fn(PollPermit::take).collect();
        assert_eq!(permits.len(), *POLLING_MAX);
    }
}

/// Polls at once, for a message that arrives at the look with this number. Returns the outcome and
/// the number of looks.
fn poll_for(message: u32, poll: Duration) -> (Ready, Arrival, u32) {
    let mut looks = 0;
    let plan = WaitPlan { sleep: Duration::ZERO, poll };
    let look = &mut |until: Option<Instant>| {
        looks += 1;
        // A look without a deadline waits for the message.
        Ok(if looks >= message || until.is_none() { Ready::Message } else { Ready::Late })
    };
    let (ready, arrival) = poll_by(plan, Instant::now(), None, look).unwrap();
    (ready, arrival, looks)
}

#[test]
fn polling_ends_with_the_message_or_sleeps() {
    let _lock = PERMITS.lock();
    if *POLLING_MAX > 0 {
        let long = Duration::from_secs(60);
        assert_eq!(poll_for(10, long), (Ready::Message, Arrival::Polled(None), 10));
        let (ready, arrival, looks) = poll_for(u32::MAX, us(500));
        assert_eq!((ready, arrival), (Ready::Message, Arrival::Missed));
        assert!(looks > 2);
    }
    let permits: Vec<_> = std::iter::from_fn(PollPermit::take).collect();
    assert_eq!(poll_for(10, us(500)), (Ready::Message, Arrival::Unpolled, 1));
    drop(permits);
}

#[test]
fn wake_ups_and_deadlines_end_polling() {
    let _lock = PERMITS.lock();
    let plan = WaitPlan { sleep: Duration::ZERO, poll: Duration::from_secs(60) };
    let (ready, _) = poll_by(plan, Instant::now(), None, &mut |_| Ok(Ready::Woken)).unwrap();
    assert_eq!(ready, Ready::Woken);
    let began = Instant::now();
    let (ready, _) = poll_by(plan, began, Some(began + us(500)), &mut |_| Ok(Ready::Late)).unwrap();
    assert_eq!(ready, Ready::Late);
    assert!(began.elapsed() < Duration::from_secs(30));
}

proptest! {
    #[test]
    fn polls_stay_within_their_limits(
        messages in prop::collection::vec((0..20_000_u64, 0..500_u64), 1..500),
    ) {
        let mut forecast = Forecast::default();
        let mut hits = 0;
        let mut misses = 0;
        for (message, lateness) in messages {
            match wait(&mut forecast, us(message), us(lateness)).0 {
                Arrival::Polled(_) => hits += 1,
                Arrival::Missed => {
                    misses += 1;
                    prop_assert!(forecast.pauses >= 1);
                }
                Arrival::Unpolled | Arrival::Early => {}
            }
            prop_assert!(forecast.lead <= LEAD_MAX && forecast.points <= POINTS_MAX);
            prop_assert!(forecast.pauses < 64);
        }
        // Six misses without a hit, then one in 64 waits.
        prop_assert!(misses <= hits + 6 + 500 / 64 + 1, "{misses} misses, {hits} hits");
    }
}
