//! Tensor metadata: element types, shapes and signatures.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $bytes:expr;)*) => {
        /// Element types of the Open Inference Protocol, version 2. Serialised by their protocol
        /// names (`FP32`, `INT64`, ...).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ElementType {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ElementType {
            /// All element types.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The protocol's name of the type.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bytes per element; `None` for [`ElementType::Bytes`], whose elements vary in length.
            #[must_use]
            pub const fn size_bytes(self) -> Option<usize> {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

element_types! {
    /// One byte, 0 or 1.
    Bool = "BOOL", Some(1);
    /// Unsigned, 1 byte.
    Uint8 = "UINT8", Some(1);
    /// Unsigned, 2 bytes.
    Uint16 = "UINT16", Some(2);
    /// Unsigned, 4 bytes.
    Uint32 = "UINT32", Some(4);
    /// Unsigned, 8 bytes.
    Uint64 = "UINT64", Some(8);
    /// Signed, 1 byte.
    Int8 = "INT8", Some(1);
    /// Signed, 2 bytes.
    Int16 = "INT16", Some(2);
    /// Signed, 4 bytes.
    Int32 = "INT32", Some(4);
    /// Signed, 8 bytes.
    Int64 = "INT64", Some(8);
    /// IEEE 754 binary16.
    Fp16 = "FP16", Some(2);
    /// bfloat16.
    Bf16 = "BF16", Some(2);
    /// IEEE 754 binary32.
    Fp32 = "FP32", Some(4);
    /// IEEE 754 binary64.
    Fp64 = "FP64", Some(8);
    /// Byte strings, each prefixed with its length as 4 little-endian bytes.
    Bytes = "BYTES", None;
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Largest number of dimensions of a tensor.
const RANK_MAX: usize = 16;

/// The size of each dimension of a tensor, outermost first. Empty for a scalar. At most 16
/// dimensions, whose product fits in 63 bits.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Shape(SmallVec<[u32; 6]>);

/// Reason why dimensions are not a [`Shape`], or why data does not fit a shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// More than 16 dimensions.
    #[error("a tensor has at most {RANK_MAX} dimensions, not {0}")]
    TooManyDimensions(usize),
    /// The element count overflows.
    #[error("the dimensions {0:?} multiply to more elements than can exist")]
    TooManyElements(Vec<u32>),
    /// The length of the data does not match the shape and type.
    #[error("{element_type} of shape {shape} takes {expected_bytes} bytes, not {actual_bytes}")]
    WrongLength {
        /// The element type.
        element_type: ElementType,
        /// The shape.
        shape: Shape,
        /// Length required by the shape and type.
        expected_bytes: u64,
        /// Length of the data.
        actual_bytes: u64,
    },
    /// The data of a `BYTES` tensor has a different number of strings than the shape.
    #[error("BYTES of shape {shape} takes {expected} length-prefixed strings: {why}")]
    BadStrings {
        /// The shape.
        shape: Shape,
        /// Number of strings required by the shape.
        expected: u64,
        /// Reason why the data is invalid.
        why: &'static str,
    },
}

impl Shape {
    /// Checks `dimensions` and creates a shape.
    pub fn new(dimensions: &[u32]) -> Result<Self, ShapeError> {
        if dimensions.len() > RANK_MAX {
            return Err(ShapeError::TooManyDimensions(dimensions.len()));
        }
        // Zero-sized dimensions must not hide an overflow of the others.
        dimensions
            .iter()
            .try_fold(1_i64, |count, &d| count.checked_mul(i64::from(d.max(1))))
            .ok_or_else(|| ShapeError::TooManyElements(dimensions.to_vec()))?;
        Ok(Self(SmallVec::from_slice(dimensions)))
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dimensions(&self) -> &[u32] {
        &self.0
    }

    /// Number of elements of a tensor of this shape.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.0.iter().map(|&d| u64::from(d)).product()
    }

    /// Checks that `data` is a tensor of this shape.
    pub fn check(&self, element_type: ElementType, data: &[u8]) -> Result<(), ShapeError> {
        let Some(size_bytes) = element_type.size_bytes() else { return self.check_strings(data) };
        let expected_bytes = self.element_count().saturating_mul(size_bytes as u64);
        if expected_bytes == data.len() as u64 {
            return Ok(());
        }
        Err(ShapeError::WrongLength {
            element_type,
            shape: self.clone(),
            expected_bytes,
            actual_bytes: data.len() as u64,
        })
    }

    fn check_strings(&self, mut data: &[u8]) -> Result<(), ShapeError> {
        let expected = self.element_count();
        let bad = |why| ShapeError::BadStrings { shape: self.clone(), expected, why };
        // Each string has at least its four length bytes, so the length of the data bounds this
        // loop.
        for _ in 0..expected {
            let (length, rest) =
                data.split_first_chunk::<4>().ok_or_else(|| bad("the data ends before the last one"))?;
            let length = u32::from_le_bytes(*length) as usize;
            data = rest.get(length..).ok_or_else(|| bad("a length goes past the end of the data"))?;
        }
        if data.is_empty() { Ok(()) } else { Err(bad("bytes are left over after the last one")) }
    }
}

impl TryFrom<Vec<u32>> for Shape {
    type Error = ShapeError;
    fn try_from(dimensions: Vec<u32>) -> Result<Self, ShapeError> {
        Self::new(&dimensions)
    }
}

impl From<Shape> for Vec<u32> {
    fn from(shape: Shape) -> Self {
        shape.0.to_vec()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_slice())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One input or output of a model or tensor function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the input or output.
    pub name: String,
    /// Element type.
    pub datatype: ElementType,
    /// Size of each dimension, outermost first; `None` for a variable dimension.
    pub shape: Vec<Option<u32>>,
}

impl Port {
    /// Whether the port accepts a tensor of this type and shape.
    #[must_use]
    pub fn accepts(&self, datatype: ElementType, shape: &Shape) -> bool {
        self.datatype == datatype
            && self.shape.len() == shape.dimensions().len()
            && self
                .shape
                .iter()
                .zip(shape.dimensions())
                .all(|(want, have)| want.is_none_or(|want| want == *have))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}[", self.name, self.datatype)?;
        for (i, dimension) in self.shape.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match dimension {
                Some(size) => write!(f, "{comma}{size}")?,
                None => write!(f, "{comma}?")?,
            }
        }
        f.write_str("]")
    }
}

