//! Type of a graph's value: its element type and its dimensions, all of them known.

use std::fmt;
use weir_types::ElementType;

/// Largest number of dimensions of a value. Operations collapse them to
/// [`DIMS_MAX`](crate::DIMS_MAX) before they run.
pub const RANK_MAX: usize = 8;

/// Largest size of a value: 1 TiB, more than any device has.
pub const VALUE_BYTES_MAX: usize = 1 << 40;

/// Element type and dimensions of a value, outermost first. The value is row-major and contiguous
/// in memory.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    element_type: ElementType,
    dims: Vec<usize>,
}

/// Reason why a value cannot have a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The value has too many dimensions.
    #[error("{0} dimensions; at most {RANK_MAX} are supported")]
    Rank(usize),
    /// The value has too many bytes.
    #[error("{0:?} is more than the {VALUE_BYTES_MAX} bytes that a value may take")]
    Size(Vec<usize>),
    /// Elements without a fixed size, such as strings.
    #[error("elements of type {0} have no fixed size")]
    Unsized(ElementType),
}

impl TensorType {
    /// Check that a value can have this type.
    pub fn new(element_type: ElementType, dims: impl Into<Vec<usize>>) -> Result<Self, TypeError> {
        let dims = dims.into();
        if dims.len() > RANK_MAX {
            return Err(TypeError::Rank(dims.len()));
        }
        let size = element_type.size_bytes().ok_or(TypeError::Unsized(element_type))?;
        // A dimension of 0 must not hide an overflow of the others.
        let bytes = dims.iter().try_fold(size, |bytes, dim| bytes.checked_mul((*dim).max(1)));
        if bytes.is_none_or(|bytes| bytes > VALUE_BYTES_MAX) {
            return Err(TypeError::Size(dims));
        }
        Ok(Self { element_type, dims })
    }

    /// The element type.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// The dimensions, outermost first; empty for a scalar.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.element_type.size_bytes().unwrap_or(0)
    }

    /// The same elements under other dimensions; `None` if the number of elements differs.
    #[must_use]
    pub fn reshaped(&self, dims: impl Into<Vec<usize>>) -> Option<Self> {
        let other = Self::new(self.element_type, dims).ok()?;
        (other.elements() == self.elements()).then_some(other)
    }

    /// The same dimensions with another element type.
    pub fn with_elements(&self, element_type: ElementType) -> Result<Self, TypeError> {
        Self::new(element_type, self.dims.clone())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element_type, self.dims)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Row-major strides of `dims`, in elements.
#[must_use]
pub fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_type_is_rejected_despite_zero_dimension() {
        assert!(TensorType::new(ElementType::Fp32, [usize::MAX, usize::MAX, 0]).is_err());
        assert!(TensorType::new(ElementType::Fp32, [1; 9]).is_err());
        assert!(TensorType::new(ElementType::Bytes, [1]).is_err());
        let scalar = TensorType::new(ElementType::Int64, []).unwrap();
        assert_eq!((scalar.elements(), scalar.bytes()), (1, 8));
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(row_major(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(row_major(&[]), Vec::<usize>::new());
    }
}
