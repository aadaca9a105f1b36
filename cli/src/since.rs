//! Points in time that options take: a duration before now, or a time.

use jiff::{SignedDuration, Timestamp};

/// Parses a duration before now, such as `10m` or `1h30m`, or a time in RFC 3339, to Unix
/// milliseconds. For clap's `value_parser`.
pub(crate) fn parse_since(text: &str) -> Result<u64, String> {
    let at = match text.parse::<SignedDuration>() {
        Ok(before) => Timestamp::now().checked_sub(before.abs()).map_err(|error| error.to_string())?,
        Err(_) => text.parse::<Timestamp>().map_err(|_| {
            "takes a duration before now, such as 10m or 2h, or a time such as 2026-01-31T12:00:00Z"
                .to_owned()
        })?,
    };
    Ok(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_back_from_now_and_times_are_absolute() {
        let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap();
        for (text, before_ms) in [("10m", 600_000), ("1h30m", 5_400_000), ("2s", 2_000)] {
            let since = parse_since(text).unwrap();
            assert!((now - before_ms..now - before_ms + 60_000).contains(&since), "{text}: {since}");
        }
        assert_eq!(parse_since("1970-01-01T00:00:07Z"), Ok(7_000));
        assert!(parse_since("yesterday").unwrap_err().contains("10m"));
    }
}
