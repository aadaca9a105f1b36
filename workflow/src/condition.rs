//! Conditions of steps, such as `max(step.output) < 0.8`.

use crate::document::TensorSource;
use crate::value::TensorView;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Maximum number of elements that a condition reads, since it is evaluated between two steps.
pub const CONDITION_ELEMENTS_MAX: u64 = 65_536;

/// A condition of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Condition {
    /// Compares a measure of a tensor with a number.
    Compare {
        /// The measure of the tensor.
        measure: Measure,
        /// The tensor.
        source: TensorSource,
        /// The comparison.
        comparison: Comparison,
        /// The number to compare with.
        number: f64,
    },
    /// Holds for this fraction of calls, from 0 to 1, chosen at random.
    Chance(f64),
}

/// A function from a tensor to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Its only element.
    Element,
    /// Its largest element.
    Max,
    /// Its smallest element.
    Min,
    /// The minimum over rows (the last dimension) of the row's largest element: a classifier's
    /// confidence in its least certain prediction.
    Confidence,
}

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `==`
    Equal,
    /// `!=`
    Unequal,
}

const MEASURES: [(&str, Measure); 3] =
    [("max", Measure::Max), ("min", Measure::Min), ("confidence", Measure::Confidence)];
// An operator that is a prefix of another comes after it.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<", Comparison::Less),
    (">", Comparison::More),
];

impl Measure {
    /// Computes the measure. NaN counts as smaller than every other number. An error describes the
    /// problem with the tensor.
    pub fn evaluate(self, tensor: TensorView<'_>) -> Result<f64, String> {
        if tensor.len() > CONDITION_ELEMENTS_MAX {
            let len = tensor.len();
            return Err(format!("it has {len} elements, and a condition looks at {CONDITION_ELEMENTS_MAX}"));
        }
        if tensor.is_empty() {
            return Err("it has no elements".to_owned());
        }
        let numbers =
            tensor.numbers().ok_or_else(|| format!("{} elements are no numbers", tensor.datatype))?;
        let mut numbers = numbers.map(|number| if number.is_nan() { f64::NEG_INFINITY } else { number });
        let largest = |row: &[f64]| row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            Self::Element if tensor.len() != 1 => Err(format!(
                "it has {} elements, of which max(), min() or confidence() makes one number",
                tensor.len()
            )),
            Self::Element | Self::Max => Ok(numbers.fold(f64::NEG_INFINITY, f64::max)),
            Self::Min => Ok(numbers.fold(f64::INFINITY, f64::min)),
            Self::Confidence => {
                let row_len = tensor.shape.dimensions().last().map_or(1, |len| *len as usize);
                let numbers: Vec<_> = numbers.by_ref().collect();
                Ok(numbers.chunks(row_len).map(largest).fold(f64::INFINITY, f64::min))
            }
        }
    }
}

impl Comparison {
    /// Whether the comparison holds.
    #[must_use]
    #[expect(clippy::float_cmp, reason = "the workflow's author asked for an exact comparison")]
    pub fn holds(self, a: f64, b: f64) -> bool {
        match self {
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::More => a > b,
            Self::AtLeast => a >= b,
            Self::Equal => a == b,
            Self::Unequal => a != b,
        }
    }
}

impl FromStr for Condition {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            let text: String = text.chars().take(160).collect();
            format!("{text:?} is no condition, such as max(step.output) < 0.8: {why}")
        };
        if let Some(share) = text.trim().strip_prefix("chance(").and_then(|rest| rest.strip_suffix(')')) {
            let share = share.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
            return share.map(Self::Chance).ok_or_else(|| bad("a chance is a number from 0 to 1"));
        }
        // A source may contain operator characters, so the last operator counts.
        let found =
            COMPARISONS.iter().filter_map(|(sign, comparison)| Some((text.rfind(sign)?, sign, comparison)));
        let (at, sign, comparison) = found
            .max_by_key(|(at, sign, _)| (at + sign.len(), sign.len()))
            .ok_or_else(|| bad("it has none of < <= > >= == !="))?;
        let number = text[at + sign.len()..].trim().parse::<f64>().ok().filter(|number| number.is_finite());
        let number = number.ok_or_else(|| bad("a tensor is compared with a number"))?;
        let left = text[..at].trim();
        let (measure, source) =
            match left.split_once('(').and_then(|(name, rest)| Some((name, rest.strip_suffix(')')?))) {
                None => (Measure::Element, left),
                Some((name, source)) => {
                    let known = MEASURES.iter().find(|(known, _)| *known == name.trim());
                    (
                        known.ok_or_else(|| bad("tensors have a max(), a min() and a confidence()"))?.1,
                        source.trim(),
                    )
                }
            };
        let source = source.parse().map_err(|error: String| bad(&error))?;
        Ok(Self::Compare { measure, source, comparison: *comparison, number })
    }
}

