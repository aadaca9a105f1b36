//! Asynchronous invocations: accepted ones end with exactly one kept result.

use super::answers::describe;
use super::{Settings, Violation};
use crate::history::{Action, Effect, History, InvocationState, Operation};
use std::collections::{BTreeMap, BTreeSet};

/// Promise of asynchronous invocations.
const ONE_RESULT: &str = "every accepted asynchronous invocation has exactly one kept result";

pub(super) fn check(history: &History, settings: Settings) -> Vec<Violation> {
    let mut found = keys(history);
    if let Some(node) = history.finals.first() {
        found.extend(accepted(history, &node.invocations, settings));
        found.extend(requests(history, &node.invocations));
        found.extend(observed(history, &node.invocations));
    }
    found.into_iter().map(|what| Violation { promise: ONE_RESULT, what }).collect()
}

/// Requests to start an invocation, by their token.
fn submits(history: &History) -> BTreeMap<&str, Vec<&Operation>> {
    let mut by_token: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        if let Action::Submit { token, .. } = &operation.action {
            by_token.entry(token).or_default().push(operation);
        }
    }
    by_token
}

fn id(operation: &Operation) -> Option<&str> {
    operation.answer()?.id.as_deref()
}

/// Repetitions with one idempotency key that started several invocations, and requests without a
/// key that share one.
fn keys(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut token_by_id: BTreeMap<&str, &str> = BTreeMap::new();
    for (token, operations) in submits(history) {
        let ids: BTreeSet<&str> = operations.iter().copied().filter_map(id).collect();
        if ids.len() > 1 {
            found.push(format!("the requests with one idempotency key and the body {token} are {ids:?}"));
        }
        for id in ids {
            if let Some(other) = token_by_id.insert(id, token) {
                found.push(format!("the requests {token} and {other} have the same invocation {id}"));
            }
        }
        for operation in operations.iter().filter(|operation| operation.answer().is_some()) {
            if id(operation).is_none() {
                found.push(format!("{} was accepted without an id", describe(operation)));
            }
        }
    }
    found
}

/// Accepted invocations that are lost, have not ended, or lack their result.
fn accepted(
    history: &History,
    finals: &BTreeMap<String, InvocationState>,
    settings: Settings,
) -> Vec<String> {
    let mut found = Vec::new();
    for (token, operations) in submits(history) {
        let Some((operation, id)) = operations.iter().find_map(|operation| Some((operation, id(operation)?)))
        else {
            continue;
        };
        let Some(state) = finals.get(id) else {
            found.push(format!("invocation {id} is lost: {}", describe(operation)));
            continue;
        };
        let is_right = match (state.status.as_str(), &state.result) {
            ("done", Some(result)) => token_of_result(result) == Some(token),
            // A node was lost in each attempt.
            ("dead", None) => {
                state.error.as_deref() == Some("node-lost") && state.attempts == settings.attempts_max
            }
            _ => false,
        };
        if !is_right {
            found.push(format!("invocation {id} is {state:?}: {}", describe(operation)));
        }
    }
    found
}

/// The request's body, as the result contains it.
fn token_of_result(result: &str) -> Option<&str> {
    result.splitn(3, ' ').nth(2)
}

/// Requests with several results, and results of requests that were refused or never sent.
fn requests(history: &History, finals: &BTreeMap<String, InvocationState>) -> Vec<String> {
    let submits = submits(history);
    let mut ids_by_token: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, state) in finals {
        if let Some(token) = state.result.as_deref().and_then(token_of_result) {
            ids_by_token.entry(token).or_default().push(id);
        }
    }
    let mut found = Vec::new();
    for (token, ids) in ids_by_token {
        if ids.len() > 1 {
            found.push(format!("the request {token} has several results: {ids:?}"));
        }
        let was_sent = submits
            .get(token)
            .is_some_and(|operations| operations.iter().any(|operation| operation.effect() != Effect::Never));
        if !was_sent {
            found.push(format!("the request {token} was refused or never sent, and has the results {ids:?}"));
        }
    }
    found
}

