//! Performance goals of a GPU: times, rates and memory.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use weir_types::Precision;

/// Compute capability of H100 and H200, for which the goals are set.
const HOPPER: (u32, u32) = (9, 0);

/// Maximum time of a network's run on Hopper, by file name without the extension, precision and
/// batch size. For batches of 32, the times correspond to 8,000 (TF32) and 15,000 (FP16) images per
/// second.
const RUNS_ON_HOPPER: [(&str, Precision, u32, Duration); 5] = [
    ("resnet50", Precision::Tf32, 1, Duration::from_micros(450)),
    ("resnet50", Precision::Fp16, 1, Duration::from_micros(350)),
    ("resnet50", Precision::Tf32, 32, Duration::from_micros(4_000)),
    ("resnet50", Precision::Fp16, 32, Duration::from_micros(2_133)),
    ("minilm", Precision::Tf32, 1, Duration::from_micros(200)),
];

/// Measured value and its bound. A missed goal is reported but fails no check, because the machine
/// may be the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Measured value.
    pub found: f64,
    /// Required bound.
    #[serde(flatten)]
    pub bound: GoalBound,
    /// Unit of the value and of the bound.
    pub unit: String,
    /// Whether the value is within the bound.
    pub is_met: bool,
}

/// Bound of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalBound {
    /// Upper bound.
    AtMost(f64),
    /// Lower bound.
    AtLeast(f64),
}

impl Goal {
    pub(crate) fn at_most(found: f64, bound: f64, unit: &str) -> Self {
        Self { found, bound: GoalBound::AtMost(bound), unit: unit.to_owned(), is_met: found <= bound }
    }

    pub(crate) fn at_least(found: f64, bound: f64, unit: &str) -> Self {
        Self { found, bound: GoalBound::AtLeast(bound), unit: unit.to_owned(), is_met: found >= bound }
    }

    /// Creates an upper bound of a time. `time_ns` is in nanoseconds; the goal is in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "a time does not need 16 significant digits")]
    pub(crate) fn within(time_ns: u64, most: Duration) -> Self {
        Self::at_most(time_ns as f64 / 1e3, most.as_secs_f64() * 1e6, "us")
    }

    /// Returns the goal of a network's run on a device of this compute capability, or `None` if no
    /// goal is set.
    pub(crate) fn for_run(
        compute_capability: (u32, u32),
        network: &str,
        precision: Precision,
        batch: u32,
        time_ns: u64,
    ) -> Option<Self> {
        let is_it = |(name, of, items, _): &&(&str, Precision, u32, Duration)| {
            (*name, *of, *items) == (network, precision, batch)
        };
        let (.., most) = RUNS_ON_HOPPER.iter().find(is_it).filter(|_| compute_capability == HOPPER)?;
        Some(Self::within(time_ns, *most))
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, bound, unit, is_met } = self;
        let (side, bound) = match bound {
            GoalBound::AtMost(bound) => ("at most", bound),
            GoalBound::AtLeast(bound) => ("at least", bound),
        };
        let verdict = if *is_met { "met" } else { "missed" };
        write!(f, "{verdict}: {found:.2} {unit}, {side} {bound}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_goals_on_compute_capability_9_0() {
        let goal = |capability: (u32, u32), network: &str, batch: u32, time_ns: u64| {
            Goal::for_run(capability, network, Precision::Tf32, batch, time_ns)
        };
        let met = goal((9, 0), "resnet50", 1, 450_000).unwrap();
        assert_eq!(met.to_string(), "met: 450.00 us, at most 450");
        assert!(!goal((9, 0), "resnet50", 32, 4_000_001).unwrap().is_met);
        assert_eq!(goal((8, 0), "resnet50", 1, 1), None);
        assert_eq!(goal((9, 0), "resnet50", 2, 1), None);
        let missed = Goal::at_least(0.5, 0.9, "of a bare copy");
        assert_eq!(missed.to_string(), "missed: 0.50 of a bare copy, at least 0.9");
        let json = serde_json::to_value(&missed).unwrap();
        assert_eq!((&json["at_least"], &json["is_met"]), (&0.9.into(), &false.into()));
    }
}
