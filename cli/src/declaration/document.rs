//! Files of a declaration: YAML, and therefore also JSON.

use super::declared::DeclaredAliases;
use super::names::with_nearest;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::path::PathBuf;
use weir_types::api::TriggerSpec;
use weir_types::{
    Autosize, Batching, ContentHash, Cost, DeviceChoice, Limits, ModelRef, Name, ObjectGrants, Precision,
    Reuse, SecretGrants,
};

/// A document of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Document {
    pub(super) models: Table<ModelEntry>,
    pub(super) functions: Table<FunctionEntry>,
    pub(super) workflows: Table<WorkflowEntry>,
    pub(super) triggers: Table<TriggerSpec>,
}

/// A function. It has one of `component`, `project` and `digest`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FunctionEntry {
    pub(super) component: Option<PathBuf>,
    pub(super) project: Option<PathBuf>,
    pub(super) digest: Option<ContentHash>,
    pub(super) canary: Option<CanaryEntry>,
    pub(super) aliases: Option<DeclaredAliases>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) models: Option<Vec<ModelRef>>,
    pub(super) secrets: Option<SecretGrants>,
    pub(super) outbound_hosts: Option<Vec<String>>,
    pub(super) objects: Option<ObjectGrants>,
    pub(super) idempotent: Option<bool>,
    pub(super) public: Option<bool>,
    pub(super) cache_ttl_ms: Option<u64>,
    pub(super) reuse: Option<ReuseEntry>,
    pub(super) slo_ms: Option<u64>,
    pub(super) cost_slo: Option<Cost>,
    pub(super) limits: Option<Limits>,
}

/// The key `reuse`: `true`, `false` or a table of bounds.
#[derive(Debug)]
pub(super) struct ReuseEntry(pub(super) Option<Reuse>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CanaryEntry {
    pub(super) percent: u8,
    pub(super) promote_after_ms: Option<u64>,
}

/// A model. It has one of `file` and `digest`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub(super) file: Option<PathBuf>,
    pub(super) digest: Option<ContentHash>,
    pub(super) labels: Option<LabelsEntry>,
    pub(super) aliases: Option<DeclaredAliases>,
    pub(super) slots: Option<u32>,
    pub(super) device: DeviceChoice,
    pub(super) precision: Precision,
    pub(super) slo_ms: Option<u64>,
    pub(super) cost_slo: Option<Cost>,
    pub(super) batching: Batching,
    pub(super) autosize: Option<Autosize>,
    pub(super) cache_ttl_ms: Option<u64>,
    pub(super) keep_alive_ms: Option<u64>,
    pub(super) copies_min: u32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected labels: a file, a list, or a table with either for each output")]
pub(super) enum LabelsEntry {
    OnlyOutput(LabelsSource),
    ByOutput(BTreeMap<String, LabelsSource>),
}

/// Labels of an output.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum LabelsSource {
    /// A file with a label per line.
    File(PathBuf),
    List(Vec<String>),
}

/// A workflow. It has one of `file` and `document`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WorkflowEntry {
    pub(super) file: Option<PathBuf>,
    pub(super) document: Option<weir_workflow::Document>,
    pub(super) aliases: Option<DeclaredAliases>,
    pub(super) slo_ms: Option<NonZeroU64>,
    pub(super) cost_slo: Option<Cost>,
    #[serde(default)]
    pub(super) keep_versions: bool,
}

/// Entries with unique names.
#[derive(Debug)]
pub(super) struct Table<T>(pub(super) BTreeMap<Name, T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Table<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of entries by name")
            }
            fn visit_unit<E>(self) -> Result<Table<T>, E> {
                Ok(Table::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<Name>()? {
                    if entries.contains_key(&name) {
                        return Err(A::Error::custom(format!("`{name}` is listed twice")));
                    }
                    let entry = map.next_value()?;
                    entries.insert(name, entry);
                }
                Ok(Table(entries))
            }
        }
        from.deserialize_any(Entries(PhantomData))
    }
}

impl<'de> Deserialize<'de> for ReuseEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        weir_types::reuse(from).map(Self)
    }
}

impl Document {
    /// Parses all documents of a file. Errors begin with `label`, the line and the column.
    pub(super) fn parse(text: &str, label: &str) -> Result<Vec<Self>, String> {
        let documents = yaml_serde::Deserializer::from_str(text);
        let documents: Result<Vec<_>, _> = documents.map(Option::<Self>::deserialize).collect();
        let documents = documents.map_err(|error| described(&error, label))?;
        Ok(documents.into_iter().flatten().collect())
    }
}

fn described(error: &yaml_serde::Error, label: &str) -> String {
    let text = error.to_string();
    match error.location() {
        Some(at) => {
            let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
            format!("{label}:{}:{}: {}", at.line(), at.column(), with_nearest(message))
        }
        None => format!("{label}: {}", with_nearest(&text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_may_be_yaml_of_several_documents_or_json() {
        let parse = |text: &str| Document::parse(text, "x").unwrap();
        let yaml = parse("functions:\n  f: {component: a.wasm, reuse: true}\n---\nmodels:\n---\n");
        assert_eq!(yaml.len(), 2);
        let reuse = &yaml[0].functions.0.values().next().unwrap().reuse;
        assert_eq!(reuse.as_ref().unwrap().0, Some(Reuse::default()));
        let json = parse(r#"{"models": {"m": {"file": "m.onnx", "batching": {"mode": "off"}}}}"#);
        assert_eq!(json[0].models.0.len(), 1);
        assert!(parse("# nothing\n").is_empty());
    }

    #[test]
    fn errors_have_place_path_and_the_nearest_name() {
        for (text, expected) in [
            ("fuctions: {}\n", "x:1:1: unknown field `fuctions`; did you mean `functions`?"),
            (
                "functions:\n  f:\n    component: a\n    limits:\n      deadline: 5\n",
                "x:5:7: functions.f.limits: unknown field `deadline`; did you mean `deadline_ms`?",
            ),
            ("functions:\n  f: {component: a}\n  f: {component: b}\n", "`f` is listed twice"),
            ("models:\n  m: {slots: many}\n", "x:2:14: models.m.slots: invalid type: string \"many\""),
            ("models:\n  M: {}\n", "x:2:3: models: "),
            ("models:\n  m: {labels: 7}\n", "x:2:6: models.m: expected labels: a file, a list"),
            ("functions: []\n", "x:1:12: functions: invalid type: sequence"),
            ("functions: {\n", "x:2:1: did not find expected node content"),
            (
                "workflows:\n  w: {document: {inputs: {}, step: {}}}\n",
                "unknown field `step`; did you mean `steps`?",
            ),
        ] {
            let error = Document::parse(text, "x").map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }
}