/// Inputs and outputs of a model or tensor function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Required inputs.
    pub inputs: Vec<Port>,
    /// Available outputs.
    pub outputs: Vec<Port>,
}

impl Signature {
    /// Whether the first dimension of all inputs and outputs is variable, so that it can be the
    /// batch dimension.
    #[must_use]
    pub fn has_batch_dimension(&self) -> bool {
        let varies =
            |ports: &[Port]| !ports.is_empty() && ports.iter().all(|port| port.shape.first() == Some(&None));
        varies(&self.inputs) && varies(&self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn huge_dimensions_are_refused_even_behind_a_zero() {
        assert!(Shape::new(&[u32::MAX, u32::MAX, u32::MAX]).is_err());
        assert!(Shape::new(&[0, u32::MAX, u32::MAX, u32::MAX]).is_err());
        assert!(Shape::new(&[1; 17]).is_err());
        assert_eq!(Shape::new(&[]).unwrap().element_count(), 1);
    }

    #[test]
    fn strings_must_fill_their_data_exactly() {
        let shape = Shape::new(&[2]).unwrap();
        let two = b"\x01\0\0\0a\x00\0\0\0";
        assert_eq!(shape.check(ElementType::Bytes, two), Ok(()));
        assert!(shape.check(ElementType::Bytes, &two[..5]).is_err());
        assert!(shape.check(ElementType::Bytes, b"\xff\xff\xff\xffa").is_err());
        assert!(Shape::new(&[1]).unwrap().check(ElementType::Bytes, two).is_err());
    }

    proptest! {
        #[test]
        fn data_fits_exactly_one_length(dims in prop::collection::vec(0_u32..9, 0..4), extra in 0_usize..4) {
            let shape = Shape::new(&dims).unwrap();
            let data = vec![0; shape.element_count() as usize * 4 + extra];
            prop_assert_eq!(shape.check(ElementType::Fp32, &data).is_ok(), extra == 0);
        }
    }
}
