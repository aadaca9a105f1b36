//! Differences of settings, by the path of the setting.

use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A setting that differs. `null` stands for a setting that is not set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct FieldChange {
    /// Path of the setting, such as `limits.deadline_ms`.
    pub(crate) field: String,
    pub(crate) from: Value,
    pub(crate) to: Value,
}

/// Stands for a value that is not shown.
const HIDDEN: &str = "(hidden)";

impl FieldChange {
    pub(super) fn new(field: impl Into<String>, from: impl Serialize, to: impl Serialize) -> Self {
        let value = |of: Result<Value, serde_json::Error>| of.unwrap_or(Value::Null);
        Self {
            field: field.into(),
            from: value(serde_json::to_value(from)),
            to: value(serde_json::to_value(to)),
        }
    }

    /// A change of a value that may be a secret. The flags say whether there is a value.
    pub(super) fn hidden(field: String, from: bool, to: bool) -> Self {
        Self::new(field, from.then_some(HIDDEN), to.then_some(HIDDEN))
    }
}

/// The settings that differ between two manifests.
pub(super) fn changes<T: Serialize>(from: &T, to: &T) -> Vec<FieldChange> {
    let from = leaves(from);
    let to = leaves(to);
    let fields: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let change = |field: &String| {
        let before = from.get(field).cloned().unwrap_or(Value::Null);
        let after = to.get(field).cloned().unwrap_or(Value::Null);
        (before != after).then(|| FieldChange { field: field.clone(), from: before, to: after })
    };
    fields.into_iter().filter_map(change).collect()
}

/// The values of a manifest by their paths. Lists are values.
pub(super) fn leaves(of: &impl Serialize) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    collect(String::new(), serde_json::to_value(of).unwrap_or(Value::Null), &mut leaves);
    leaves
}

fn collect(path: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                collect(path, value, leaves);
            }
        }
        value => drop(leaves.insert(path, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_types::FunctionManifest;

    #[test]
    fn only_changed_settings_are_listed_with_their_paths() {
        let from = FunctionManifest { models: vec!["a".parse().unwrap()], ..FunctionManifest::default() };
        let mut to = FunctionManifest { slo_ms: Some(5), ..FunctionManifest::default() };
        to.limits.deadline_ms += 1;
        let deadline_ms = from.limits.deadline_ms;
        assert_eq!(
            changes(&from, &to),
            [
                FieldChange::new("limits.deadline_ms", deadline_ms, deadline_ms + 1),
                FieldChange::new("models", json!(["a"]), json!([])),
                FieldChange::new("slo_ms", (), 5),
            ]
        );
        assert_eq!(changes(&to, &to), []);
        assert_eq!(FieldChange::hidden("env.A".into(), false, true).from, Value::Null);
    }
}
