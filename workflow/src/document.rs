//! What an author writes: TOML or JSON of one shape. `docs/workflows.md` is its reference.

use crate::combine::Combiner;
use crate::condition::Condition;
use crate::tensor_type::TensorType;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::str::FromStr;
use weir_types::{Cost, ModelRef};

/// The largest document.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// The most steps of one workflow.
pub const STEPS_MAX: usize = 64;
/// The most inputs and the most outputs, of a workflow and of a step.
pub const PORTS_MAX: usize = 64;
/// The longest name of a step, an input or an output, in bytes.
pub const NAME_LEN_MAX: usize = 128;

/// A workflow as it is written. What it means is a [`Plan`](crate::Plan)'s business.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What it is for, in its author's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How long a call may take, in milliseconds, at least 1; one that would take longer is turned away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_ms: Option<NonZeroU64>,
    /// What the device time of a call may cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_slo: Option<Cost>,
    /// What it takes.
    pub inputs: Table<TensorType>,
    /// What it does, by the names of its steps. Their order follows from what each reads.
    pub steps: Table<Step>,
    /// What it gives, and where that comes from.
    pub outputs: Table<Source>,
}

/// One step: exactly one of `run`, `combine` and `split` says what it does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A model, tensor function or workflow to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<ModelRef>,
    /// For `run`: what each of its inputs is given.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub inputs: Table<Source>,
    /// For `run`: what it gives. A tensor function has to say; of a model it may say more than the model does.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub outputs: Table<TensorType>,
    /// How to make one tensor of those listed in `of`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine: Option<Combiner>,
    /// For `combine`: the tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Source>,
    /// A tensor to take apart along its first dimension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Source>,
    /// For `split`: into how many parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// Take the step only if this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Take the step only if this does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<Condition>,
    /// For `run`: start it a second time where it takes unusually long, and take the first answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hedge: bool,
}

/// Where a tensor comes from: `input` of the workflow, `step.output`, or `step` alone where that has one output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Source {
    /// The step, or the workflow's input.
    pub of: String,
    /// Which of the step's outputs.
    pub output: Option<String>,
}

/// Named entries, each name once: a table that has one twice is refused, in JSON as in TOML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Table<T>(BTreeMap<String, T>);

/// Why bytes are no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// They are too many.
    #[error("a workflow has at most {DOCUMENT_BYTES_MAX} bytes, this one has {0}")]
    TooLarge(usize),
    /// They are not text.
    #[error("a workflow is text in UTF-8: {0}")]
    NotText(#[from] std::str::Utf8Error),
    /// They are neither TOML nor JSON of the right shape.
    #[error("the workflow cannot be read: {0}")]
    Malformed(String),
}

impl Document {
    /// Read JSON, which begins with a brace, or TOML, which cannot.
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

impl Source {
    /// An output of a step that goes by name.
    pub(crate) fn of(step: &str, output: &str) -> Self {
        Self { of: step.to_owned(), output: Some(output.to_owned()) }
    }
}

impl FromStr for Source {
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

impl TryFrom<String> for Source {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Source> for String {
    fn from(source: Source) -> Self {
        source.to_string()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of)?;
        self.output.as_ref().map_or(Ok(()), |output| write!(f, ".{output}"))
    }
}

impl<T> Table<T> {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The entry called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.get(name)
    }

    /// The entries in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> FromIterator<(String, T)> for Table<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = Table<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table<T>, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} is there twice")));
            }
            let value = map.next_value()?;
            entries.insert(name, value);
        }
        Ok(Table(entries))
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
    fn toml_and_json_say_the_same() {
        let document = Document::parse(TOML.as_bytes()).unwrap();
        let json = serde_json::to_vec(&document).unwrap();
        assert_eq!(Document::parse(&json).unwrap(), document);
        let of = &document.steps.get("b").unwrap().of;
        assert_eq!((of[1].of.as_str(), of[1].output.as_deref()), ("c", Some("y:0.z")));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
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
        // As deep as a parser may be made to go.
        assert!(Document::parse("{\"inputs\":".repeat(5_000).as_bytes()).is_err());
        assert!(Document::parse(format!("a = {}", "[".repeat(20_000)).as_bytes()).is_err());
    }
}
