//! Plans as text and as JSON.

use super::declared::Kind;
use super::fields::FieldChange;
use super::plan::{Action, Plan, Step};
use crate::output::{size, table};
use serde::Serialize;
use serde_json::Value;

/// Longest value in a text, in characters.
const VALUE_CHARS_MAX: usize = 60;

/// A plan as `weir diff --json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct PlanReport<'a> {
    pub(crate) changes: &'a [Step],
    /// Number of declared items that are as declared.
    pub(crate) unchanged: usize,
}

impl<'a> PlanReport<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        Self { changes: &plan.steps, unchanged: plan.unchanged }
    }

    /// Table of the changes, with a line for each setting, and their numbers.
    pub(crate) fn text(&self) -> String {
        let summary = self.summary();
        if self.changes.is_empty() {
            return summary;
        }
        let rows = self.changes.iter().flat_map(rows);
        format!("{}\n{summary}", table(["CHANGE", "KIND", "NAME", "DETAILS"], rows))
    }

    fn summary(&self) -> String {
        let count = |action| self.changes.iter().filter(|step| step.action == action).count();
        let counts: Vec<String> = [
            (count(Action::Create), "to create"),
            (count(Action::Update) + count(Action::Canary) + count(Action::Promote), "to update"),
            (count(Action::Delete), "to delete"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        let counts = if counts.is_empty() { "no differences".to_owned() } else { counts.join(", ") };
        format!("{counts}; {} unchanged", self.unchanged)
    }
}

/// The lines of a step: each changed setting on a line.
fn rows(step: &Step) -> Vec<[String; 4]> {
    let upload = match (step.kind, step.upload_bytes) {
        (Kind::Workflow, _) | (_, 0) => None,
        (_, bytes) => Some(format!("sends {}", size(bytes))),
    };
    let details = step.fields.iter().map(shown).chain(upload);
    let details: Vec<String> = details.collect();
    let first = details.first().cloned().unwrap_or_default();
    let head = [step.action.as_str().to_owned(), step.kind.to_string(), step.name.to_string(), first];
    let rest = details.into_iter().skip(1);
    let rest = rest.map(|detail| [String::new(), String::new(), String::new(), detail]);
    std::iter::once(head).chain(rest).collect()
}

fn shown(FieldChange { field, from, to }: &FieldChange) -> String {
    format!("{field}: {} -> {}", value(from), value(to))
}

fn value(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.char_indices().nth(if is_hash { 12 } else { VALUE_CHARS_MAX }) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plans_are_tables_with_numbers() {
        let step = |action, kind, name: &str, fields, upload_bytes| Step {
            kind,
            name: name.parse().unwrap(),
            action,
            fields,
            upload_bytes,
            of: None,
        };
        let changed = vec![
            FieldChange::new("component", "a".repeat(64), "b".repeat(64)),
            FieldChange::new("slo_ms", (), 5),
        ];
        let steps = vec![
            step(Action::Create, Kind::Model, "m", vec![], 2048),
            step(Action::Update, Kind::Function, "f", changed, 1024),
            step(Action::Delete, Kind::Workflow, "w", vec![], 0),
        ];
        let plan = Plan { steps, unchanged: 4 };
        assert_eq!(
            PlanReport::new(&plan).text(),
            "CHANGE   KIND       NAME   DETAILS\n\
             create   model      m      sends 2.00 KiB\n\
             update   function   f      component: aaaaaaaaaaaa... -> bbbbbbbbbbbb...\n\
             \u{20}                          slo_ms: - -> 5\n\
             \u{20}                          sends 1.00 KiB\n\
             delete   workflow   w\n\
             1 to create, 1 to update, 1 to delete; 4 unchanged"
        );
        let json = serde_json::to_value(PlanReport::new(&plan)).unwrap();
        assert_eq!(
            json["changes"][1],
            json!({"kind": "function", "name": "f", "action": "update", "upload_bytes": 1024, "fields": [
                {"field": "component", "from": "a".repeat(64), "to": "b".repeat(64)},
                {"field": "slo_ms", "from": null, "to": 5},
            ]})
        );
        let none = Plan { steps: vec![], unchanged: 2 };
        assert_eq!(PlanReport::new(&none).text(), "no differences; 2 unchanged");
    }
}
