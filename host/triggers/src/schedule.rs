//! Schedules: the times of a trigger's ticks. Pure.
//!
//! A cron expression selects local times of its time zone. Where the clock is set forward or back,
//! an expression with a wildcard or step in its time (`*/5 * * * *`) follows elapsed time: local
//! times that do not exist have no tick, and local times that exist twice have two. An expression
//! with fixed times (`30 2 * * *`) has one tick a day: if the local time does not exist, the tick is
//! at the end of the gap; if it exists twice, the tick is at the first of the two.

mod cron;

pub(crate) use cron::CronExpression;

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Changes of the clock that are searched for the next tick: more than the years of
/// [`CronExpression::next`] have.
const CLOCK_CHANGES_MAX: usize = 64;
/// Ticks of an outage that are counted.
const COUNTED_MAX: u64 = 1_000;

/// The times of a trigger's ticks.
#[derive(Debug, Clone)]
pub(crate) enum Schedule {
    /// Ticks at a fixed interval after a start.
    Every { every_ms: u64, start_ms: u64 },
    /// Ticks at the local times of a cron expression.
    Cron { expression: CronExpression, zone: TimeZone },
}

/// A period with a constant offset from UTC.
struct Period {
    /// First instant of the period; `None` before the first change of the clock.
    start: Option<PeriodStart>,
    offset: Offset,
    /// First instant after the period.
    end: Option<Timestamp>,
}

/// The change of the clock at the start of a period.
struct PeriodStart {
    at: Timestamp,
    /// The offset before it.
    earlier: Offset,
}

impl Schedule {
    /// The first tick after a time in Unix milliseconds; `None` if no tick follows within some years.
    pub(crate) fn next(&self, after_ms: u64) -> Option<u64> {
        match self {
            Self::Every { every_ms, start_ms } => {
                let since_ms = after_ms.saturating_sub(*start_ms);
                let ticks = since_ms.checked_div(*every_ms)?.checked_add(1)?;
                start_ms.checked_add(ticks.checked_mul(*every_ms)?)
            }
            Self::Cron { expression, zone } => {
                let after = Timestamp::from_millisecond(i64::try_from(after_ms).ok()?).ok()?;
                let found = next_in_zone(expression, zone, after)?;
                u64::try_from(found.as_millisecond()).ok()
            }
        }
    }

    /// The latest tick in (`after_ms`, `by_ms`], if any.
    pub(crate) fn latest(&self, after_ms: u64, by_ms: u64) -> Option<u64> {
        let is_due = |from_ms: u64| self.next(from_ms).is_some_and(|tick_ms| tick_ms <= by_ms);
        if !is_due(after_ms) {
            return None;
        }
        // The next tick never decreases with its start, so the latest tick that is due follows the
        // latest start after which one is due.
        let mut due_ms = after_ms;
        let mut past_ms = by_ms;
        while past_ms - due_ms > 1 {
            let middle_ms = due_ms + (past_ms - due_ms) / 2;
            if is_due(middle_ms) {
                due_ms = middle_ms;
            } else {
                past_ms = middle_ms;
            }
        }
        self.next(due_ms)
    }

    /// The number of ticks in (`after_ms`, `before_ms`), up to a limit.
    pub(crate) fn count(&self, after_ms: u64, before_ms: u64) -> u64 {
        let ticks = std::iter::successors(self.next(after_ms), |tick_ms| self.next(*tick_ms));
        let limit = usize::try_from(COUNTED_MAX).unwrap_or(usize::MAX);
        ticks.take_while(|tick_ms| *tick_ms < before_ms).take(limit).count() as u64
    }

    /// The next ticks after a time, up to `len`.
    pub(crate) fn upcoming(&self, after_ms: u64, len: usize) -> Vec<u64> {
        std::iter::successors(self.next(after_ms), |tick_ms| self.next(*tick_ms)).take(len).collect()
    }
}

fn next_in_zone(expression: &CronExpression, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let is_fixed = !expression.is_interval();
    // Whole seconds: the first candidate is the second after `after`.
    let from = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
    let mut period = Period::at(zone, from);
    let mut from = from;
    for _ in 0..CLOCK_CHANGES_MAX {
        let mut earliest = period.offset.to_datetime(from);
        if is_fixed && let Some(start) = &period.start {
            let before_change = start.earlier.to_datetime(start.at);
            if start.at == from && expression.next(before_change).is_some_and(|found| found < earliest) {
                return Some(start.at);
            }
            // Local times before this one existed in the period before.
            earliest = earliest.max(before_change);
        }
        if let Some(found) = expression.next(earliest).and_then(|found| instant(period.offset, found))
            && period.end.is_none_or(|end| found < end)
        {
            return Some(found);
        }
        from = period.end?;
        period = Period::at(zone, from);
    }
    None
}

fn instant(offset: Offset, local: DateTime) -> Option<Timestamp> {
    offset.to_timestamp(local).ok()
}

impl Period {
    /// The period that contains `at`.
    fn at(zone: &TimeZone, at: Timestamp) -> Self {
        let offset = zone.to_offset(at);
        let end = zone.following(at).find(|change| change.offset() != offset);
        // A change at `at` itself precedes the next instant.
        let next = at.checked_add(SignedDuration::from_nanos(1)).unwrap_or(at);
        let start = zone.preceding(next).next().and_then(|change| {
            let before = change.timestamp().checked_sub(SignedDuration::from_nanos(1)).ok()?;
            Some(PeriodStart { at: change.timestamp(), earlier: zone.to_offset(before) })
        });
        Self { start, offset, end: end.map(|change| change.timestamp()) }
    }
}

#[cfg(test)]
mod tests;
