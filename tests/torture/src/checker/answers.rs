//! Single answers: versions that fit, and errors with documented codes.

use super::Violation;
use super::register::span;
use crate::history::{Action, History, Operation, Refusal};
use std::collections::BTreeMap;

/// Promise of versions.
const ONE_VERSION: &str = "every answer comes from exactly one deployed version";
/// Promise of errors.
const DOCUMENTED: &str = "every error has a documented code that fits the operation";

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = versions(history);
    for operation in &history.operations {
        if let Some(refusal) = operation.refusal()
            && !is_documented(&operation.action, refusal)
        {
            let what = format!("{} was answered with {refusal:?}", describe(operation));
            violations.push(Violation { promise: DOCUMENTED, what });
        }
    }
    violations
}

/// Describes an operation in a violation.
#[must_use]
pub fn describe(operation: &Operation) -> String {
    let time = span(operation.begin_us, operation.end_us);
    format!("{:?} at node {}, {time},", operation.action, operation.node)
}

/// Answers whose version and content do not fit.
fn versions(history: &History) -> Vec<Violation> {
    let mut marks: BTreeMap<(&str, u32), &str> = BTreeMap::new();
    let mut violations = Vec::new();
    for operation in &history.operations {
        let Some(answer) = operation.answer() else { continue };
        let violation = |what: String| Violation { promise: ONE_VERSION, what };
        match &operation.action {
            Action::Deploy { function, mark } => {
                let Some(version) = answer.version else { continue };
                let known = *marks.entry((function.as_str(), version)).or_insert(mark);
                if known != mark {
                    let what = format!("version {version} of {function} has the marks {known} and {mark}");
                    violations.push(violation(what));
                }
            }
            Action::Call { function } => {
                let (Some(version), Some(mark)) = (answer.version, &answer.value) else {
                    let what = format!("{} has the answer {answer:?}", describe(operation));
                    violations.push(violation(what));
                    continue;
                };
                let known = *marks.entry((function.as_str(), version)).or_insert(mark);
                if known != mark {
                    let what = format!(
                        "{} has version {version} and mark {mark}; the version's mark is {known}",
                        describe(operation)
                    );
                    violations.push(violation(what));
                }
            }
            Action::Infer { version: named, .. } => {
                let output = answer.value.as_ref().and_then(|value| value.parse::<u32>().ok());
                let is_named = named.is_none() || *named == answer.version;
                if output.is_none() || output != answer.version || !is_named {
                    let what = format!("{} has the answer {answer:?}", describe(operation));
                    violations.push(violation(what));
                }
            }
            _ => {}
        }
    }
    violations
}

/// Whether a refusal is one that the documentation states for the operation while nodes, workers
/// and etcd fail.
fn is_documented(action: &Action, refusal: &Refusal) -> bool {
    const CALL: &[(u16, &str)] =
        &[(502, "node-lost"), (504, "deadline-exceeded"), (429, "queue-full"), (404, "function-not-found")];
    const INFER: &[(u16, &str)] = &[
        (502, "node-lost"),
        (504, "deadline-exceeded"),
        (429, "queue-full"),
        (503, "worker-lost"),
        (503, "model-quarantined"),
        (404, "model-not-found"),
        (404, "version-not-found"),
    ];
    const CHANGE: &[(u16, &str)] = &[(409, "conflict"), (429, "queue-full")];
    const ROLL_BACK: &[(u16, &str)] =
        &[(409, "conflict"), (404, "function-not-found"), (404, "version-not-found")];
    const SUBMIT: &[(u16, &str)] =
        &[(429, "async-queue-full"), (404, "function-not-found"), (409, "conflict")];
    // The result of a dead invocation is its error.
    const RESULT: &[(u16, &str)] = &[(409, "not-ended"), (502, "node-lost")];
    const OBJECT: &[(u16, &str)] = &[(404, "object-not-found")];
    let Some(code) = refusal.code.as_deref() else { return false };
    let documented = match action {
        Action::Call { .. } => CALL,
        Action::Infer { .. } => INFER,
        Action::Deploy { .. } | Action::Push { .. } | Action::PutObject { .. } => CHANGE,
        Action::RollBack { .. } => ROLL_BACK,
        Action::Submit { .. } => SUBMIT,
        Action::FetchResult { .. } => RESULT,
        Action::GetObject { .. } => OBJECT,
    };
    (refusal.status, code) == (503, "unavailable") || documented.contains(&(refusal.status, code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answer, Outcome};

    fn operation(action: Action, outcome: Outcome) -> Operation {
        Operation { client: 0, node: 0, begin_us: 0, end_us: 1, action, outcome }
    }

    fn refused(status: u16, code: Option<&str>) -> Outcome {
        Outcome::Refused(Refusal { status, code: code.map(str::to_owned), text: String::new() })
    }

    fn answered(version: u32, value: &str) -> Outcome {
        Outcome::Acknowledged(Answer { version: Some(version), value: Some(value.to_owned()), id: None })
    }

    fn found(operations: Vec<Operation>) -> usize {
        check(&History { operations, ..History::default() }).len()
    }

    fn call() -> Action {
        Action::Call { function: "f".to_owned() }
    }

    fn infer(version: Option<u32>) -> Action {
        Action::Infer { model: "m".to_owned(), version }
    }

    #[test]
    fn errors_without_a_fitting_code_are_found() {
        let count = |status, code| found(vec![operation(call(), refused(status, code))]);
        assert_eq!(count(503, Some("unavailable")), 0);
        assert_eq!(count(502, Some("node-lost")), 0);
        assert_eq!(count(500, Some("internal")), 1);
        assert_eq!(count(503, None), 1);
        assert_eq!(count(500, Some("unavailable")), 1);
        assert_eq!(count(503, Some("worker-lost")), 1, "the function runs no model");
        assert_eq!(found(vec![operation(infer(None), refused(503, Some("worker-lost")))]), 0);
    }

    #[test]
    fn version_with_two_marks_is_found() {
        let deploy = Action::Deploy { function: "f".to_owned(), mark: "a".to_owned() };
        let deployed =
            operation(deploy, Outcome::Acknowledged(Answer { version: Some(1), ..Answer::default() }));
        let one = operation(call(), answered(1, "a"));
        let other = operation(call(), answered(1, "b"));
        assert_eq!(found(vec![deployed.clone(), one.clone()]), 0);
        assert_eq!(found(vec![deployed, other.clone()]), 1);
        assert_eq!(found(vec![one, other]), 1);
        assert_eq!(found(vec![operation(call(), Outcome::Acknowledged(Answer::default()))]), 1);
    }

    #[test]
    fn output_of_another_version_of_a_model_is_found() {
        assert_eq!(found(vec![operation(infer(None), answered(3, "3"))]), 0);
        assert_eq!(found(vec![operation(infer(None), answered(3, "2"))]), 1);
        assert_eq!(found(vec![operation(infer(Some(2)), answered(3, "3"))]), 1);
        assert_eq!(found(vec![operation(infer(Some(3)), answered(3, "3"))]), 0);
    }
}
