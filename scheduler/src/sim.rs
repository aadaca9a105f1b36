//! Cluster simulation under virtual time, driven by the production scheduler.
//!
//! A [`Workload`] defines the arrivals and the costs of models. [`run`] runs it under a policy on
//! simulated devices and checks the scheduler's guarantees on every step. The result is a
//! [`SimulatedSchedule`], which [`SimulationMetrics`] summarize. A simulation depends only on its
//! arguments: it uses no real time, and all randomness is seeded.

mod workload;
pub use workload::{ModelCosts, SimRequest, Workload, WorkloadError};

mod file;

mod generate;
pub use generate::{Arrivals, Popularity, Preset, Recipe, TABLE_I};

mod azure;
pub use azure::AzureRecipe;

mod kaas;
pub use kaas::{
    Foresight, KAAS_POLICIES, KaasReport, KaasTimes, kaas_cluster, kaas_policy, kaas_printed_lots,
};

mod device;

mod slos;
pub use slos::{SloCounts, SloLatency, SloRule};

mod layout;
pub use layout::{Losses, SimulatedKind};

mod groups;

mod cluster;
pub use cluster::{Ends, SimulatedBatching, SimulatedCluster, SimulatedPlacement, SimulatedSchedule};

mod world;
pub use world::run;

mod check;
pub use check::Violation;

mod metrics;
pub use metrics::SimulationMetrics;

mod workflows;
pub use workflows::{
    TABLE_4_1, Table41Row, WorkflowMetrics, WorkflowOptions, WorkflowOutcome, WorkflowPreset,
    WorkflowSchedule, WorkflowWorkload, run_workflows, table_4_1,
};

mod bound;
pub use bound::{ASCENT_STEPS, latency_bound};

mod improved;
pub use improved::{improve_schedule, search_moves};

mod report;
pub use report::{Chart, ChartKind, Compared, Figure, Reproduction, SimulationError, measure, reproduce};
