//! Workflow documents: TOML or JSON of the same structure. `docs/reference/workflows.md` is the
//! reference.

use crate::combine::Combiner;
use crate::condition::Condition;
use crate::tensor_type::TensorSpec;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;
use weir_types::{Cost, ModelRef};

/// Maximum size of a document.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of steps of a workflow.
pub const STEPS_MAX: usize = 64;
/// Maximum number of inputs, and of outputs, of a workflow or a step.
pub const PORTS_MAX: usize = 64;
/// Maximum length of a step, input or output name, in bytes.
pub const NAME_LEN_MAX: usize = 128;

/// A workflow as written. A [`Plan`](crate::Plan) interprets it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// A description for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Maximum duration of a call in milliseconds, at least 1; a call that would take longer is
    /// rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<NonZeroU64>,
    /// Maximum cost of a call's device time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// The workflow's inputs.
    pub inputs: NamedTable<TensorSpec>,
    /// The workflow's steps, by name. Their order follows from the tensors that they read.
    pub steps: NamedTable<Step>,
    /// The workflow's outputs, and the source of each.
    pub outputs: NamedTable<TensorSource>,
}

/// A step. Exactly one of `run`, `combine` and `split` defines its action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A model, tensor function or workflow to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<ModelRef>,
    /// For `run`: the source of each input.
    #[serde(default, skip_serializing_if = "NamedTable::is_empty")]
    pub inputs: NamedTable<TensorSource>,
    /// For `run`: the types of the outputs. Required for a tensor function; for a model, the types
    /// may be more specific than the model's.
    #[serde(default, skip_serializing_if = "NamedTable::is_empty")]
    pub outputs: NamedTable<TensorSpec>,
    /// How to combine the tensors listed in `of` into one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine: Option<Combiner>,
    /// For `combine`: the tensors to combine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<TensorSource>,
    /// The tensor to split along its first dimension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<TensorSource>,
    /// For `split`: the number of parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// Run the step only if this condition holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Run the step only if this condition does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<Condition>,
    /// For `run`: hedge the step. A second copy starts if the first takes unusually long, and the
    /// first response wins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hedge: bool,
}

/// The source of a tensor: `input` of the workflow, `step.output`, or `step` alone if the step has
/// one output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TensorSource {
    /// The name of the step or of the workflow's input.
    pub of: String,
    /// The step's output.
    pub output: Option<String>,
}

/// Entries with unique names: a table with a repeated name is rejected, in JSON as in TOML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NamedTable<T>(BTreeMap<String, T>);

/// Why bytes are not a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The document is too large.
    #[error("a workflow has at most {DOCUMENT_BYTES_MAX} bytes, this one has {0}")]
    TooLarge(usize),
    /// The document is not UTF-8 text.
    #[error("a workflow is text in UTF-8: {0}")]
    NotText(#[from] std::str::Utf8Error),
    /// The document is neither TOML nor JSON of the right structure.
    #[error("the workflow cannot be read: {0}")]
    Malformed(String),
}

impl Document {
    /// Parses JSON if the text starts with a brace, else TOML, which cannot start with one.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(DocumentError::TooLarge(bytes.len()));
        }
        let text = std::str::from_utf8(bytes)?;
        if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| DocumentError::Malformed(error.to_string()))
        } else {
            toml::from_str(text)
                .map_err(|error| DocumentError::Malformed(error.to_string().trim_end().to_owned()))
        }
    }
}

impl TensorSource {
    /// An output of a step.
    pub(crate) fn new(step: &str, output: &str) -> Self {
        Self { of: step.to_owned(), output: Some(output.to_owned()) }
    }
}

impl FromStr for TensorSource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (of, output) = match text.split_once('.') {
            None => (text, None),
            Some((of, output)) => (of, Some(output.to_owned())),
        };
        if of.is_empty() || output.as_deref() == Some("") {
            return Err(format!("{text:?} is no source: INPUT, STEP or STEP.OUTPUT"));
        }
        Ok(Self { of: of.to_owned(), output })
    }
}

impl TryFrom<String> for TensorSource {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TensorSource> for String {
    fn from(source: TensorSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for TensorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of)?;
        self.output.as_ref().map_or(Ok(()), |output| write!(f, ".{output}"))
    }
}

impl<T> NamedTable<T> {
    /// Whether the table has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The entry with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.get(name)
    }

    /// The entries in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<T> Default for NamedTable<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> FromIterator<(String, T)> for NamedTable<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NamedTable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = NamedTable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedTable<T>, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} is there twice")));
            }
            let value = map.next_value()?;
            entries.insert(name, value);
        }
        Ok(NamedTable(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = r#"
        [inputs]
        image = "FP32[n, 64]"
        [steps.a]
        run = "digits:2"
        inputs = { x = "image" }
        when = "max(b.p) < 0.5"
        [steps.b]
        combine = "mean"
        of = ["a", "c.y:0.z"]
        [outputs]
        p = "b"
    "#;

    #[test]
    fn toml_and_json_documents_are_equivalent() {
        let document = Document::parse(TOML.as_bytes()).unwrap();
        let json = serde_json::to_vec(&document).unwrap();
        assert_eq!(Document::parse(&json).unwrap(), document);
        let of = &document.steps.get("b").unwrap().of;
        assert_eq!((of[1].of.as_str(), of[1].output.as_deref()), ("c", Some("y:0.z")));
    }

    #[test]
    fn unreadable_documents_are_errors_with_a_reason() {
        for (text, why) in [
            ("", "missing field `inputs`"),
            ("\"x\"", "expected"),
            ("{", "EOF"),
            ("{\"inputs\":{},\"steps\":{},\"outputs\":{},\"extra\":1}", "unknown field `extra`"),
            (
                "{\"inputs\":{\"a\":\"FP32[]\",\"a\":\"FP32[]\"},\"steps\":{},\"outputs\":{}}",
                "\"a\" is there twice",
            ),
            ("slo_ms = 0\ninputs = {}\nsteps = {}\noutputs = {}", "nonzero"),
            ("cost_slo = -1\ninputs = {}\nsteps = {}\noutputs = {}", "-1"),
            ("inputs = {}\noutputs = {}\nsteps.a.run = \"x\"\nsteps.a.run = \"y\"", "duplicate key"),
            ("inputs = { a = \"FP33[1]\" }\nsteps = {}\noutputs = {}", "FP33"),
            ("inputs = {}\nsteps = {}\noutputs = { a = \".b\" }", "is no source"),
            ("inputs = {}\nsteps = { a = { run = \"../x\" } }\noutputs = {}", "is not a model reference"),
            ("inputs = {}\nsteps = { a = { combine = \"sum\" } }\noutputs = {}", "unknown variant `sum`"),
        ] {
            let error = Document::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(matches!(Document::parse(&[0xFF; 4]), Err(DocumentError::NotText(_))));
        let long = vec![b' '; DOCUMENT_BYTES_MAX + 1];
        assert_eq!(Document::parse(&long), Err(DocumentError::TooLarge(long.len())));
        // Deep nesting must not overflow the parser's stack.
        assert!(Document::parse("{\"inputs\":".repeat(5_000).as_bytes()).is_err());
        assert!(Document::parse(format!("a = {}", "[".repeat(20_000)).as_bytes()).is_err());
    }
}
