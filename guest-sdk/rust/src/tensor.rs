//! Tensors on the node.

use crate::bindings::imports::weir::inference::tensors::Tensor as Raw;
use crate::element::{self, Element, ElementType};
use crate::{Error, Result, strings};
use std::ops::Range;

/// A dense, row-major tensor on the node. Its data enters guest memory only when it is read.
///
/// ```no_run
/// # use weir::{Result, Tensor};
/// # fn example() -> Result<()> {
/// let tensor = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
/// assert_eq!(tensor.shape(), [2, 2]);
/// assert_eq!(tensor.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert!(tensor.to_vec::<i64>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tensor(pub(crate) Raw);

impl Tensor {
    /// Creates a tensor from a copy of `elements`. An empty shape, `[]`, is a scalar.
    ///
    /// Fails if the shape has a different number of elements, and above the function's limit of
    /// tensor bytes.
    pub fn from_slice<T: Element>(elements: &[T], shape: impl AsRef<[usize]>) -> Result<Self> {
        fits(shape.as_ref(), elements.len())?;
        Self::from_bytes(T::TYPE, shape, T::as_bytes(elements))
    }

    /// Creates a tensor from a copy of strings or byte strings.
    ///
    /// Fails if the shape has a different number of elements, and above the function's limit of
    /// tensor bytes.
    pub fn from_strings<S: AsRef<[u8]>>(elements: &[S], shape: impl AsRef<[usize]>) -> Result<Self> {
        fits(shape.as_ref(), elements.len())?;
        Self::from_bytes(ElementType::Bytes, shape, &strings::join(elements)?)
    }

    /// Creates a tensor from a copy of little-endian `data`, for an element type known only at run
    /// time.
    ///
    /// Fails if the shape needs a different number of bytes, and above the function's limit of
    /// tensor bytes.
    pub fn from_bytes(element_type: ElementType, shape: impl AsRef<[usize]>, data: &[u8]) -> Result<Self> {
        let shape = element::dimensions(shape.as_ref())?;
        Ok(Self(Raw::from_bytes(element_type, &shape, data)?))
    }

    /// Element type.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.0.element_type()
    }

    /// The size of each dimension, outermost first.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        self.0.shape().iter().map(|size| *size as usize).collect()
    }

    /// Size of the data in bytes.
    #[must_use]
    pub fn byte_length(&self) -> u64 {
        self.0.byte_length()
    }

    /// Copies all elements into guest memory. Fails if the element type differs.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        element::same::<T>(self.element_type())?;
        T::from_bytes(&self.to_bytes()?)
    }

    /// Copies a range of elements into guest memory, counted in row-major order: for example, one
    /// row of a large output. Fails if the element type differs, or if the range exceeds the
    /// tensor.
    pub fn read<T: Element>(&self, elements: Range<usize>) -> Result<Vec<T>> {
        element::same::<T>(self.element_type())?;
        let size = size_of::<T>() as u64;
        let count = elements.end.saturating_sub(elements.start) as u64;
        T::from_bytes(&self.0.read(elements.start as u64 * size, count * size)?)
    }

    /// Copies all strings into guest memory. Fails if the elements are not strings, or not UTF-8.
    pub fn to_strings(&self) -> Result<Vec<String>> {
        let strings = self.to_byte_strings()?.into_iter();
        strings.map(String::from_utf8).collect::<std::result::Result<_, _>>().map_err(Error::invalid)
    }

    /// Copies all byte strings into guest memory. Fails if the elements are not byte strings.
    pub fn to_byte_strings(&self) -> Result<Vec<Vec<u8>>> {
        match self.element_type() {
            ElementType::Bytes => {
                Ok(strings::split(&self.to_bytes()?)?.into_iter().map(<[u8]>::to_vec).collect())
            }
            other => Err(Error::invalid(format_args!("the tensor holds {other} and not bytes"))),
        }
    }

    /// Copies the data into guest memory unchanged: little-endian, row-major.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.0.read(0, self.byte_length())?)
    }
}

fn fits(shape: &[usize], elements: usize) -> Result<()> {
    if element::count(shape) == Some(elements) {
        return Ok(());
    }
    Err(Error::invalid(format_args!("{elements} elements do not fill the shape {shape:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatched_shape_fails_without_a_host_call() {
        let error = Tensor::from_slice(&[1.0_f32; 3], [2, 2]).unwrap_err();
        assert_eq!(error, Error::InvalidArgument("3 elements do not fill the shape [2, 2]".into()));
        assert!(Tensor::from_strings(&["a"], [0]).is_err());
        assert!(fits(&[], 1).is_ok() && fits(&[0, 7], 0).is_ok());
    }
}
