//! Tensors that models take and return.

use weir_device::Buffer;
use weir_types::{ElementType, Shape, ShapeError};

/// A dense, row-major tensor whose data fits its type and shape. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    element_type: ElementType,
    shape: Shape,
    data: Buffer,
}

/// Why bytes are not a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The data does not fit the type and shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A `BOOL` is neither 0 nor 1.
    #[error("element {index} of a BOOL tensor is {value}; it must be 0 or 1")]
    NotBool {
        /// Index of the element.
        index: usize,
        /// Value of the element.
        value: u8,
    },
}

impl Tensor {
    /// Checks that `data` is a tensor of this type and shape. Shares `data`.
    pub fn new(element_type: ElementType, shape: Shape, data: Buffer) -> Result<Self, TensorError> {
        shape.check(element_type, &data)?;
        // Native code reads these bytes as C++ `bool`, where any other value is undefined
        // behaviour.
        if element_type == ElementType::Bool
            && let Some((index, value)) = data.iter().copied().enumerate().find(|(_, value)| *value > 1)
        {
            return Err(TensorError::NotBool { index, value });
        }
        Ok(Self { element_type, shape, data })
    }

    /// Type of every element.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements, little-endian, without gaps.
    #[must_use]
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// Consumes the tensor and returns its elements.
    #[must_use]
    pub fn into_data(self) -> Buffer {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_device::Arena;

    #[test]
    fn invalid_tensor_data_is_refused() {
        let arena = Arena::new(1 << 20);
        let tensor = |element_type, dimensions: &[u32], data: &[u8]| {
            Tensor::new(element_type, Shape::new(dimensions).unwrap(), arena.copy_of(data).unwrap())
        };
        assert!(tensor(ElementType::Fp32, &[2], &[0; 8]).is_ok());
        assert!(matches!(tensor(ElementType::Fp32, &[2], &[0; 7]), Err(TensorError::Shape(_))));
        assert!(tensor(ElementType::Bool, &[3], &[0, 1, 1]).is_ok());
        assert_eq!(
            tensor(ElementType::Bool, &[3], &[0, 1, 2]),
            Err(TensorError::NotBool { index: 2, value: 2 })
        );
    }
}
