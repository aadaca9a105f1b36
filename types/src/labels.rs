//! Labels: names of classes, which classification adds to the elements of a model's output.

use crate::{ElementType, Port};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Most labels of an output.
pub const LABELS_MAX: usize = 65_536;
/// Longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 1_024;
/// Size limit of all labels of a model, as JSON. The datastore keeps them with the manifest.
pub const LABELS_BYTES_MAX: usize = 512 << 10;

/// Labels of one output, in the order of the output's elements. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels(Arc<[Box<str>]>);

impl Labels {
    /// Reads a label per line. Empty lines at the end have no meaning; other empty lines are elements
    /// without a label.
    #[must_use]
    pub fn from_lines(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self(text.trim_end().lines().map(|line| line.trim_end().into()).collect())
    }

    /// The label of the element at `index`; `None` if the element has none.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        self.0.get(index).map(|label| &**label).filter(|label| !label.is_empty())
    }

    /// All labels, with empty texts for elements without a label.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|label| &**label)
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::<Box<str>>::deserialize(from).map(|labels| Self(labels.into()))
    }
}

/// Labels of a model. In a manifest: a list, for the model's only output, or a table with a list for
/// each labelled output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ModelLabels {
    /// Labels of the only output, as a client sends them. Stored models name their outputs.
    OnlyOutput(Labels),
    /// Labels by the name of the output.
    ByOutput(BTreeMap<String, Labels>),
}

impl Default for ModelLabels {
    fn default() -> Self {
        Self::ByOutput(BTreeMap::new())
    }
}

impl ModelLabels {
    /// Whether no output has labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::ByOutput(labels) if labels.is_empty())
    }

    /// The labels of an output.
    #[must_use]
    pub fn get(&self, output: &str) -> Option<&Labels> {
        match self {
            Self::OnlyOutput(_) => None,
            Self::ByOutput(labels) => labels.get(output),
        }
    }

    /// The labelled outputs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Labels)> {
        let by_output = match self {
            Self::OnlyOutput(_) => None,
            Self::ByOutput(labels) => Some(labels),
        };
        by_output.into_iter().flatten().map(|(output, labels)| (output.as_str(), labels))
    }

    /// Names the outputs of the labels, and checks that the labels fit the outputs of their model.
    pub fn for_outputs(self, outputs: &[Port]) -> Result<Self, LabelsError> {
        let names = || outputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        let by_output = match (self, outputs) {
            (Self::OnlyOutput(labels), [only]) => BTreeMap::from([(only.name.clone(), labels)]),
            (Self::OnlyOutput(_), _) => return Err(LabelsError::Ambiguous(names())),
            (Self::ByOutput(labels), _) => labels,
        };
        let bytes: usize = by_output.values().flat_map(Labels::iter).map(json_bytes).sum();
        if bytes > LABELS_BYTES_MAX {
            return Err(LabelsError::TooLarge(bytes));
        }
        for (name, labels) in &by_output {
            let port = outputs.iter().find(|port| port.name == *name);
            let port = port.ok_or_else(|| LabelsError::NoOutput(name.clone(), names()))?;
            check(port, labels).map_err(|defect| LabelsError::Output(name.clone(), defect))?;
        }
        Ok(Self::ByOutput(by_output))
    }
}

impl<'de> Deserialize<'de> for ModelLabels {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ListOrTable;
        impl<'de> Visitor<'de> for ListOrTable {
            type Value = ModelLabels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of labels, or a table with a list for each output")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, labels: A) -> Result<ModelLabels, A::Error> {
                Labels::deserialize(SeqAccessDeserializer::new(labels)).map(ModelLabels::OnlyOutput)
            }
            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<ModelLabels, A::Error> {
                BTreeMap::deserialize(MapAccessDeserializer::new(table)).map(ModelLabels::ByOutput)
            }
        }
        from.deserialize_any(ListOrTable)
    }
}

/// Size of a label in JSON, with quotes and comma. Labels with other escapes are refused.
fn json_bytes(label: &str) -> usize {
    let escaped = label.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    label.len() + escaped + 3
}

fn check(port: &Port, labels: &Labels) -> Result<(), LabelsDefect> {
    use ElementType::{Bf16, Bool, Bytes, Fp16};
    if let datatype @ (Bool | Fp16 | Bf16 | Bytes) = port.datatype {
        return Err(LabelsDefect::Type(datatype));
    }
    let count = labels.iter().len();
    if count == 0 {
        return Err(LabelsDefect::Empty);
    }
    if count > LABELS_MAX {
        return Err(LabelsDefect::TooMany(count));
    }
    if let Some(elements) = row_elements(port).filter(|elements| count as u64 > *elements) {
        return Err(LabelsDefect::MoreThanElements(count, elements));
    }
    for (index, label) in labels.iter().enumerate() {
        if label.len() > LABEL_BYTES_MAX {
            return Err(LabelsDefect::TooLong(index));
        }
        if label.chars().any(char::is_control) {
            return Err(LabelsDefect::Control(index));
        }
    }
    Ok(())
}

/// Number of elements that are classified together: of a row, or of a tensor with fewer than two
/// dimensions. `None` if it varies.
fn row_elements(port: &Port) -> Option<u64> {
    let row = if port.shape.len() < 2 { &port.shape[..] } else { &port.shape[1..] };
    row.iter().try_fold(1_u64, |elements, size| Some(elements.saturating_mul(u64::from((*size)?))))
}

