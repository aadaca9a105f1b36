//! Tensors as this crate uses them: borrowed, possibly without data.

use weir_types::{ElementType, Shape};

/// A borrowed tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The type of its elements.
    pub datatype: ElementType,
    /// The size of each dimension.
    pub shape: &'a Shape,
    /// The elements, little-endian, without gaps. Empty if the tensor is elsewhere, which a
    /// [handed-on](crate::ReadyStep::handed_on) tensor may be.
    pub data: &'a [u8],
}

/// A handle to a tensor, passed from step to step. Cheap to clone.
pub trait TensorHandle: Clone {
    /// The tensor. A [`Run`](crate::Run) reads its data only to evaluate conditions.
    fn view(&self) -> TensorView<'_>;
}

impl TensorView<'_> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shape.element_count()
    }

    /// Whether the tensor has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as numbers; `None` if their type is not numeric.
    #[must_use]
    pub fn numbers(&self) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
        macro_rules! numbers {
            ($type:ty) => {
                Some(Box::new(
                    self.data.as_chunks().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes) as f64),
                ))
            };
        }
        match self.datatype {
            ElementType::Uint8 => numbers!(u8),
            ElementType::Uint16 => numbers!(u16),
            ElementType::Uint32 => numbers!(u32),
            ElementType::Uint64 => numbers!(u64),
            ElementType::Int8 => numbers!(i8),
            ElementType::Int16 => numbers!(i16),
            ElementType::Int32 => numbers!(i32),
            ElementType::Int64 => numbers!(i64),
            ElementType::Fp32 => numbers!(f32),
            ElementType::Fp64 => numbers!(f64),
            ElementType::Bool | ElementType::Fp16 | ElementType::Bf16 | ElementType::Bytes => None,
        }
    }
}

/// Whether conditions support elements of this type.
pub(crate) fn is_number(datatype: ElementType) -> bool {
    !matches!(datatype, ElementType::Bool | ElementType::Fp16 | ElementType::Bf16 | ElementType::Bytes)
}
