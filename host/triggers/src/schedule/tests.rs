//! Ticks around changes of the clock, and properties of all schedules.

use super::*;
use proptest::prelude::*;

/// Central European Time by its rule, so that the tests need no time-zone database.
fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

fn cron(expression: &str, zone: TimeZone) -> Schedule {
    Schedule::Cron { expression: CronExpression::parse(expression).unwrap(), zone }
}

fn ms(text: &str) -> u64 {
    u64::try_from(text.parse::<Timestamp>().unwrap().as_millisecond()).unwrap()
}

/// The next ticks, in UTC.
fn ticks(schedule: &Schedule, after: &str, len: usize) -> Vec<String> {
    let upcoming = schedule.upcoming(ms(after), len);
    let text = |at_ms: u64| Timestamp::from_millisecond(at_ms.cast_signed()).unwrap().to_string();
    upcoming.into_iter().map(text).collect()
}

#[test]
fn fixed_time_in_a_gap_ticks_once_at_the_end_of_the_gap() {
    let daily = cron("0,30 2 * * *", berlin());
    assert_eq!(
        ticks(&daily, "2026-03-28T12:00:00Z", 3),
        ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"]
    );
}

#[test]
fn fixed_time_that_exists_twice_ticks_at_the_first() {
    let daily = cron("30 2 * * *", berlin());
    assert_eq!(ticks(&daily, "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    assert_eq!(ticks(&daily, "2026-10-25T00:45:00Z", 1), ["2026-10-26T01:30:00Z"], "between the two");
}

#[test]
fn interval_skips_the_gap_and_ticks_in_both_of_the_repeated_hours() {
    let half_hourly = cron("*/30 * * * *", berlin());
    assert_eq!(
        ticks(&half_hourly, "2026-03-29T00:15:00Z", 3),
        ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
    );
    assert_eq!(
        ticks(&half_hourly, "2026-10-25T00:15:00Z", 4),
        ["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"]
    );
    let in_the_gap = cron("*/30 2 * * *", berlin());
    assert_eq!(ticks(&in_the_gap, "2026-03-28T12:00:00Z", 1), ["2026-03-30T00:00:00Z"]);
}

#[test]
fn local_time_follows_the_season() {
    let nine = cron("0 9 1 * *", berlin());
    assert_eq!(
        ticks(&nine, "2026-03-15T00:00:00Z", 3),
        ["2026-04-01T07:00:00Z", "2026-05-01T07:00:00Z", "2026-06-01T07:00:00Z"]
    );
    assert_eq!(ticks(&nine, "2026-11-15T00:00:00Z", 1), ["2026-12-01T08:00:00Z"]);
}

#[test]
fn intervals_count_from_their_start() {
    let every = Schedule::Every { every_ms: 10_000, start_ms: 5 };
    assert_eq!(every.next(0), Some(10_005));
    assert_eq!(every.next(10_005), Some(20_005));
    assert_eq!(every.next(u64::MAX - 1), None);
    assert_eq!(every.latest(5, 35_000), Some(30_005));
    assert_eq!(every.count(5, 30_005), 2);
    assert_eq!(every.count(5, u64::MAX), 1_000, "counts are limited");
}

#[test]
fn impossible_dates_have_no_tick() {
    assert_eq!(cron("0 0 31 2 *", berlin()).next(ms("2026-01-01T00:00:00Z")), None);
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let expressions = prop::sample::select(vec![
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0,30 1-3 * * *",
        "15 */2 * * sun",
        "0 2 29 2 *",
        "5 0 1 1,7 mon",
        "*/20 * 2 * * *",
        "0 0 31 10 *",
    ]);
    let zones = prop::sample::select(vec![
        berlin(),
        TimeZone::UTC,
        TimeZone::posix("NZST-12NZDT,M9.5.0,M4.1.0/3").unwrap(),
        TimeZone::posix("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0").unwrap(),
        TimeZone::fixed(Offset::from_seconds(-12_600).unwrap()),
    ]);
    prop_oneof![
        (expressions, zones).prop_map(|(expression, zone)| cron(expression, zone)),
        (1_000_u64..1_000_000, 0_u64..2_000_000_000_000)
            .prop_map(|(every_ms, start_ms)| Schedule::Every { every_ms, start_ms }),
    ]
}

proptest! {
    /// The next tick is after its start, and no tick lies between the two.
    #[test]
    fn next_tick_is_the_first_after_its_start(
        schedule in any_schedule(), after_ms in 1_700_000_000_000_u64..1_900_000_000_000, share in 0_u64..1_000
    ) {
        let Some(next_ms) = schedule.next(after_ms) else { return Ok(()) };
        prop_assert!(next_ms > after_ms);
        let between_ms = after_ms + (next_ms - 1 - after_ms) * share / 1_000;
        prop_assert_eq!(schedule.next(between_ms), Some(next_ms), "from {}", between_ms);
    }

    /// The latest tick of a period is the last of those that follow each other.
    #[test]
    fn latest_tick_is_the_last_that_is_due(
        schedule in any_schedule(), after_ms in 1_700_000_000_000_u64..1_900_000_000_000, span_ms in 0_u64..50_000_000
    ) {
        let by_ms = after_ms + span_ms;
        let due = std::iter::successors(schedule.next(after_ms), |tick_ms| schedule.next(*tick_ms));
        let due: Vec<u64> = due.take_while(|tick_ms| *tick_ms <= by_ms).collect();
        prop_assert_eq!(schedule.latest(after_ms, by_ms), due.last().copied());
        if let Some(latest_ms) = due.last() {
            prop_assert_eq!(schedule.count(after_ms, *latest_ms), (due.len() as u64 - 1).min(1_000));
        }
    }

    /// A daily schedule with a fixed time ticks once on each local day, in every zone.
    #[test]
    fn fixed_daily_schedule_ticks_once_a_day(hour in 0_u8..24, minute in 0_u8..60, start in 0_u64..1_000) {
        let daily = cron(&format!("{minute} {hour} * * *"), berlin());
        let after_ms = ms("2026-01-01T00:00:00Z") + start * 86_400_000;
        let days: Vec<_> = daily
            .upcoming(after_ms, 400)
            .into_iter()
            .map(|at_ms| Timestamp::from_millisecond(at_ms.cast_signed()).unwrap().to_zoned(berlin()).date())
            .collect();
        for pair in days.windows(2) {
            prop_assert_eq!(pair[0].tomorrow().unwrap(), pair[1]);
        }
    }
}