/// Results that differ from the kept one.
fn observed(history: &History, finals: &BTreeMap<String, InvocationState>) -> Vec<String> {
    let mut found = Vec::new();
    for operation in &history.operations {
        let Action::FetchResult { id } = &operation.action else { continue };
        let Some(value) = operation.answer().and_then(|answer| answer.value.as_ref()) else { continue };
        let kept = finals.get(id).and_then(|state| state.result.as_ref());
        if kept != Some(value) {
            found.push(format!("{} returned {value:?}; the kept result is {kept:?}", describe(operation)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answer, NodeState, Outcome};

    const SETTINGS: Settings = Settings { versions_keep: 10, attempts_max: 3 };

    fn operation(action: Action, answer: Option<Answer>) -> Operation {
        let unknown = Outcome::Unknown { why: "timeout".to_owned() };
        let outcome = answer.map_or(unknown, Outcome::Acknowledged);
        Operation { client: 0, node: 0, begin_us: 0, end_us: 1, action, outcome }
    }

    fn submit(token: &str, id: Option<&str>) -> Operation {
        let action = Action::Submit { function: "f".to_owned(), token: token.to_owned(), key: None };
        operation(action, id.map(|id| Answer { id: Some(id.to_owned()), ..Answer::default() }))
    }

    fn fetched(id: &str, value: &str) -> Operation {
        let answer = Answer { value: Some(value.to_owned()), ..Answer::default() };
        operation(Action::FetchResult { id: id.to_owned() }, Some(answer))
    }

    fn done(result: &str) -> InvocationState {
        InvocationState {
            status: "done".to_owned(),
            result: Some(result.to_owned()),
            ..InvocationState::default()
        }
    }

    fn found(operations: Vec<Operation>, invocations: &[(&str, InvocationState)]) -> usize {
        let invocations = invocations.iter().map(|(id, state)| ((*id).to_owned(), state.clone())).collect();
        let finals = vec![NodeState { invocations, ..NodeState::default() }];
        check(&History { operations, finals, ..History::default() }, SETTINGS).len()
    }

    #[test]
    fn one_result_for_each_request_is_right() {
        let operations = vec![submit("t1", Some("a")), submit("t2", None), fetched("a", "m n t1")];
        assert_eq!(found(operations, &[("a", done("m n t1")), ("b", done("m n t2"))]), 0);
    }

    #[test]
    fn lost_invocation_is_found() {
        assert_eq!(found(vec![submit("t1", Some("a"))], &[]), 1);
        assert_eq!(found(vec![submit("t1", None)], &[]), 0);
    }

    #[test]
    fn unfinished_invocation_is_found() {
        let state = InvocationState { status: "running".to_owned(), ..InvocationState::default() };
        assert_eq!(found(vec![submit("t1", Some("a"))], &[("a", state)]), 1);
    }

    #[test]
    fn dead_invocation_is_right_only_after_all_attempts() {
        let dead = |attempts, error: &str| InvocationState {
            status: "dead".to_owned(),
            attempts,
            error: Some(error.to_owned()),
            ..InvocationState::default()
        };
        let count = |state| found(vec![submit("t1", Some("a"))], &[("a", state)]);
        assert_eq!(count(dead(3, "node-lost")), 0);
        assert_eq!(count(dead(2, "node-lost")), 1);
        assert_eq!(count(dead(3, "internal")), 1);
    }

    #[test]
    fn result_of_another_request_is_found() {
        let operations = vec![submit("t1", Some("a")), submit("t2", Some("b"))];
        assert_eq!(found(operations, &[("a", done("m n t2")), ("b", done("m o t1"))]), 2);
    }

    #[test]
    fn second_result_of_a_request_is_found() {
        let operations = vec![submit("t1", Some("a")), submit("t1", None)];
        assert_eq!(found(operations, &[("a", done("m n t1")), ("b", done("m o t1"))]), 1);
    }

    #[test]
    fn changed_result_is_found() {
        let operations = vec![submit("t1", Some("a")), fetched("a", "m n t1")];
        assert_eq!(found(operations, &[("a", done("m o t1"))]), 1);
    }

    #[test]
    fn two_invocations_of_one_key_are_found() {
        let operations = vec![submit("t1", Some("a")), submit("t1", Some("b"))];
        let finals = [("a", done("m n t1")), ("b", done("m o t1"))];
        // Two ids for the key, and two results of the request.
        assert_eq!(found(operations, &finals), 2);
    }

    #[test]
    fn result_of_a_refused_request_is_found() {
        let mut refused = submit("t1", None);
        refused.outcome = Outcome::Unreachable;
        assert_eq!(found(vec![refused], &[("a", done("m n t1"))]), 1);
    }
}
