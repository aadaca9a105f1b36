//! Calls that may run twice are not lost by the failure of another node, or of etcd.
//!
//! The table of failure modes in `docs/concepts/cluster.md` promises it for one failure at a time. A
//! failure counts until `RECOVERY_US` after its end. The functions of a run are `idempotent`, and
//! inferences may always run twice. Calls of names that the node has not answered before are left
//! out, because their first call needs etcd, and so are calls on a machine that is too busy to run
//! the processes.

use super::Violation;
use super::answers::describe;
use crate::history::{Action, FaultRecord, History, Micros, Operation, Outcome};
use crate::plan::{Fault, Target};
use std::collections::BTreeMap;

/// Promise of the table.
const NOT_LOST: &str = "no call that may run twice is lost by the failure of another node or of etcd";

/// Cause of a call that is lost without a fault.
const NO_FAULT: &str = "there was no fault";

/// Time for which a failure has effects after its end: a lost node is noticed, another dispatcher is
/// elected, and processes on a busy machine catch up.
const RECOVERY_US: Micros = 10_000_000;

/// Time after which a client that gives up was patient enough: more than the deadline of the
/// functions.
const PATIENT_US: Micros = 20_000_000;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let lost = protected(history).into_iter().filter(|(operation, _)| is_lost(operation));
    let violation = |(operation, cause): (&Operation, String)| {
        let what = format!("{} was answered with {:?} ({cause})", describe(operation), operation.outcome);
        Violation { promise: NOT_LOST, what }
    };
    lost.map(violation).collect()
}

/// Number of calls during exactly one failure elsewhere.
#[must_use]
pub fn protected_count(history: &History) -> usize {
    protected(history).iter().filter(|(_, cause)| cause != NO_FAULT).count()
}

/// Calls that must not be lost, each with the only fault during the call.
fn protected(history: &History) -> Vec<(&Operation, String)> {
    let mut first_answers: BTreeMap<(usize, String), Micros> = BTreeMap::new();
    for operation in &history.operations {
        if let (Some(name), true) = (called(&operation.action), operation.answer().is_some()) {
            first_answers.entry((operation.node, name)).or_insert(operation.end_us);
        }
    }
    let mut found = Vec::new();
    for operation in &history.operations {
        let Some(name) = called(&operation.action) else { continue };
        let is_known = |first: &Micros| *first < operation.begin_us;
        if !first_answers.get(&(operation.node, name)).is_some_and(is_known) {
            continue;
        }
        if let Some(cause) = cause(operation, history) {
            found.push((operation, cause));
        }
    }
    found
}

/// The function or model that an action calls.
fn called(action: &Action) -> Option<String> {
    match action {
        Action::Call { function } => Some(format!("function {function}")),
        Action::Infer { model, version: None } => Some(format!("model {model}")),
        _ => None,
    }
}

/// Whether a call has no answer of the function or model. A full queue protects the node.
fn is_lost(operation: &Operation) -> bool {
    match &operation.outcome {
        Outcome::Acknowledged(_) => false,
        Outcome::Refused(refusal) => refusal.status >= 500,
        Outcome::GivenUp => operation.end_us - operation.begin_us >= PATIENT_US,
        Outcome::Unreachable | Outcome::Unknown { .. } => true,
    }
}

