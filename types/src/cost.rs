//! Cost of device time.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// An amount in the unit of the configured prices. Stored in billionths of the unit; read and
/// written as a number of units.
///
/// A price is a `Cost` too: the cost of one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

const NANOS: f64 = 1e9;

impl Cost {
    /// Zero cost.
    pub const ZERO: Self = Self(0);
    /// The largest cost, used as "no bound".
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a cost from billionths of a unit.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The cost in billionths of a unit.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Creates a cost from units; `None` if `units` is negative or NaN. Values above the range
    /// become [`Self::MAX`].
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "values above the range saturate"
    )]
    pub fn from_units(units: f64) -> Option<Self> {
        (units >= 0.0).then(|| Self((units * NANOS).round() as u64))
    }

    /// The cost in units.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people and JSON")]
    pub fn units(self) -> f64 {
        self.0 as f64 / NANOS
    }

    /// The cost of `time_ns` at the price `self` per second.
    #[must_use]
    pub fn of_time(self, time_ns: u64) -> Self {
        let nanos = u128::from(self.0) * u128::from(time_ns) / 1_000_000_000;
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The sum, saturating at [`Self::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.units())
    }
}

impl std::str::FromStr for Cost {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let units: f64 = text.parse().map_err(|error| format!("{error}"))?;
        Self::from_units(units).ok_or_else(|| format!("{text} is not a cost: it is a number from 0 up"))
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.units())
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let units = f64::deserialize(deserializer)?;
        Self::from_units(units).ok_or_else(|| serde::de::Error::custom(format!("{units} is not a cost")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_come_back_as_they_were_written() {
        for nanos in [0, 1, 999, 1_000_000_000, 123_456_789_012_345, u64::MAX] {
            let json = serde_json::to_string(&Cost::from_nanos(nanos)).unwrap();
            assert_eq!(serde_json::from_str::<Cost>(&json).unwrap(), Cost::from_nanos(nanos), "{json}");
        }
        assert_eq!(serde_json::from_str::<Cost>("2").unwrap(), Cost::from_nanos(2_000_000_000));
        assert!(serde_json::from_str::<Cost>("-0.5").is_err());
        assert!("NaN".parse::<Cost>().is_err() && "-1".parse::<Cost>().is_err());
    }

    #[test]
    fn time_costs_its_price() {
        let price = Cost::from_units(2.5).unwrap();
        assert_eq!(price.of_time(4_000_000_000), Cost::from_units(10.0).unwrap());
        assert_eq!(price.of_time(1), Cost::from_nanos(2));
        assert_eq!(Cost::MAX.of_time(u64::MAX), Cost::MAX);
    }
}
