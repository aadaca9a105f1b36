//! Checks of a history against the promises of the documentation.
//!
//! | promise | module |
//! |---|---|
//! | an acknowledged write is visible afterwards, and no node returns to an earlier state | [`register`], [`writes`] |
//! | an answer comes from exactly one version that was deployed | [`answers`], [`register`] |
//! | an accepted asynchronous invocation has exactly one kept result | [`invocations`] |
//! | an error has a documented code that fits the operation | [`answers`] |
//! | no call is lost by the failure of another node or of etcd, if it may run twice | [`availability`] |
//! | all nodes agree after the faults | [`writes`] |

pub mod answers;
pub mod availability;
pub mod invocations;
pub mod register;
pub mod writes;

use crate::history::History;
use serde::Serialize;
use std::fmt;

/// Settings of the nodes that the promises depend on.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `sandbox.versions_keep` and `models.versions_keep`.
    pub versions_keep: usize,
    /// `async.attempts_max`.
    pub attempts_max: u32,
}

/// Broken promise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// The promise.
    pub promise: &'static str,
    /// Description of the observed behaviour, with names and times.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// Returns all violations of a history, sorted by promise.
#[must_use]
pub fn check(history: &History, settings: Settings) -> Vec<Violation> {
    let mut violations = answers::check(history);
    violations.extend(writes::check(history, settings));
    violations.extend(invocations::check(history, settings));
    violations.extend(availability::check(history));
    violations.sort();
    violations
}
