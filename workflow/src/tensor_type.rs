//! Tensor types as written in workflows: `FP32[n, 3, ?]`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use weir_types::{ElementType, Port, Shape};

/// The element type of a tensor, and constraints on its shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TensorSpec {
    /// The type of the elements.
    pub datatype: ElementType,
    /// The dimensions, outermost first.
    pub dimensions: Vec<DimensionSpec>,
}

/// The size of one dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DimensionSpec {
    /// This size.
    Fixed(u32),
    /// A named size: equal everywhere in one run of the workflow.
    Named(String),
    /// Any size.
    Any,
}

impl TensorSpec {
    /// The type of a port.
    pub(crate) fn from_port(port: &Port) -> Self {
        let dimension = |size: &Option<u32>| size.map_or(DimensionSpec::Any, DimensionSpec::Fixed);
        Self { datatype: port.datatype, dimensions: port.shape.iter().map(dimension).collect() }
    }
}

impl FromStr for TensorSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let short = || text.chars().take(80).collect::<String>();
        let bad = |why: &str| format!("{:?} is no tensor's type, such as FP32[n, 3, ?]: {why}", short());
        let (datatype, rest) = text.split_once('[').ok_or_else(|| bad("it has no dimensions"))?;
        let inner = rest.strip_suffix(']').ok_or_else(|| bad("it does not end with ]"))?;
        let known = ElementType::ALL.iter().find(|known| known.as_str() == datatype.trim());
        let datatype = *known.ok_or_else(|| {
            let all: Vec<_> = ElementType::ALL.iter().map(|known| known.as_str()).collect();
            bad(&format!("the elements are one of {}", all.join(", ")))
        })?;
        let parts: Vec<_> = match inner.trim() {
            "" => Vec::new(),
            inner => inner.split(',').map(str::trim).collect(),
        };
        let dimensions = parts.into_iter().map(|part| {
            dimension(part).ok_or_else(|| bad("a dimension is a number, ? for any, or a lower-case name"))
        });
        let dimensions = dimensions.collect::<Result<Vec<_>, _>>()?;
        // The known dimensions must not exceed the maximum size of a shape.
        let sizes: Vec<_> = dimensions
            .iter()
            .map(|dimension| if let DimensionSpec::Fixed(size) = dimension { *size } else { 1 })
            .collect();
        Shape::new(&sizes).map_err(|error| bad(&error.to_string()))?;
        Ok(Self { datatype, dimensions })
    }
}

fn dimension(text: &str) -> Option<DimensionSpec> {
    if text == "?" {
        return Some(DimensionSpec::Any);
    }
    if let Ok(size) = text.parse() {
        return Some(DimensionSpec::Fixed(size));
    }
    let is_name = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.len() <= 32
        && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
    is_name.then(|| DimensionSpec::Named(text.to_owned()))
}

impl TryFrom<String> for TensorSpec {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TensorSpec> for String {
    fn from(tensor_type: TensorSpec) -> Self {
        tensor_type.to_string()
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.dimensions.iter().map(ToString::to_string).collect();
        write!(f, "{}[{}]", self.datatype, sizes.join(", "))
    }
}

impl fmt::Display for DimensionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Named(name) => f.write_str(name),
            Self::Any => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_tensor_types_parse_to_themselves() {
        for text in ["FP32[n, 3, ?]", "BYTES[]", "INT64[7]"] {
            assert_eq!(text.parse::<TensorSpec>().unwrap().to_string(), text);
        }
        assert_eq!("BOOL[ a_1,2 ]".parse::<TensorSpec>().unwrap().to_string(), "BOOL[a_1, 2]");
        for bad in ["", "FP32", "FP32[", "FP32[1", "FP32[-1]", "FP32[N]", "FP32[1,]", "fp32[1]", "FP32[1]]"] {
            assert!(bad.parse::<TensorSpec>().is_err(), "{bad} was taken");
        }
        let huge = "FP32[4294967295, 4294967295, n, 4294967295]".parse::<TensorSpec>().unwrap_err();
        assert!(huge.contains("more elements than can exist"), "{huge}");
    }
}
