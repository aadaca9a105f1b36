//! Service level objectives: when an invocation is due, and its maximum cost.
//!
//! An invocation with an SLO is admitted or rejected on arrival, and later arrivals never make an
//! admitted invocation late. Three parts, each in its own file, implement this: [`Front`] prices
//! the possible placements on an idle cluster; [`Timetable`](timetable::Timetable) keeps the
//! admitted invocations of one device in order of due time; [`AdmissionQueue`] finds a place in a
//! timetable, or reports that there is none.
//!
//! The rules:
//!
//! 1. *Order.* Admitted invocations that wait for a device are ordered by due time, and start in
//!    that order as slots of the device become free. They start before all other invocations there.
//! 2. *Admission.* An invocation is admitted to a device if, at its place in that order, it and all
//!    later invocations are expected to end by their due times, and if all models that any of them
//!    expects in memory can stay there until then. Among several such places, the
//!    [`PlacementPreference`] selects one. A model is loaded on a device with waiting invocations
//!    only if the load is worth it for the rejected invocations (`admission/crowding.rs`). Without
//!    a place, the invocation is rejected at once with the best estimate.
//! 3. *Reservation.* Models that admitted invocations rely on are not evicted. No other invocation
//!    starts on a device while an admitted invocation waits for it. A device that serves SLOs runs
//!    at most as many invocations at once as it has slots.
//! 4. *Other invocations.* An invocation without an SLO that has waited for 2 s is appended to a
//!    timetable like an admitted invocation; each timetable contains at most one such invocation.
//!    Invocations with SLOs therefore never starve those without.
//! 5. *Trials.* An SLO may be impossible even on an idle cluster, because the model is loaded
//!    nowhere or runs are expected to take longer. Such an invocation is admitted now and then
//!    where it delays no other invocation. Otherwise the model would never be loaded, or its run
//!    time never measured again.
//! 6. *Moves.* An arrival that would need a load, or finds no place, may take the place of an
//!    admitted invocation that also ends in time on another device.
//! 7. *Late invocations.* An admitted invocation that would end late when its turn comes continues
//!    as one without an SLO, if others wait after it.
//! 8. *Separate steps.* A workflow that cannot be admitted as a whole gets a reservation for each
//!    step, on any device and after the steps that it waits for (`admission/reservations.rs`).
//!
//! Slots take invocations in a fixed order, so an invocation that ends early, is cancelled or
//! leaves never delays later invocations. An admitted invocation misses its SLO only if a run or
//! load takes longer than expected, or a node is lost.

mod front;
pub use front::{Front, FrontError, FrontStep, PlacementOffer, Quote, StepPlacement};

mod timetable;

mod admission;
pub(crate) use admission::{AdmissionQueue, Refused, SeparateStep};

use crate::DeviceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_types::Cost;

/// The objectives of one invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slo {
    /// The due time, in the scheduler's time; `u64::MAX` for no limit. An invocation keeps running
    /// after its due time, unlike after its deadline.
    pub due_at_ns: u64,
    /// Maximum cost of its device time, loads included; [`Cost::MAX`] for no limit.
    pub cost_max: Cost,
}

impl Slo {
    /// No objectives.
    pub const NONE: Self = Self { due_at_ns: u64::MAX, cost_max: Cost::MAX };
}

impl Default for Slo {
    fn default() -> Self {
        Self::NONE
    }
}

/// Settings of SLO admission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloSettings {
    /// Whether invocations that would miss their SLO are rejected. If not, SLOs are only counted.
    pub admission: bool,
    /// Which of the placements that meet the SLO is chosen.
    pub choice: PlacementPreference,
    /// How many placements that would meet the SLO on an idle cluster are compared with the state
    /// of the cluster.
    pub sample_len: usize,
    /// The fraction of the time until an invocation is due that is reserved for runs that take
    /// longer than expected: from 0 to 1. NaN counts as 0.
    #[serde(serialize_with = "crate::tenants::share")]
    pub margin: f64,
    /// Price of a second of a device, by kind. Kinds without an entry cost 1.
    pub prices: BTreeMap<DeviceKind, Cost>,
}

/// Price of a second of a device without an entry.
const PRICE: Cost = Cost::from_nanos(1_000_000_000);

impl Default for SloSettings {
    fn default() -> Self {
        Self {
            admission: true,
            choice: PlacementPreference::default(),
            sample_len: 16,
            margin: 0.1,
            prices: BTreeMap::new(),
        }
    }
}

impl SloSettings {
    /// The price of a second of a device.
    #[must_use]
    pub fn price(&self, kind: &DeviceKind) -> Cost {
        self.prices.get(kind).copied().unwrap_or(PRICE)
    }

    /// The part of `time_ns` that may be planned with.
    pub(crate) fn without_margin_ns(&self, time_ns: u64) -> u64 {
        let part = if self.margin.is_nan() { 0.0 } else { self.margin.clamp(0.0, 1.0) };
        time_ns - crate::estimate::round_ns(time_ns as f64 * part).min(time_ns)
    }
}

/// Which of several placements that meet an SLO is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPreference {
    /// The placement with the least cost, ties by speed. With equal prices, it takes the least
    /// device time.
    #[default]
    Cheapest,
    /// The placement that ends first.
    Fastest,
    /// A random placement.
    Random,
}
