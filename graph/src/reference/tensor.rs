//! Tensors of the reference interpreter: on the heap, in the widest type of their lane.

use crate::TensorType;
use crate::ir::NumberType;
use half::{bf16, f16};
use std::sync::Arc;
use weir_types::ElementType;

/// Elements of a value with their type. Cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceTensor {
    tensor: TensorType,
    data: ReferenceData,
}

/// Elements in row-major order, each representable in the element type.
#[derive(Debug, Clone, PartialEq)]
pub enum ReferenceData {
    /// Elements of a floating-point type.
    Floats(Arc<Vec<f32>>),
    /// Elements of an integer type, or booleans, which are 0 or 1.
    Integers(Arc<Vec<i64>>),
}

impl ReferenceTensor {
    /// Make a tensor of floats, rounded to the element type, or truncated if that is an integer
    /// type. Missing elements are 0.
    #[must_use]
    pub fn floats(tensor: TensorType, mut data: Vec<f32>) -> Self {
        if NumberType::for_element_type(tensor.element_type()) == NumberType::Integer {
            let integer = |float: &f32| match tensor.element_type() {
                ElementType::Bool => i64::from(*float != 0.0),
                _ => *float as i64,
            };
            let integers = data.iter().map(integer).collect();
            return Self::integers(tensor, integers);
        }
        data.resize(tensor.elements(), 0.0);
        if matches!(tensor.element_type(), ElementType::Fp16 | ElementType::Bf16) {
            data.iter_mut().for_each(|float| *float = round_to(tensor.element_type(), *float));
        }
        Self { tensor, data: ReferenceData::Floats(Arc::new(data)) }
    }

    /// Make a tensor of integers, wrapped to the element type, or converted if that is a
    /// floating-point type. Missing elements are 0.
    #[must_use]
    pub fn integers(tensor: TensorType, mut data: Vec<i64>) -> Self {
        if NumberType::for_element_type(tensor.element_type()) == NumberType::Float {
            let floats = data.iter().map(|integer| *integer as f32).collect();
            return Self::floats(tensor, floats);
        }
        data.resize(tensor.elements(), 0);
        if tensor.element_type() != ElementType::Int64 {
            data.iter_mut().for_each(|integer| *integer = wrap_to(tensor.element_type(), *integer));
        }
        Self { tensor, data: ReferenceData::Integers(Arc::new(data)) }
    }

    /// Decode little-endian elements; `None` if their number differs from the type's.
    #[must_use]
    pub fn from_bytes(tensor: TensorType, bytes: &[u8]) -> Option<Self> {
        use ElementType::{
            Bf16, Bool, Fp16, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64,
        };
        if bytes.len() != tensor.bytes() {
            return None;
        }
        let floats = |data| ReferenceData::Floats(Arc::new(data));
        let integers = |data| ReferenceData::Integers(Arc::new(data));
        let data = match tensor.element_type() {
            Fp32 => floats(read(bytes, f32::from_le_bytes)),
            Fp64 => floats(read(bytes, |bytes| f64::from_le_bytes(bytes) as f32)),
            Fp16 => floats(read(bytes, |bytes| f16::from_le_bytes(bytes).to_f32())),
            Bf16 => floats(read(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32())),
            Int64 => integers(read(bytes, i64::from_le_bytes)),
            Uint64 => integers(read(bytes, |bytes| u64::from_le_bytes(bytes) as i64)),
            Int32 => integers(read(bytes, |bytes| i32::from_le_bytes(bytes).into())),
            Uint32 => integers(read(bytes, |bytes| u32::from_le_bytes(bytes).into())),
            Int16 => integers(read(bytes, |bytes| i16::from_le_bytes(bytes).into())),
            Uint16 => integers(read(bytes, |bytes| u16::from_le_bytes(bytes).into())),
            Int8 => integers(read(bytes, |bytes| i8::from_le_bytes(bytes).into())),
            Uint8 => integers(read(bytes, |[byte]| byte.into())),
            Bool => integers(read(bytes, |[byte]| i64::from(byte != 0))),
            ElementType::Bytes => return None,
        };
        Some(Self { tensor, data })
    }

    /// Encode as little-endian elements.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            ReferenceData::Floats(floats) => match self.tensor.element_type() {
                ElementType::Fp64 => write(floats, |float| f64::from(float).to_le_bytes()),
                ElementType::Fp16 => write(floats, |float| f16::from_f32(float).to_le_bytes()),
                ElementType::Bf16 => write(floats, |float| bf16::from_f32(float).to_le_bytes()),
                _ => write(floats, f32::to_le_bytes),
            },
            ReferenceData::Integers(integers) => match self.tensor.element_type().size_bytes() {
                Some(8) => write(integers, i64::to_le_bytes),
                Some(4) => write(integers, |integer| (integer as i32).to_le_bytes()),
                Some(2) => write(integers, |integer| (integer as i16).to_le_bytes()),
                _ => write(integers, |integer| (integer as i8).to_le_bytes()),
            },
        }
    }

    /// Element type and dimensions.
    #[must_use]
    pub fn tensor(&self) -> &TensorType {
        &self.tensor
    }

    /// The elements.
    #[must_use]
    pub fn data(&self) -> &ReferenceData {
        &self.data
    }

    /// The elements of either lane, as floats.
    #[must_use]
    pub fn to_floats(&self) -> Vec<f32> {
        match &self.data {
            ReferenceData::Floats(floats) => floats.to_vec(),
            ReferenceData::Integers(integers) => integers.iter().map(|integer| *integer as f32).collect(),
        }
    }

    /// The elements as integers, if they are integers.
    #[must_use]
    pub fn as_integers(&self) -> Option<&[i64]> {
        match &self.data {
            ReferenceData::Floats(_) => None,
            ReferenceData::Integers(integers) => Some(integers),
        }
    }

    /// The same elements under other dimensions; `None` if the number of elements differs.
    #[must_use]
    pub fn reshaped(&self, dims: &[usize]) -> Option<Self> {
        Some(Self { tensor: self.tensor.reshaped(dims)?, data: self.data.clone() })
    }

    /// The same tensor, converted to another element type.
    #[must_use]
    pub fn in_elements(&self, element_type: ElementType) -> Option<Self> {
        if element_type == self.tensor.element_type() {
            return Some(self.clone());
        }
        let tensor = self.tensor.with_elements(element_type).ok()?;
        Some(match &self.data {
            ReferenceData::Floats(floats) => Self::floats(tensor, floats.to_vec()),
            ReferenceData::Integers(integers) => Self::integers(tensor, integers.to_vec()),
        })
    }
}

/// Round to the nearest float of the type.
pub(super) fn round_to(element_type: ElementType, float: f32) -> f32 {
    match element_type {
        ElementType::Fp16 => f16::from_f32(float).to_f32(),
        ElementType::Bf16 => bf16::from_f32(float).to_f32(),
        _ => float,
    }
}

/// Keep as many of the lowest bits as the type has.
pub(super) fn wrap_to(element_type: ElementType, integer: i64) -> i64 {
    match element_type {
        ElementType::Bool => i64::from(integer != 0),
        ElementType::Int8 => (integer as i8).into(),
        ElementType::Uint8 => (integer as u8).into(),
        ElementType::Int16 => (integer as i16).into(),
        ElementType::Uint16 => (integer as u16).into(),
        ElementType::Int32 => (integer as i32).into(),
        ElementType::Uint32 => (integer as u32).into(),
        _ => integer,
    }
}

fn read<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| element(*bytes)).collect()
}

fn write<const N: usize, T: Copy>(elements: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    elements.iter().flat_map(|element| bytes(*element)).collect()
}
