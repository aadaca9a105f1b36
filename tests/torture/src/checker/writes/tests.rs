use super::*;
use crate::history::{Answer, InvocationState, Outcome};

const SETTINGS: Settings = Settings { versions_keep: 3, attempts_max: 3 };

fn acknowledged(node: usize, times: (Micros, Micros), action: Action, answer: Answer) -> Operation {
    let outcome = Outcome::Acknowledged(answer);
    Operation { client: 0, node, begin_us: times.0, end_us: times.1, action, outcome }
}

fn deploy(times: (Micros, Micros), version: u32, mark: &str) -> Operation {
    let action = Action::Deploy { function: "f".to_owned(), mark: mark.to_owned() };
    acknowledged(0, times, action, Answer { version: Some(version), ..Answer::default() })
}

fn call(node: usize, times: (Micros, Micros), mark: &str) -> Operation {
    let answer = Answer { value: Some(mark.to_owned()), version: Some(1), id: None };
    acknowledged(node, times, Action::Call { function: "f".to_owned() }, answer)
}

fn item(active: u32, versions: &[u32], value: &str) -> ItemState {
    ItemState { active, versions: versions.to_vec(), value: value.to_owned() }
}

fn node(function: Option<ItemState>) -> NodeState {
    let functions = function.map(|item| ("f".to_owned(), item)).into_iter().collect();
    NodeState { functions, ..NodeState::default() }
}

fn found(operations: Vec<Operation>, finals: Vec<NodeState>) -> Vec<&'static str> {
    let history = History { operations, finals, ..History::default() };
    check(&history, SETTINGS).into_iter().map(|violation| violation.promise).collect()
}

#[test]
fn kept_versions_and_current_answers_are_right() {
    let operations = vec![deploy((0, 10), 1, "a"), deploy((20, 30), 2, "b"), call(1, (40, 50), "a")];
    let state = node(Some(item(2, &[1, 2], "b")));
    assert_eq!(found(operations, vec![state.clone(), state]), [""; 0]);
}

#[test]
fn lost_function_is_found() {
    // It is neither visible nor listed.
    assert_eq!(found(vec![deploy((0, 10), 1, "a")], vec![node(None)]), [VISIBLE, KEPT]);
}

#[test]
fn lost_version_is_found_and_removed_version_is_not() {
    let operations = |count: u32| -> Vec<Operation> {
        (1..=count).map(|n| deploy((u64::from(n) * 20, u64::from(n) * 20 + 10), n, &n.to_string())).collect()
    };
    assert_eq!(found(operations(3), vec![node(Some(item(3, &[1, 3], "3")))]), [KEPT]);
    assert_eq!(found(operations(4), vec![node(Some(item(4, &[2, 3, 4], "4")))]), [""; 0]);
}

#[test]
fn rolled_back_function_at_the_end_is_right_only_after_a_rollback() {
    let deploys = vec![deploy((0, 10), 1, "a"), deploy((20, 30), 2, "b")];
    let state = node(Some(item(1, &[1, 2], "a")));
    assert_eq!(found(deploys.clone(), vec![state.clone()]), [VISIBLE]);
    let roll_back = Action::RollBack { function: "f".to_owned(), version: 1, mark: "a".to_owned() };
    let mut operations = deploys;
    operations.push(acknowledged(2, (40, 50), roll_back, Answer::default()));
    assert_eq!(found(operations, vec![state]), [""; 0]);
}

#[test]
fn nodes_that_differ_are_found() {
    let operations = vec![deploy((0, 10), 1, "a")];
    let one = node(Some(item(1, &[1], "a")));
    let other = node(Some(item(1, &[1, 2], "a")));
    assert_eq!(found(operations, vec![one, other]), [AGREED]);
}

#[test]
fn asynchronous_invocation_runs_the_version_of_its_acceptance() {
    let submit = Action::Submit { function: "f".to_owned(), token: "t".to_owned(), key: None };
    let answer = Answer { id: Some("i".to_owned()), ..Answer::default() };
    let operations =
        vec![deploy((0, 10), 1, "a"), acknowledged(1, (12, 15), submit, answer), deploy((20, 30), 2, "b")];
    let finals = |mark: &str| {
        let mut state = node(Some(item(2, &[1, 2], "b")));
        let result = Some(format!("{mark} 0 t"));
        state.invocations.insert("i".to_owned(), InvocationState { result, ..InvocationState::default() });
        vec![state]
    };
    assert_eq!(found(operations.clone(), finals("a")), [""; 0]);
    assert_eq!(found(operations, finals("b")), [VISIBLE]);
}

#[test]
fn version_of_a_model_is_visible_at_all_nodes_after_the_push() {
    let push = Action::Push { model: "m".to_owned(), version: 1 };
    let infer = Action::Infer { model: "m".to_owned(), version: Some(1) };
    let refusal = crate::history::Refusal {
        status: 404,
        code: Some("model-not-found".to_owned()),
        text: String::new(),
    };
    let mut missing = acknowledged(1, (20, 30), infer, Answer::default());
    missing.outcome = Outcome::Refused(refusal);
    let pushed = acknowledged(0, (0, 10), push, Answer::default());
    assert_eq!(found(vec![pushed.clone(), missing.clone()], Vec::new()), [VISIBLE]);
    missing.begin_us = 5;
    assert_eq!(found(vec![pushed, missing], Vec::new()), [""; 0]);
}
