//! A cluster under virtual time, driven by the scheduler that drives the real one.
//!
//! A [`Workload`] says what arrives when, and what models cost. [`run`] plays it against a policy on simulated devices and checks on every
//! step that the scheduler keeps its promises; what comes out is a [`Schedule`], and [`Metrics`] sum it up. Nothing here depends on real
//! time or on chance that is not seeded: a run can be had again from its arguments.

mod workload;
pub use workload::{Costs, SimRequest, Workload, WorkloadError};

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
pub use layout::{Kind, Losses};

mod world;
pub use world::{Batching, Cluster, Ends, Placed, Schedule, run};

mod check;
pub use check::Violation;

mod metrics;
pub use metrics::Metrics;

mod report;
pub use report::{Chart, ChartKind, Compared, Figure, Reproduction, SimulationError, measure, reproduce};
