//! Acknowledged writes: deploys, rollbacks, pushes and objects.

use super::register::{Read, Reader, Register, Write};
use super::{Settings, Violation};
use crate::history::{Action, Effect, History, ItemState, Micros, NodeState, Operation};
use std::collections::BTreeMap;

/// Promise of registers.
const VISIBLE: &str = "acknowledged writes are visible, and answers come from deployed versions";
/// Promise of versions.
const KEPT: &str = "acknowledged versions are kept";
/// Promise of the healed cluster.
const AGREED: &str = "all nodes agree after the faults";

pub(super) fn check(history: &History, settings: Settings) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, register) in registers(history) {
        let found = register.check().into_iter();
        violations.extend(found.map(|what| Violation { promise: VISIBLE, what: format!("{name}: {what}") }));
    }
    violations.extend(versions(history, settings));
    violations.extend(agreement(&history.finals));
    violations
}

/// All registers of a history, by a readable name.
fn registers(history: &History) -> BTreeMap<String, Register> {
    let mut registers: BTreeMap<String, Register> = BTreeMap::new();
    for operation in &history.operations {
        for (name, value) in written(&operation.action) {
            let write = Write::from_operation(operation, &value);
            registers.entry(name).or_default().writes.extend(write);
        }
        if let Some(name) = read(&operation.action) {
            registers.entry(name).or_default().reads.extend(read_of_operation(operation));
        }
    }
    for (name, read) in accepted_versions(history) {
        registers.entry(name).or_default().reads.push(read);
    }
    let end = history.operations.iter().map(|operation| operation.end_us).max().unwrap_or(0);
    for node in &history.finals {
        for (name, register) in &mut registers {
            // The state at the end has no value for single versions of a model.
            let value = match name.split_once(' ') {
                Some(("function", name)) => node.functions.get(name).map(|item| item.value.clone()),
                Some(("model", name)) => node.models.get(name).map(|item| item.value.clone()),
                Some(("object", name)) => node.objects.get(name).cloned(),
                _ => continue,
            };
            register.reads.push(Read {
                reader: Reader::Healed,
                begin_us: end + 1,
                end_us: Micros::MAX,
                value,
            });
        }
    }
    registers
}

/// Registers that an action writes, with the values.
fn written(action: &Action) -> Vec<(String, String)> {
    match action {
        Action::Deploy { function, mark } | Action::RollBack { function, mark, .. } => {
            vec![(format!("function {function}"), mark.clone())]
        }
        Action::PutObject { object, value } => vec![(format!("object {object}"), value.clone())],
        Action::Push { model, version } => vec![
            (format!("model {model}"), version.to_string()),
            (format!("version {model}:{version}"), version.to_string()),
        ],
        _ => Vec::new(),
    }
}

/// The register that an action reads.
fn read(action: &Action) -> Option<String> {
    match action {
        Action::Call { function } => Some(format!("function {function}")),
        Action::GetObject { object } => Some(format!("object {object}")),
        Action::Infer { model, version: None } => Some(format!("model {model}")),
        Action::Infer { model, version: Some(version) } => Some(format!("version {model}:{version}")),
        // Its version is read from the state at the end; a missing function is an answer.
        Action::Submit { function, .. } => Some(format!("function {function}")),
        _ => None,
    }
}

/// Read of an operation, whose value is `None` if the name was missing. `None` for operations that
/// read nothing.
fn read_of_operation(operation: &Operation) -> Option<Read> {
    let value = match operation.answer() {
        Some(answer) => Some(answer.value.clone()?),
        None if operation.is_missing() => None,
        None => return None,
    };
    let reader = Reader::Node(operation.node);
    Some(Read { reader, begin_us: operation.begin_us, end_us: operation.end_us, value })
}

