//! Metrics of deployed functions, models and workflows.

use super::{counter, gauge};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Series of the deployed functions, models and workflows.
pub struct DeployedMetrics {
    /// Components loaded ahead of their first call.
    pub preloaded: Counter,
    /// Functions of components whose code the compile cache contained.
    pub cached_functions: Counter,
    /// Functions of components that were compiled with a compile cache.
    pub compiled_functions: Counter,
    /// Functions deployed.
    pub functions: Gauge,
    /// Models pushed.
    pub models: Gauge,
    /// Workflows deployed.
    pub workflows: Gauge,
}

impl DeployedMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Components loaded before their first call";
        Self {
            preloaded: counter(registry, "components_preloaded", help),
            cached_functions: counter(
                registry,
                "compile_cache_hits",
                "Functions of components whose machine code the compile cache contained",
            ),
            compiled_functions: counter(
                registry,
                "compile_cache_misses",
                "Functions of components that were compiled because the compile cache did not contain them",
            ),
            functions: gauge(registry, "functions", "Deployed functions"),
            models: gauge(registry, "models", "Pushed models"),
            workflows: gauge(registry, "workflows", "Deployed workflows"),
        }
    }
}
