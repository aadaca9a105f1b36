//! Metrics of the scheduler's estimates.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets of a ratio, finer around 1.
const BUCKETS: [f64; 15] = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 10.0];

/// Metrics of placements.
pub struct PlacementMetrics {
    estimate_ratio: Family<PlacementLabels, Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlacementLabels {
    kind: String,
}

impl PlacementMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let estimate_ratio =
            Family::<PlacementLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register(
            "placement_estimate_ratio",
            "Ratio of the estimated time to the actual time of placed invocations, by kind of device",
            estimate_ratio.clone(),
        );
        Self { estimate_ratio }
    }

    /// Counts the end of an invocation on a device of this kind: `ratio` is its estimated time over
    /// the time that it took.
    pub fn ended(&self, kind: &str, ratio: f64) {
        self.estimate_ratio.get_or_create(&PlacementLabels { kind: kind.to_owned() }).observe(ratio);
    }
}
