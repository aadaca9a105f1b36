//! Service level objectives of calls: the `slo_ms` and `cost_slo` of a function, model or workflow.

use crate::instance::Fault;
use crate::workflows::WorkflowRecord;
use std::time::Duration;
use weir_scheduler::Estimate;
use weir_types::api::SloRefusal;
use weir_types::{Cost, ErrorCode, FunctionManifest, ModelManifest};

/// A service level objective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Objective {
    /// Latency limit, from arrival to the end of the response.
    pub(crate) latency: Option<Duration>,
    /// Cost limit of the device time.
    pub(crate) cost_max: Option<Cost>,
}

/// Outcome of a call with an objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Kept,
    /// Late, or failed.
    Missed,
    /// Rejected by admission control.
    Rejected,
}

impl Outcome {
    pub(crate) const ALL: [Self; 3] = [Self::Kept, Self::Missed, Self::Rejected];

    pub(crate) const fn as_str(self) -> &'static str {
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

impl From<&WorkflowRecord> for Objective {
    fn from(record: &WorkflowRecord) -> Self {
        Self::new(record.slo_ms, record.cost_slo)
    }
}

impl Objective {
    fn new(slo_ms: Option<u64>, cost_max: Option<Cost>) -> Self {
        Self { latency: slo_ms.map(Duration::from_millis), cost_max }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the outcome of a call that took `time`. None without an objective, or if the caller
    /// was gone.
    pub(crate) fn outcome(&self, failed: Option<ErrorCode>, time: Duration) -> Option<Outcome> {
        match failed {
            _ if self.is_none() => None,
            Some(ErrorCode::SloUnattainable) => Some(Outcome::Rejected),
            Some(ErrorCode::Cancelled) => None,
            Some(_) => Some(Outcome::Missed),
            None if self.latency.is_none_or(|latency| time <= latency) => Some(Outcome::Kept),
            None => Some(Outcome::Missed),
        }
    }

    /// Returns the error of a call that admission control rejects `waited` after its arrival.
    pub(crate) fn refuse(&self, estimate: &Estimate, waited: Duration) -> Fault {
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
                format!("it would cost about {}, and may cost {cost_max} (cost_slo)", estimate.cost)
            }
            (Some(latency), None) if after <= latency => format!(
                "it might be over after about {} ms, but that cannot be promised for {} ms (slo_ms) while so much waits: try again when less does",
                after.as_millis(),
                latency.as_millis()
            ),
            (Some(latency), None) => format!(
                "it would be over after about {} ms, and is to be over after {} ms (slo_ms): try again when less waits",
                after.as_millis(),
                latency.as_millis()
            ),
            (None, None) => "no device has room for it at this price (cost_slo)".to_owned(),
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
        let (quick, slow) = (Duration::from_millis(10), Duration::from_millis(11));
        assert_eq!(one.outcome(None, quick), Some(Outcome::Kept));
        assert_eq!(one.outcome(None, slow), Some(Outcome::Missed));
        assert_eq!(one.outcome(Some(ErrorCode::GuestTrap), quick), Some(Outcome::Missed));
        assert_eq!(one.outcome(Some(ErrorCode::SloUnattainable), quick), Some(Outcome::Rejected));
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
