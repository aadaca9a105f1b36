//! Summary of a run.

use anyhow::{Context as _, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use weir_torture::checker::Violation;
use weir_torture::checker::availability::protected_count;
use weir_torture::history::{History, Operation, Outcome};

/// Violations that are printed of each promise; the file has all of them.
const SHOWN: usize = 5;

/// Failure of a run: a broken promise, and a description.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    promise: &'static str,
    what: String,
}

impl Failure {
    /// A process that failed.
    pub(crate) fn process(what: String) -> Self {
        Self { promise: "processes start, run and end without errors", what }
    }

    /// A cluster that does not recover.
    pub(crate) fn healing(what: String) -> Self {
        Self { promise: "the cluster heals within a minute", what }
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self { promise: violation.promise, what: violation.what }
    }
}

/// Outcomes of the operations of one kind.
#[derive(Debug, Default, Serialize)]
struct Outcomes {
    acknowledged: usize,
    refused: usize,
    unreachable: usize,
    given_up: usize,
    unknown: usize,
    /// Refusals by code.
    codes: BTreeMap<String, usize>,
}

/// Counts and failures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    seed: u64,
    minutes: f64,
    operations: BTreeMap<&'static str, Outcomes>,
    faults: BTreeMap<&'static str, usize>,
    /// Asynchronous invocations at the end by status.
    invocations: BTreeMap<String, usize>,
    /// Invocations of more than one attempt.
    invocations_repeated: usize,
    /// Calls during exactly one failure elsewhere, which must not be lost.
    protected_calls: usize,
    /// Periods in which the machine was too busy.
    stalls: usize,
    healed_after_ms: Option<u128>,
    failures: Vec<Failure>,
}

impl Summary {
    pub(crate) fn new(
        seed: u64,
        minutes: f64,
        history: &History,
        healed: Option<Duration>,
        failures: Vec<Failure>,
    ) -> Self {
        let mut operations: BTreeMap<&'static str, Outcomes> = BTreeMap::new();
        for operation in &history.operations {
            operations.entry(operation.action.kind()).or_default().count(operation);
        }
        let mut faults = BTreeMap::new();
        for record in &history.faults {
            *faults.entry(record.fault.kind()).or_default() += 1;
        }
        let mut invocations = BTreeMap::new();
        let ended = history.finals.first().into_iter().flat_map(|node| node.invocations.values());
        for invocation in ended.clone() {
            *invocations.entry(invocation.status.clone()).or_default() += 1;
        }
        let invocations_repeated = ended.filter(|invocation| invocation.attempts > 1).count();
        let healed_after_ms = healed.map(|healed| healed.as_millis());
        Self {
            seed,
            minutes,
            operations,
            faults,
            invocations,
            invocations_repeated,
            protected_calls: protected_count(history),
            stalls: history.stalls.len(),
            healed_after_ms,
            failures,
        }
    }

    /// Whether all promises were kept.
    pub(crate) fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Prints the tables, the failures, and the command that repeats the run.
    pub(crate) fn print(&self, folder: &Path) {
        println!(
            "\n{:<14} {:>12} {:>9} {:>12} {:>9} {:>9}",
            "operation", "acknowledged", "refused", "unreachable", "given up", "unknown"
        );
        for (kind, counts) in &self.operations {
            let Outcomes { acknowledged, refused, unreachable, given_up, unknown, codes } = counts;
            let codes: Vec<String> = codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
            println!(
                "{kind:<14} {acknowledged:>12} {refused:>9} {unreachable:>12} {given_up:>9} {unknown:>9}  {}",
                codes.join(", ")
            );
        }
        println!("\n{:<22} {:>6}", "fault", "times");
        for (kind, count) in &self.faults {
            println!("{kind:<22} {count:>6}");
        }
        println!(
            "\nasynchronous invocations at the end: {:?}, {} of them with more than one attempt",
            self.invocations, self.invocations_repeated
        );
        println!(
            "{} calls were made during exactly one failure elsewhere; the machine stalled {} times",
            self.protected_calls, self.stalls
        );
        if let Some(healed) = self.healed_after_ms {
            println!("the cluster had healed {healed} ms after the last operation");
        }
        let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
        for failure in &self.failures {
            let count = shown.entry(failure.promise).or_default();
            *count += 1;
            if *count <= SHOWN {
                println!("BROKEN: {}: {}", failure.promise, failure.what);
            }
        }
        for (promise, count) in &shown {
            println!("{count} times broken: {promise}");
        }
        if self.has_passed() {
            println!("seed {}: all promises were kept", self.seed);
        } else {
            println!("seed {}: the logs and the history are in {}", self.seed, folder.display());
            println!("repeat: cargo xtask torture --minutes {} --seed {}", self.minutes, self.seed);
        }
    }

    /// Writes everything as JSON.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Outcomes {
    fn count(&mut self, operation: &Operation) {
        match &operation.outcome {
            Outcome::Acknowledged(_) => self.acknowledged += 1,
            Outcome::Refused(refusal) => {
                self.refused += 1;
                let code = refusal.code.clone().unwrap_or_else(|| format!("status {}", refusal.status));
                *self.codes.entry(code).or_default() += 1;
            }
            Outcome::Unreachable => self.unreachable += 1,
            Outcome::GivenUp => self.given_up += 1,
            Outcome::Unknown { .. } => self.unknown += 1,
        }
    }
}
