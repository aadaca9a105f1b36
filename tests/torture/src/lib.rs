//! History checker of a cluster under faults: `cargo xtask torture`.
//!
//! The library is pure: the history of a run ([`history`]), the faults that a seed gives ([`plan`]),
//! and the checks of the promises that the documentation makes ([`checker`]). The program starts
//! the cluster, the clients and the faults, and records the history.

pub mod history;

pub mod plan;

pub mod checker;
