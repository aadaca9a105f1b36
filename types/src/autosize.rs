//! What the owner of a model says about how many of its runs go on at once.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Have the node choose, again and again, how many runs of a model go on at once and with how many threads: what it was measured to take for
/// the rate of requests there is, within a latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Autosize {
    /// What runs are to keep to, in milliseconds.
    pub slo_ms: u64,
    /// How often the rate is looked at, in milliseconds.
    #[serde(default = "Autosize::interval_ms_default")]
    pub interval_ms: u64,
    /// How long sessions that are not needed any more are kept, in milliseconds.
    #[serde(default = "Autosize::keep_alive_ms_default")]
    pub keep_alive_ms: u64,
}

/// Settings that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AutosizeError {
    /// Nothing is over in no time.
    #[error("autosize.slo_ms is at least 1")]
    Slo,
    /// The interval is out of bounds.
    #[error("autosize.interval_ms = {0} is not within {min} to {max}", min = Autosize::INTERVAL_MS_MIN, max = Autosize::INTERVAL_MS_MAX)]
    Interval(u64),
    /// The window is out of bounds.
    #[error("autosize.keep_alive_ms = {0} is more than {max}", max = Autosize::KEEP_ALIVE_MS_MAX)]
    KeepAlive(u64),
}

impl Autosize {
    /// The smallest [`Autosize::interval_ms`].
    pub const INTERVAL_MS_MIN: u64 = 100;
    /// The largest: an hour.
    pub const INTERVAL_MS_MAX: u64 = 3_600_000;
    /// The largest [`Autosize::keep_alive_ms`]: a day.
    pub const KEEP_ALIVE_MS_MAX: u64 = 86_400_000;

    const fn interval_ms_default() -> u64 {
        10_000
    }

    const fn keep_alive_ms_default() -> u64 {
        60_000
    }

    /// Check what it says.
    pub fn check(&self) -> Result<(), AutosizeError> {
        if self.slo_ms == 0 {
            return Err(AutosizeError::Slo);
        }
        if !(Self::INTERVAL_MS_MIN..=Self::INTERVAL_MS_MAX).contains(&self.interval_ms) {
            return Err(AutosizeError::Interval(self.interval_ms));
        }
        if self.keep_alive_ms > Self::KEEP_ALIVE_MS_MAX {
            return Err(AutosizeError::KeepAlive(self.keep_alive_ms));
        }
        Ok(())
    }
}

/// As one line.
impl fmt::Display for Autosize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slo_ms, interval_ms, keep_alive_ms } = self;
        write!(
            f,
            "within {slo_ms} ms, looked at every {interval_ms} ms, sessions kept for {keep_alive_ms} ms"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slo_has_to_be_said_and_all_of_it_is_checked() {
        let read = |json: &str| serde_json::from_str::<Autosize>(json);
        let one = read(r#"{"slo_ms":50}"#).unwrap();
        assert_eq!((one.interval_ms, one.keep_alive_ms, one.check()), (10_000, 60_000, Ok(())));
        assert!(read("{}").is_err() && read(r#"{"slo_ms":50,"slots":2}"#).is_err());
        for (json, why) in [
            (r#"{"slo_ms":0}"#, "slo_ms is at least 1"),
            (r#"{"slo_ms":1,"interval_ms":99}"#, "interval_ms = 99 is not within 100 to 3600000"),
            (r#"{"slo_ms":1,"interval_ms":3600001}"#, "interval_ms = 3600001"),
            (r#"{"slo_ms":1,"keep_alive_ms":86400001}"#, "keep_alive_ms = 86400001"),
        ] {
            let error = read(json).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
    }
}
