//! Service level objectives: by when an invocation is to be over, and what it may cost.
//!
//! One that has an SLO is admitted or turned away when it arrives, and an admitted one is not made late by any that come after it. Three
//! parts, each a file: [`Front`] prices the placements there are by themselves; [`Timetable`](timetable::Timetable) keeps one device's
//! admitted invocations in the order of when they are due; [`Admission`] finds a place in one of those, or says that there is none.
//!
//! The rule, exactly:
//!
//! 1. *Order.* Admitted invocations that wait for a device stand in the order of when they are due, and start in that order as slots of the
//!    device come free. They start before all others there.
//! 2. *Admission.* One that arrives is admitted where, put in its place in that order, it and all behind it are expected to be over when
//!    they are due, and where all models that any of them counts on finding in memory can stay there until then. Of several such places one
//!    is taken by the [`Choice`]. A model is loaded on a device with a line only where that is worth it to those who are turned away
//!    (`admission/crowding.rs`). If there is no place, it is rejected at once with the best estimate.
//! 3. *What lies ahead is kept.* Models that admitted ones count on are not victims. Nothing else starts on a device while an admitted one
//!    waits for it, and while a device serves such it takes only as many at once as it has slots.
//! 4. *Others.* One without an SLO that has waited 2 s gets a place as if it had been admitted: the
//!    end of a line, one at a time for each device. So SLOs never keep the others out.
//! 5. *Trials.* Where an SLO cannot be met even on an idle cluster, because a model is loaded nowhere or runs are expected to take longer,
//!    one is let in now and then where nobody is kept waiting by it: else nothing would ever be loaded, or measured again.
//!
//! Slots take the next in a fixed order, so that whatever ends early, is cancelled or leaves makes none behind it later. What makes an
//! admitted one miss its SLO is a run or load that takes longer than expected, or the loss of a node.

mod front;
pub use front::{Front, FrontError, Offer, Quote, Step, StepPlacement};

mod timetable;

mod admission;
pub(crate) use admission::{Admission, Refused};

use crate::DeviceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::Cost;

/// What one invocation is to keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slo {
    /// When it is to be over, in the scheduler's time; `u64::MAX` if that does not matter. Unlike at a deadline, it goes on after it.
    pub due_at_ns: u64,
    /// What the device time that it takes may cost, loads included; [`Cost::MAX`] if that does not matter.
    pub cost_max: Cost,
}

impl Slo {
    /// Nothing to keep to.
    pub const NONE: Self = Self { due_at_ns: u64::MAX, cost_max: Cost::MAX };
}

impl Default for Slo {
    fn default() -> Self {
        Self::NONE
    }
}

/// How SLOs are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloSettings {
    /// Whether invocations are turned away that would miss their SLO. If not, SLOs are counted and nothing else.
    pub admission: bool,
    /// Which of the placements is taken that meet the SLO.
    pub choice: Choice,
    /// How many placements are compared with what the cluster is doing, of those that would meet the SLO on an idle one.
    pub sample_len: usize,
    /// The part of the time until an invocation is due that is kept back, for runs that take longer than expected: from 0 to 1.
    /// What is not a number counts as 0.
    #[serde(serialize_with = "crate::tenants::share")]
    pub margin: f64,
    /// What a second of a device costs, by its kind. One that is not named costs 1.
    pub prices: BTreeMap<DeviceKind, Cost>,
}

/// What a second of a device costs of which nothing is said.
const PRICE: Cost = Cost::from_nanos(1_000_000_000);

impl Default for SloSettings {
    fn default() -> Self {
        Self {
            admission: true,
            choice: Choice::default(),
            sample_len: 16,
            margin: 0.1,
            prices: BTreeMap::new(),
        }
    }
}

impl SloSettings {
    /// What a second of a device costs.
    #[must_use]
    pub fn price(&self, kind: &DeviceKind) -> Cost {
        self.prices.get(kind).copied().unwrap_or(PRICE)
    }

    /// How much of `time_ns` may be planned with.
    fn without_margin_ns(&self, time_ns: u64) -> u64 {
        let part = if self.margin.is_nan() { 0.0 } else { self.margin.clamp(0.0, 1.0) };
        time_ns - crate::estimate::round_ns(time_ns as f64 * part).min(time_ns)
    }
}

/// Which of several placements that meet an SLO is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The one that costs least; of equals the fastest. With equal prices, it is the one that takes the least device time.
    #[default]
    Cheapest,
    /// The one that is over first.
    Fastest,
    /// By lot.
    Random,
}