impl TryFrom<String> for Condition {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Condition> for String {
    fn from(condition: Condition) -> Self {
        condition.to_string()
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (measure, source, comparison, number) = match self {
            Self::Chance(share) => return write!(f, "chance({share})"),
            Self::Compare { measure, source, comparison, number } => (measure, source, comparison, number),
        };
        match MEASURES.iter().find(|(_, known)| known == measure) {
            Some((name, _)) => write!(f, "{name}({source})")?,
            None => write!(f, "{source}")?,
        }
        let sign = COMPARISONS.iter().find(|(_, known)| known == comparison).map_or("", |(sign, _)| sign);
        write!(f, " {sign} {number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_types::{ElementType, Shape};

    fn measure(measure: Measure, shape: &[u32], values: &[f32]) -> Result<f64, String> {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = Shape::new(shape).unwrap();
        measure.evaluate(TensorView { datatype: ElementType::Fp32, shape: &shape, data: &data })
    }

    #[test]
    fn measures_compute_their_number() {
        let rows = [0.5, 0.25, 0.125, 0.75, f32::NAN, 0.0];
        assert_eq!(measure(Measure::Max, &[2, 3], &rows), Ok(0.75));
        assert_eq!(measure(Measure::Confidence, &[2, 3], &rows), Ok(0.5));
        assert_eq!(measure(Measure::Min, &[2, 3], &rows[..6]), Ok(f64::NEG_INFINITY));
        assert_eq!(measure(Measure::Element, &[1, 1], &[2.0]), Ok(2.0));
        assert_eq!(measure(Measure::Confidence, &[], &[2.0]), Ok(2.0));
        assert!(measure(Measure::Element, &[2], &[1.0, 2.0]).unwrap_err().contains("has 2 elements"));
        assert!(measure(Measure::Max, &[0], &[]).unwrap_err().contains("no elements"));
        let strings =
            TensorView { datatype: ElementType::Bytes, shape: &Shape::new(&[1]).unwrap(), data: &[0; 4] };
        assert!(Measure::Max.evaluate(strings).unwrap_err().contains("no numbers"));
        let many = vec![0.0; CONDITION_ELEMENTS_MAX as usize + 1];
        assert!(measure(Measure::Max, &[many.len() as u32], &many).is_err());
    }

    #[test]
    fn conditions_parse_and_reject_other_expressions() {
        for (text, printed) in [
            ("max(a.p)<0.8", "max(a.p) < 0.8"),
            (" confidence( a ) >= 1e-3 ", "confidence(a) >= 0.001"),
            ("label == 3", "label == 3"),
            ("a.x<y:0 != -2", "a.x<y:0 != -2"),
            ("chance( 0.25 )", "chance(0.25)"),
        ] {
            assert_eq!(text.parse::<Condition>().unwrap().to_string(), printed, "{text}");
        }
        for bad in [
            "",
            "a",
            "a <",
            "< 1",
            "sum(a) < 1",
            "a < b",
            "a < NaN",
            "a < inf",
            "chance(2)",
            "max() < 1",
            "a = 1",
        ] {
            assert!(bad.parse::<Condition>().is_err(), "{bad} was taken");
        }
    }

    proptest! {
        #[test]
        fn printed_condition_parses_to_itself(name in "[a-z]{1,8}(\\.[a-z:<=>/ ]{0,5}[a-z])?", measure in 0_usize..4, comparison in 0_usize..6, number in -1e6..1e6) {
            let condition = Condition::Compare {
                measure: [Measure::Element, Measure::Max, Measure::Min, Measure::Confidence][measure],
                source: name.parse().unwrap(),
                comparison: COMPARISONS[comparison].1,
                number,
            };
            prop_assert_eq!(condition.to_string().parse::<Condition>(), Ok(condition));
        }
    }
}
