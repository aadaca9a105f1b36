//! Tensors as this crate sees them: borrowed, or not at all.

use weir_types::{ElementType, Shape};

/// A tensor to look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The type of its elements.
    pub datatype: ElementType,
    /// The size of each dimension.
    pub shape: &'a Shape,
    /// Its elements, little-endian, without gaps. None of them where the tensor is elsewhere, as one that is
    /// [handed on](crate::Begin::handed_on) may be.
    pub data: &'a [u8],
}

/// A handle to a tensor: what goes from step to step. Cheap to clone.
pub trait Value: Clone {
    /// The tensor. Its data is looked at by conditions alone.
    fn view(&self) -> View<'_>;
}

impl View<'_> {
    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shape.element_count()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements as numbers; none where they are not.
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

/// Whether conditions can be put on elements of this type.
pub(crate) fn is_number(datatype: ElementType) -> bool {
    !matches!(datatype, ElementType::Bool | ElementType::Fp16 | ElementType::Bf16 | ElementType::Bytes)
}
