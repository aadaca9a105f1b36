//! What a tensor is, without its bytes.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $bytes:expr;)*) => {
        /// The element types of the Open Inference Protocol, version 2. Serialised by the protocol's names (`FP32`, `INT64`, ...).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ElementType {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ElementType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The protocol's name for it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bytes per element, or none for [`ElementType::Bytes`], whose elements vary.
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
    /// Byte strings, each behind its length as 4 little-endian bytes.
    Bytes = "BYTES", None;
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The most dimensions a tensor may have.
const RANK_MAX: usize = 16;

/// The size of each dimension of a tensor, outermost first. Empty for a scalar. At most 16 dimensions, whose product fits in 63 bits.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Shape(SmallVec<[u32; 6]>);

/// Why dimensions are not a [`Shape`], or data does not fit one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// More than 16 dimensions.
    #[error("a tensor has at most {RANK_MAX} dimensions, not {0}")]
    TooManyDimensions(usize),
    /// The element count overflows.
    #[error("the dimensions {0:?} multiply to more elements than can exist")]
    TooManyElements(Vec<u32>),
    /// The data is not as long as shape and type require.
    #[error("{element_type} of shape {shape} takes {expected_bytes} bytes, not {actual_bytes}")]
    WrongLength {
        /// The element type.
        element_type: ElementType,
        /// The shape.
        shape: Shape,
        /// What they require.
        expected_bytes: u64,
        /// What was given.
        actual_bytes: u64,
    },
    /// The data of a `BYTES` tensor does not hold as many strings as its shape says.
    #[error("BYTES of shape {shape} takes {expected} length-prefixed strings: {why}")]
    BadStrings {
        /// The shape.
        shape: Shape,
        /// How many strings it says.
        expected: u64,
        /// What is wrong with the data.
        why: &'static str,
    },
}

impl Shape {
    /// Check `dimensions` and make them a shape.
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

    /// How many elements a tensor of this shape has.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.0.iter().map(|&d| u64::from(d)).product()
    }

    /// Check that `data` is a tensor of this shape.
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
        // Each string costs at least its four length bytes, so the data bounds this loop, whatever the shape says.
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
    /// The name by which a run refers to it.
    pub name: String,
    /// The type of its elements.
    pub datatype: ElementType,
    /// The size of each dimension, outermost first; none where it may differ from run to run.
    pub shape: Vec<Option<u32>>,
}

impl Port {
    /// Whether a tensor of this type and shape may go in here.
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

/// What a model or tensor function takes and gives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// What a run must be given.
    pub inputs: Vec<Port>,
    /// What a run can give back.
    pub outputs: Vec<Port>,
}

impl Signature {
    /// Whether the first dimension of everything that goes in and out may vary, so that it can be the number of items.
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