/// Describes the only fault during a call, or says that there was none. `None` if the call may be
/// lost.
fn cause(operation: &Operation, history: &History) -> Option<String> {
    let is_near = |begin_us: Micros, end_us: Micros| {
        begin_us <= operation.end_us && operation.begin_us <= end_us + RECOVERY_US
    };
    if history.stalls.iter().any(|stall| is_near(stall.begin_us, stall.end_us)) {
        return None;
    }
    let near = history.faults.iter().filter(|record| is_near(record.begin_us, record.end_us));
    let near: Vec<&FaultRecord> = near.collect();
    let [record] = near[..] else {
        return near.is_empty().then(|| NO_FAULT.to_owned());
    };
    let excuses = match record.fault {
        // A worker is not in the table: its calls are answered with `worker-lost`.
        Fault::KillWorker { .. } | Fault::KillAllNodes { .. } => true,
        // The table has no node that is only partly reachable.
        Fault::CutEtcd { .. } | Fault::CutPeer { .. } | Fault::Isolate { .. } => true,
        Fault::KillNode { .. }
        | Fault::TerminateNode { .. }
        | Fault::PauseNode { .. }
        | Fault::KillEtcd { .. }
        | Fault::PauseEtcd { .. } => record.fault.target() == Target::Node(operation.node),
    };
    (!excuses).then(|| format!("the only fault was: {}", record.fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answer, Refusal, Stall};

    const SECOND: Micros = 1_000_000;

    fn call(node: usize, begin_us: Micros, is_answered: bool) -> Operation {
        let lost = Refusal { status: 502, code: Some("node-lost".to_owned()), text: String::new() };
        let outcome = match is_answered {
            true => Outcome::Acknowledged(Answer::default()),
            false => Outcome::Refused(lost),
        };
        let action = Action::Call { function: "f".to_owned() };
        Operation { client: 0, node, begin_us, end_us: begin_us + 10, action, outcome }
    }

    fn kill(node: usize, begin_us: Micros) -> FaultRecord {
        FaultRecord { fault: Fault::KillNode { node, down_ms: 0 }, begin_us, end_us: begin_us + SECOND }
    }

    fn found(operations: Vec<Operation>, faults: Vec<FaultRecord>) -> usize {
        check(&History { operations, faults, ..History::default() }).len()
    }

    #[test]
    fn call_lost_by_another_node_is_found() {
        let at = 100 * SECOND;
        let calls = vec![call(0, 0, true), call(0, at, false)];
        assert_eq!(found(calls.clone(), vec![kill(1, at - 5)]), 1);
        assert_eq!(found(calls.clone(), vec![kill(0, at - 5)]), 0, "the node of the call was killed");
        assert_eq!(found(calls.clone(), vec![kill(1, at - 5), kill(2, at - 5)]), 0, "two nodes were killed");
        assert_eq!(found(calls, vec![]), 1, "no node was killed");
    }

    #[test]
    fn impatient_client_and_busy_machine_lose_no_call() {
        let at = 100 * SECOND;
        let mut given_up = call(0, at, false);
        given_up.outcome = Outcome::GivenUp;
        assert_eq!(found(vec![call(0, 0, true), given_up.clone()], vec![kill(1, at - 5)]), 0);
        given_up.end_us = at + 21 * SECOND;
        assert_eq!(found(vec![call(0, 0, true), given_up], vec![kill(1, at - 5)]), 1);
        let operations = vec![call(0, 0, true), call(0, at, false)];
        let stalls = vec![Stall { begin_us: at - 5, end_us: at }];
        assert_eq!(check(&History { operations, stalls, ..History::default() }).len(), 0);
    }

    #[test]
    fn effects_of_a_fault_last_for_a_while() {
        let at = 100 * SECOND;
        let calls = vec![call(0, 0, true), call(0, at, false)];
        assert_eq!(found(calls.clone(), vec![kill(0, at - 3 * SECOND)]), 0);
        assert_eq!(found(calls, vec![kill(0, at - 20 * SECOND)]), 1);
    }

    #[test]
    fn first_call_of_a_name_may_need_etcd() {
        let at = 100 * SECOND;
        let fault = Fault::KillEtcd { down_ms: 0 };
        let record = FaultRecord { fault, begin_us: at - 5, end_us: at + SECOND };
        assert_eq!(found(vec![call(0, at, false)], vec![record.clone()]), 0);
        assert_eq!(found(vec![call(1, 0, true), call(0, at, false)], vec![record.clone()]), 0);
        assert_eq!(found(vec![call(0, 0, true), call(0, at, false)], vec![record]), 1);
    }
}
