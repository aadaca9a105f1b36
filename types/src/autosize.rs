//! Automatic choice of a model's concurrency.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Periodic choice of a model's concurrent runs and threads by the node: the configuration that was
/// measured to serve the current request rate within a latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Autosize {
    /// Latency objective of a run, in milliseconds.
    pub slo_ms: u64,
    /// Interval between two choices, in milliseconds.
    #[serde(default = "Autosize::interval_ms_default")]
    pub interval_ms: u64,
    /// Keep-alive time of idle sessions, in milliseconds.
    #[serde(default = "Autosize::keep_alive_ms_default")]
    pub keep_alive_ms: u64,
}

/// Invalid autosize settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AutosizeError {
    /// The latency objective is zero.
    #[error("autosize.slo_ms is at least 1")]
    Slo,
    /// The interval is out of bounds.
    #[error("autosize.interval_ms = {0} is not within {min} to {max}", min = Autosize::INTERVAL_MS_MIN, max = Autosize::INTERVAL_MS_MAX)]
    Interval(u64),
    /// The keep-alive time is out of bounds.
    #[error("autosize.keep_alive_ms = {0} is more than {max}", max = Autosize::KEEP_ALIVE_MS_MAX)]
    KeepAlive(u64),
}

impl Autosize {
    /// Smallest [`Autosize::interval_ms`].
    pub const INTERVAL_MS_MIN: u64 = 100;
    /// Largest [`Autosize::interval_ms`]: one hour.
    pub const INTERVAL_MS_MAX: u64 = 3_600_000;
    /// Largest [`Autosize::keep_alive_ms`]: one day.
    pub const KEEP_ALIVE_MS_MAX: u64 = 86_400_000;

    const fn interval_ms_default() -> u64 {
        10_000
    }

    const fn keep_alive_ms_default() -> u64 {
        60_000
    }

    /// Checks the settings against their bounds.
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

/// Formats the settings as one line.
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