/// The versions that asynchronous invocations ran: the active one at the time of the acceptance.
fn accepted_versions(history: &History) -> Vec<(String, Read)> {
    /// Requests that may have created an invocation.
    #[derive(Default)]
    struct Acceptance<'a> {
        sent: Vec<&'a Operation>,
        id: Option<&'a str>,
    }
    let Some(node) = history.finals.first() else { return Vec::new() };
    let mut by_token: BTreeMap<&str, (&str, Acceptance<'_>)> = BTreeMap::new();
    for operation in &history.operations {
        let Action::Submit { function, token, .. } = &operation.action else { continue };
        let (_, acceptance) = by_token.entry(token).or_insert((function.as_str(), Acceptance::default()));
        if operation.effect() != Effect::Never {
            acceptance.sent.push(operation);
        }
        if let Some(id) = operation.answer().and_then(|answer| answer.id.as_deref()) {
            acceptance.id = Some(id);
        }
    }
    let read = |(function, acceptance): &(&str, Acceptance<'_>)| {
        let result = node.invocations.get(acceptance.id?)?.result.as_deref()?;
        let (mark, _) = result.split_once(' ')?;
        let begin_us = acceptance.sent.iter().map(|operation| operation.begin_us).min()?;
        let acknowledged = acceptance.sent.iter().filter(|operation| operation.answer().is_some());
        let end_us = acknowledged.map(|operation| operation.end_us).min()?;
        let reader = match acceptance.sent[..] {
            [operation] => Reader::Node(operation.node),
            _ => Reader::AnyNode,
        };
        Some((
            format!("function {function}"),
            Read { reader, begin_us, end_us, value: Some(mark.to_owned()) },
        ))
    };
    by_token.values().filter_map(read).collect()
}

/// Versions that were acknowledged, and are neither listed at the end nor removed as old versions.
fn versions(history: &History, settings: Settings) -> Vec<Violation> {
    let Some(node) = history.finals.first() else { return Vec::new() };
    let mut violations = Vec::new();
    for operation in &history.operations {
        let Some(answer) = operation.answer() else { continue };
        let (kind, items, name, version) = match &operation.action {
            Action::Deploy { function, .. } => ("function", &node.functions, function, answer.version),
            Action::Push { model, version } => ("model", &node.models, model, Some(*version)),
            _ => continue,
        };
        let Some(version) = version else {
            violations.push(Violation { promise: KEPT, what: format!("a deploy of {name} has no version") });
            continue;
        };
        let is_kept = items.get(name).is_some_and(|item| is_kept(item, version, settings));
        if !is_kept {
            let versions = items.get(name).map(|item| item.versions.clone()).unwrap_or_default();
            let what = format!("version {version} of the {kind} {name} is lost; there are {versions:?}");
            violations.push(Violation { promise: KEPT, what });
        }
    }
    violations
}

/// Whether an item has the version, or enough newer versions for its removal. The active version
/// may be old, and counts.
fn is_kept(item: &ItemState, version: u32, settings: Settings) -> bool {
    let newer = item.versions.iter().filter(|listed| **listed > version).count();
    item.versions.contains(&version) || newer + 1 >= settings.versions_keep
}

/// Differences between the nodes.
fn agreement(finals: &[NodeState]) -> Vec<Violation> {
    let Some((first, others)) = finals.split_first() else { return Vec::new() };
    let mut violations = Vec::new();
    for (at, other) in others.iter().enumerate() {
        let mut differing = differences("function", &first.functions, &other.functions);
        differing.extend(differences("model", &first.models, &other.models));
        differing.extend(differences("object", &first.objects, &other.objects));
        differing.extend(differences("invocation", &first.invocations, &other.invocations));
        let violation = |what| Violation { promise: AGREED, what: format!("nodes 0 and {}: {what}", at + 1) };
        violations.extend(differing.into_iter().map(violation));
    }
    violations
}

fn differences<T: PartialEq + std::fmt::Debug>(
    kind: &str,
    one: &BTreeMap<String, T>,
    other: &BTreeMap<String, T>,
) -> Vec<String> {
    let mut found = Vec::new();
    for name in one.keys().chain(other.keys().filter(|name| !one.contains_key(*name))) {
        let left = one.get(name);
        let right = other.get(name);
        if left != right {
            found.push(format!("{kind} {name} is {left:?} and {right:?}"));
        }
    }
    found
}

#[cfg(test)]
mod tests;