/// Reason why labels do not fit a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// A list of labels names no output, and the model has several.
    #[error("the labels name no output, and the model has {0}; use labels.OUTPUT for one of them")]
    Ambiguous(String),
    /// The model has no such output.
    #[error("the labels are of an output {0:?}, and the model has {1}")]
    NoOutput(String, String),
    /// All labels together are too large.
    #[error("the labels take {0} bytes as JSON, and a model has at most {LABELS_BYTES_MAX}")]
    TooLarge(usize),
    /// The labels do not fit their output.
    #[error("labels of output {0:?}: {1}")]
    Output(String, LabelsDefect),
}

/// Reason why labels do not fit an output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsDefect {
    /// The output cannot be classified.
    #[error("classification is for numbers of 8 to 64 bits that JSON knows, and the output has {0}")]
    Type(ElementType),
    /// There are no labels.
    #[error("there are none; write one label per line")]
    Empty,
    /// There are too many labels.
    #[error("there are {0}, and an output has at most {LABELS_MAX}")]
    TooMany(usize),
    /// There are more labels than elements.
    #[error("there are {0}, and the output has {1} elements for each item; push the labels of this model")]
    MoreThanElements(usize, u64),
    /// A label is too long.
    #[error("label {0} has more than {LABEL_BYTES_MAX} bytes")]
    TooLong(usize),
    /// A label has a control character.
    #[error("label {0} has a control character")]
    Control(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, datatype: ElementType, shape: &[Option<u32>]) -> Port {
        Port { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn scores() -> [Port; 1] {
        [port("scores", ElementType::Fp32, &[None, Some(3)])]
    }

    fn only(text: &str) -> ModelLabels {
        ModelLabels::OnlyOutput(Labels::from_lines(text))
    }

    fn defect(outputs: &[Port], text: &str) -> LabelsDefect {
        match only(text).for_outputs(outputs) {
            Err(LabelsError::Output(_, defect)) => defect,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_labels_and_empty_lines_are_none() {
        let labels = Labels::from_lines("\u{feff}cat\r\n\nlong: dog \n\n\n");
        assert_eq!(labels.iter().collect::<Vec<_>>(), ["cat", "", "long: dog"]);
        let got: [_; 4] = std::array::from_fn(|index| labels.get(index));
        assert_eq!(got, [Some("cat"), None, Some("long: dog"), None]);
    }

    #[test]
    fn list_belongs_to_the_only_output() {
        let read = |json: &str| serde_json::from_str::<ModelLabels>(json);
        let list = read(r#"["a","b"]"#).unwrap();
        assert_eq!(list, only("a\nb"));
        let named = list.clone().for_outputs(&scores()).unwrap();
        assert_eq!(named, read(r#"{"scores":["a","b"]}"#).unwrap());
        assert_eq!(serde_json::to_string(&named).unwrap(), r#"{"scores":["a","b"]}"#);
        assert_eq!(named.get("scores").and_then(|labels| labels.get(1)), Some("b"));
        assert_eq!(named.clone().for_outputs(&scores()).as_ref(), Ok(&named));
        let [one] = scores();
        let two = [one, port("other", ElementType::Fp32, &[Some(9)])];
        assert_eq!(list.for_outputs(&two), Err(LabelsError::Ambiguous("scores, other".into())));
        assert!(named.for_outputs(&two).is_ok());
        for wrong in ["1", r#"["a",1]"#, r#"{"y":"a"}"#, "null"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_that_do_not_fit_their_output_are_refused() {
        assert_eq!(defect(&scores(), ""), LabelsDefect::Empty);
        assert_eq!(defect(&scores(), "a\nb\nc\nd"), LabelsDefect::MoreThanElements(4, 3));
        assert_eq!(defect(&scores(), "a\nb\u{7}"), LabelsDefect::Control(1));
        assert_eq!(defect(&scores(), &"a".repeat(LABEL_BYTES_MAX + 1)), LabelsDefect::TooLong(0));
        let texts = [port("y", ElementType::Bytes, &[None, Some(3)])];
        assert_eq!(defect(&texts, "a"), LabelsDefect::Type(ElementType::Bytes));
        let varies = [port("y", ElementType::Uint8, &[None])];
        assert!(only(&"a\n".repeat(LABELS_MAX)).for_outputs(&varies).is_ok());
        assert_eq!(defect(&varies, &"a\n".repeat(LABELS_MAX + 1)), LabelsDefect::TooMany(LABELS_MAX + 1));
        let other = ModelLabels::ByOutput(BTreeMap::from([("y".into(), Labels::from_lines("a"))]));
        let error = other.for_outputs(&scores()).unwrap_err();
        assert_eq!(error, LabelsError::NoOutput("y".into(), "scores".into()));
    }

    #[test]
    fn size_limit_counts_bytes_of_json() {
        let varies = [port("y", ElementType::Fp32, &[None, None])];
        for letter in ["a", "\"", "\\", "é"] {
            let escaped = serde_json::to_string(letter).unwrap().len() - 2;
            let label = letter.repeat(LABEL_BYTES_MAX / letter.len());
            let each = escaped * (LABEL_BYTES_MAX / letter.len()) + 3;
            let lines = |count| only(&format!("{label}\n").repeat(count));
            assert!(lines(LABELS_BYTES_MAX / each).for_outputs(&varies).is_ok(), "{letter}");
            let more = LABELS_BYTES_MAX / each + 1;
            assert_eq!(lines(more).for_outputs(&varies), Err(LabelsError::TooLarge(more * each)), "{letter}");
        }
    }
}
