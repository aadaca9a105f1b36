//! Cron expressions: parses the fields, and finds matching local times. Pure.

use jiff::civil::{Date, DateTime, Time};

/// Length limit of an expression.
const EXPRESSION_LEN_MAX: usize = 200;
/// Years that are searched for a matching date. February 29 may be eight years away.
const YEARS_MAX: i16 = 9;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Expressions with a name.
const ALIASES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A parsed cron expression. Each set has bit `n` for the value `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CronExpression {
    seconds: ValueSet,
    minutes: ValueSet,
    hours: ValueSet,
    days: ValueSet,
    months: ValueSet,
    /// Sunday is 0.
    weekdays: ValueSet,
    /// Whether a date may match either `days` or `weekdays`, because both are restricted.
    is_either_day: bool,
    /// Whether the hours or minutes follow a wildcard or step, as in `*/5`.
    is_interval: bool,
}

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ValueSet(u64);

/// A field of an expression: its name, its range, and names of its values.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    /// Names of the values from `min` up.
    names: &'static [&'static str],
}

const SECONDS: Field = Field { name: "second", min: 0, max: 59, names: &[] };
const MINUTES: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOURS: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAYS: Field = Field { name: "day of the month", min: 1, max: 31, names: &[] };
const MONTH: Field = Field { name: "month", min: 1, max: 12, names: &MONTHS };
/// 7 is Sunday, too.
const WEEKDAY: Field = Field { name: "day of the week", min: 0, max: 7, names: &WEEKDAYS };

impl CronExpression {
    /// Parses an expression with five or six fields, or an alias such as `@daily`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > EXPRESSION_LEN_MAX {
            return Err(format!("a cron expression has at most {EXPRESSION_LEN_MAX} characters"));
        }
        let alias = ALIASES.iter().find(|alias| alias.0.eq_ignore_ascii_case(text.trim()));
        let text = alias.map_or(text, |alias| alias.1);
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (seconds, rest) = match fields[..] {
            ref rest if rest.len() == 5 => ("0", rest),
            [seconds, ref rest @ ..] if rest.len() == 5 => (seconds, rest),
            _ => {
                return Err(format!(
                    "a cron expression has 5 fields (minute, hour, day of the month, month, day of the week), or 6 with the second in front, not {}",
                    fields.len()
                ));
            }
        };
        let [minutes, hours, days, months, weekdays] = rest else {
            return Err("a cron expression has 5 or 6 fields".to_owned());
        };
        let mut weekday_set = WEEKDAY.parse(weekdays)?;
        if weekday_set.has(7) {
            weekday_set.0 |= 1;
        }
        Ok(Self {
            seconds: SECONDS.parse(seconds)?,
            minutes: MINUTES.parse(minutes)?,
            hours: HOURS.parse(hours)?,
            days: DAYS.parse(days)?,
            months: MONTH.parse(months)?,
            weekdays: weekday_set,
            is_either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
            is_interval: [seconds, *minutes, *hours].iter().any(|field| field.contains(['*', '/'])),
        })
    }

    /// Whether the ticks follow elapsed time, as those of `*/5 * * * *`, rather than the time of day.
    pub(crate) fn is_interval(&self) -> bool {
        self.is_interval
    }

    /// The first matching time that is not before `from`, within some years.
    pub(crate) fn next(&self, from: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        let mut earliest = from.time();
        if earliest.subsec_nanosecond() > 0 {
            let whole = from.with().subsec_nanosecond(0).build().ok()?;
            let after = whole.checked_add(jiff::SignedDuration::from_secs(1)).ok()?;
            date = after.date();
            earliest = after.time();
        }
        let last_year = date.year().saturating_add(YEARS_MAX);
        while date.year() <= last_year {
            if !self.months.has(date.month().unsigned_abs()) {
                date = date.last_of_month().tomorrow().ok()?;
                earliest = Time::midnight();
                continue;
            }
            if self.is_day(date)
                && let Some(time) = self.next_time(earliest)
            {
                return Some(date.to_datetime(time));
            }
            date = date.tomorrow().ok()?;
            earliest = Time::midnight();
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let is_day = self.days.has(date.day().unsigned_abs());
        let is_weekday = self.weekdays.has(date.weekday().to_sunday_zero_offset().unsigned_abs());
        if self.is_either_day { is_day || is_weekday } else { is_day && is_weekday }
    }

    /// The first matching time of a day that is not before `from`.
    fn next_time(&self, from: Time) -> Option<Time> {
        let [hour, minute, second] = [from.hour(), from.minute(), from.second()].map(i8::unsigned_abs);
        if self.hours.has(hour) {
            if self.minutes.has(minute)
                && let Some(second) = self.seconds.at_least(second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = self.minutes.at_least(minute + 1) {
                return time(hour, minute, self.seconds.at_least(0)?);
            }
        }
        time(self.hours.at_least(hour + 1)?, self.minutes.at_least(0)?, self.seconds.at_least(0)?)
    }
}

fn time(hour: u8, minute: u8, second: u8) -> Option<Time> {
    let [hour, minute, second] = [hour, minute, second].map(|value| i8::try_from(value).ok());
    Time::new(hour?, minute?, second?, 0).ok()
}

impl ValueSet {
    fn has(self, value: u8) -> bool {
        value < 64 && self.0 & (1 << value) != 0
    }

    /// The smallest value that is not below `min`.
    fn at_least(self, min: u8) -> Option<u8> {
        let rest = self.0.checked_shr(min.into()).filter(|rest| *rest != 0)?;
        u8::try_from(rest.trailing_zeros()).ok().map(|more| min + more)
    }
}

impl Field {
    /// Parses a list of values, ranges and steps.
    fn parse(&self, text: &str) -> Result<ValueSet, String> {
        let mut set = 0;
        for part in text.split(',') {
            set |= self.part(part).ok_or_else(|| self.error(part))?;
        }
        Ok(ValueSet(set))
    }

    /// The values of `*`, `3`, `3-5`, `*/2`, `3-9/2` or `3/2`, which starts at 3.
    fn part(&self, text: &str) -> Option<u64> {
        let stepped = text.split_once('/');
        let range = stepped.map_or(text, |(range, _)| range);
        let step = match stepped {
            Some((_, step)) => step.parse::<u8>().ok().filter(|step| *step > 0)?,
            None => 1,
        };
        let bounds = match range.split_once('-') {
            _ if range == "*" => (self.min, self.max),
            Some((from, to)) => (self.value(from)?, self.value(to)?),
            None if stepped.is_some() => (self.value(range)?, self.max),
            None => (self.value(range)?, self.value(range)?),
        };
        if bounds.0 > bounds.1 {
            return None;
        }
        Some((bounds.0..=bounds.1).step_by(step.into()).fold(0, |set, value| set | 1 << value))
    }

    fn value(&self, text: &str) -> Option<u8> {
        if let Some(place) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return u8::try_from(place).ok().map(|place| self.min + place);
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().filter(|value| (self.min..=self.max).contains(value))
    }

    fn error(&self, part: &str) -> String {
        let Self { name, min, max, .. } = self;
        format!(
            "{part:?} is not a {name}: use {min} to {max}, a range such as {min}-{max}, or a step such as */5"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(expression: &str, from: &str) -> String {
        let found = CronExpression::parse(expression).unwrap().next(from.parse().unwrap());
        found.map_or_else(|| "never".to_owned(), |found| found.to_string())
    }

    #[test]
    fn next_times_of_common_expressions() {
        for (expression, from, expected) in [
            ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:00:00"),
            ("* * * * *", "2026-01-01T00:00:01", "2026-01-01T00:01:00"),
            ("*/15 * * * *", "2026-01-01T23:46:00", "2026-01-02T00:00:00"),
            ("30 2 * * *", "2026-01-01T02:30:00.5", "2026-01-02T02:30:00"),
            ("0 9-17/4 * * mon-fri", "2026-01-02T17:00:01", "2026-01-05T09:00:00"),
            ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
            ("0 0 29 feb *", "2097-01-01T00:00:00", "2104-02-29T00:00:00"),
            ("0 0 31 2 *", "2026-01-01T00:00:00", "never"),
            ("0 0 13 * fri", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
            ("0 0 * * 7", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
            ("0 0 1 1,7 *", "2026-01-02T00:00:00", "2026-07-01T00:00:00"),
            ("10/20 * * * *", "2026-01-01T00:00:00", "2026-01-01T00:10:00"),
            ("*/10 * * * * *", "2026-01-01T00:00:51", "2026-01-01T00:01:00"),
            ("@daily", "2026-01-01T00:00:01", "2026-01-02T00:00:00"),
            ("@Hourly", "2026-01-01T00:00:01", "2026-01-01T01:00:00"),
        ] {
            assert_eq!(next(expression, from), expected, "{expression} from {from}");
        }
    }

    #[test]
    fn invalid_expressions_are_refused_with_the_field() {
        for (bad, said) in [
            ("", "not 0"),
            ("* * * *", "not 4"),
            ("* * * * * * *", "not 7"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day of the month"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "day of the week"),
            ("5-1 * * * *", "minute"),
            ("*/0 * * * *", "minute"),
            ("+1 * * * *", "minute"),
            ("1, * * * *", "minute"),
            ("x * * * * *", "second"),
            ("* * L * *", "day of the month"),
            ("@reboot", "not 1"),
        ] {
            let error = CronExpression::parse(bad).unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
        assert!(CronExpression::parse(&"* ".repeat(200)).is_err());
    }

    #[test]
    fn expressions_with_wildcards_in_the_time_are_intervals() {
        for (expression, is_interval) in [
            ("*/5 * * * *", true),
            ("0 * * * *", true),
            ("0 1/2 * * *", true),
            ("30 2 * * *", false),
            ("0,30 2-4 * * mon", false),
        ] {
            assert_eq!(CronExpression::parse(expression).unwrap().is_interval(), is_interval, "{expression}");
        }
    }

    /// A field, and its values by enumeration.
    fn field(min: u8, max: u8) -> impl Strategy<Value = (String, Vec<u8>)> {
        let range = (min..=max, min..=max, 1..=max).prop_map(move |(one, other, step)| {
            let [from, to] = [one.min(other), one.max(other)];
            let values = (from..=to).filter(|value| (value - from).is_multiple_of(step)).collect();
            (format!("{from}-{to}/{step}"), values)
        });
        let all = Just(("*".to_owned(), (min..=max).collect()));
        let one = (min..=max).prop_map(|value| (value.to_string(), vec![value]));
        prop_oneof![all, one, range]
    }

    proptest! {
        /// The next time is the first of all minutes that match by enumeration.
        #[test]
        fn next_time_is_the_first_match(
            minute in field(0, 59), hour in field(0, 23), weekday in field(0, 6), start in 0_i64..400_000
        ) {
            let expression = format!("{} {} * * {}", minute.0, hour.0, weekday.0);
            let parsed = CronExpression::parse(&expression).unwrap();
            let from: DateTime = "2026-02-20T00:00:00".parse().unwrap();
            let from = from.checked_add(jiff::SignedDuration::from_secs(start)).unwrap();
            let mut at = from;
            let matches = |at: DateTime| {
                at.second() == 0
                    && minute.1.contains(&at.minute().unsigned_abs())
                    && hour.1.contains(&at.hour().unsigned_abs())
                    && weekday.1.contains(&at.weekday().to_sunday_zero_offset().unsigned_abs())
            };
            while !matches(at) {
                let step = if at.second() == 0 { 60 } else { 60 - i64::from(at.second()) };
                at = at.checked_add(jiff::SignedDuration::from_secs(step)).unwrap();
            }
            prop_assert_eq!(parsed.next(from), Some(at), "{} from {}", expression, from);
        }
    }
}
