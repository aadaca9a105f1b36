//! Service level objectives of calls: the `slo_ms` and `cost_slo` of a function, model or workflow.

use crate::Fault;
use std::time::Duration;
use weir_scheduler::Estimate;
use weir_types::api::SloRefusal;
use weir_types::{Cost, ErrorCode, FunctionManifest, ModelManifest};

/// A service level objective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objective {
    /// Latency limit, from arrival to the end of the response.
    pub latency: Option<Duration>,
    /// Cost limit of the device time.
    pub cost_max: Option<Cost>,
}

/// Outcome of a call with an objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectiveOutcome {
    /// Finished without an error, within the latency limit.
    Kept,
    /// Late, or failed.
    Missed,
    /// Rejected by admission control.
    Rejected,
}

impl ObjectiveOutcome {
    /// All outcomes, in the order of their variants.
    pub const ALL: [Self; 3] = [Self::Kept, Self::Missed, Self::Rejected];

    /// The value of the metrics' `outcome` label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Missed => "missed",
            Self::Rejected => "rejected",
        }
    }
}

impl From<&FunctionManifest> for Objective {
    fn from(manifest: &FunctionManifest) -> Self {
        Self::new(manifest.slo_ms, manifest.cost_slo)
    }
}

impl From<&ModelManifest> for Objective {
    fn from(manifest: &ModelManifest) -> Self {
        Self::new(manifest.slo_ms, manifest.cost_slo)
    }
}

impl Objective {
    /// The objective with these settings of a manifest.
    pub fn new(slo_ms: Option<u64>, cost_max: Option<Cost>) -> Self {
        Self { latency: slo_ms.map(Duration::from_millis), cost_max }
    }

    /// Whether the objective sets neither limit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the outcome of a call that took `time`. `None` without an objective, or if the
    /// caller disconnected.
    pub fn outcome(&self, failed: Option<ErrorCode>, time: Duration) -> Option<ObjectiveOutcome> {
        match failed {
            _ if self.is_none() => None,
            Some(ErrorCode::SloUnattainable) => Some(ObjectiveOutcome::Rejected),
            Some(ErrorCode::Cancelled) => None,
            Some(_) => Some(ObjectiveOutcome::Missed),
            None if self.latency.is_none_or(|latency| time <= latency) => Some(ObjectiveOutcome::Kept),
            None => Some(ObjectiveOutcome::Missed),
        }
    }

    /// Returns the error of a call that admission control rejects `waited` after its arrival.
    pub fn refuse(&self, estimate: &Estimate, waited: Duration) -> Fault {
        let after = Duration::from_nanos(estimate.finish_after_ns()).saturating_add(waited);
        let refusal = SloRefusal {
            estimated_ns: nanoseconds(after),
            slo_ns: self.latency.map(nanoseconds),
            estimated_cost: estimate.cost,
            cost_slo: self.cost_max,
        };
        let too_dear = self.cost_max.filter(|cost_max| estimate.cost > *cost_max);
        let text = match (self.latency, too_dear) {
            (_, Some(cost_max)) => {
                format!("the call would cost about {}, more than its cost_slo of {cost_max}", estimate.cost)
            }
            (Some(latency), None) if after <= latency => format!(
                "the call would finish after about {} ms, too close to its slo_ms of {} ms to guarantee with the calls that wait now; try again when fewer calls wait",
                after.as_millis(),
                latency.as_millis()
            ),
            (Some(latency), None) => format!(
                "the call would finish after about {} ms, later than its slo_ms of {} ms; try again when fewer calls wait",
                after.as_millis(),
                latency.as_millis()
            ),
            (None, None) => "no device can run the call within its cost_slo".to_owned(),
        };
        Fault { slo: Some(Box::new(refusal)), ..Fault::new(ErrorCode::SloUnattainable, text) }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objective_is_kept_in_time_and_without_an_error() {
        let one = Objective { latency: Some(Duration::from_millis(10)), cost_max: None };
        let quick = Duration::from_millis(10);
        let slow = Duration::from_millis(11);
        assert_eq!(one.outcome(None, quick), Some(ObjectiveOutcome::Kept));
        assert_eq!(one.outcome(None, slow), Some(ObjectiveOutcome::Missed));
        assert_eq!(one.outcome(Some(ErrorCode::GuestTrap), quick), Some(ObjectiveOutcome::Missed));
        assert_eq!(one.outcome(Some(ErrorCode::SloUnattainable), quick), Some(ObjectiveOutcome::Rejected));
        assert_eq!(one.outcome(Some(ErrorCode::Cancelled), slow), None);
        assert_eq!(Objective::default().outcome(None, slow), None);
    }

    #[test]
    fn rejection_reports_the_estimate() {
        let estimate = Estimate { wait_ns: 900_000_000, run_time_ns: 50_000_000, ..Estimate::default() };
        let late = Objective { latency: Some(Duration::from_millis(400)), cost_max: None };
        let fault = late.refuse(&estimate, Duration::from_millis(5));
        assert!(fault.text.contains("955 ms") && fault.text.contains("400 ms"), "{}", fault.text);
        let slo = fault.slo.unwrap();
        assert_eq!((slo.estimated_ns, slo.slo_ns), (955_000_000, Some(400_000_000)));
        let dear = Objective { latency: None, cost_max: Some(Cost::from_nanos(1_000_000)) };
        let fault = dear.refuse(&Estimate { cost: Cost::from_nanos(2_500_000), ..estimate }, Duration::ZERO);
        assert!(fault.text.contains("0.0025") && fault.text.contains("0.001"), "{}", fault.text);
    }
}
