//! Element types of tensors, and the corresponding Rust types.

use crate::{Error, Result};
use std::fmt;

#[doc(inline)]
pub use crate::bindings::imports::weir::inference::tensors::ElementType;

// Both tensors and WebAssembly are little-endian, so slices are copied unchanged.
const _: () = assert!(cfg!(target_endian = "little"));

/// A Rust type that corresponds to an element type: `bool`, the integers, `f32`, `f64`, and with
/// the feature `half` also `f16` and `bf16`.
///
/// For byte strings, use [`Tensor::from_strings`](crate::Tensor::from_strings) and
/// [`Tensor::to_strings`](crate::Tensor::to_strings).
pub trait Element: Copy + 'static + sealed::Sealed {
    /// The corresponding element type.
    const TYPE: ElementType;

    #[doc(hidden)]
    fn as_bytes(elements: &[Self]) -> &[u8];

    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Result<Vec<Self>>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($rust:ty => $variant:ident;)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const TYPE: ElementType = ElementType::$variant;

            fn as_bytes(elements: &[Self]) -> &[u8] {
                bytemuck::cast_slice(elements)
            }

            fn from_bytes(bytes: &[u8]) -> Result<Vec<Self>> {
                whole::<Self>(bytes)?;
                // The allocator usually aligns the bytes for every element type, and the fallback
                // copies unaligned bytes.
                Ok(bytemuck::try_cast_slice(bytes)
                    .map_or_else(|_| bytemuck::pod_collect_to_vec(bytes), <[Self]>::to_vec))
            }
        }
    )*};
}

plain! {
    u8 => Uint8;
    u16 => Uint16;
    u32 => Uint32;
    u64 => Uint64;
    i8 => Int8;
    i16 => Int16;
    i32 => Int32;
    i64 => Int64;
    f32 => Fp32;
    f64 => Fp64;
}

#[cfg(feature = "half")]
plain! {
    half::f16 => Fp16;
    half::bf16 => Bf16;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const TYPE: ElementType = ElementType::Bool;

    fn as_bytes(elements: &[Self]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Vec<Self>> {
        match bytes.iter().find(|byte| **byte > 1) {
            Some(byte) => Err(Error::invalid(format_args!("{byte} is no bool: 0 and 1 are"))),
            None => Ok(bytes.iter().map(|byte| *byte == 1).collect()),
        }
    }
}

impl ElementType {
    /// Size of an element in bytes; `None` for byte strings, which vary in length.
    #[must_use]
    pub fn size_bytes(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Uint32 | Self::Int32 | Self::Fp32 => 4,
            Self::Uint64 | Self::Int64 | Self::Fp64 => 8,
            Self::Bytes => return None,
        })
    }
}

/// Formats the type as in WIT.
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
            Self::Fp64 => "fp64",
            Self::Bytes => "bytes",
        })
    }
}

/// Returns an error unless `T` corresponds to `found`.
pub(crate) fn same<T: Element>(found: ElementType) -> Result<()> {
    if found == T::TYPE {
        return Ok(());
    }
    Err(Error::invalid(format_args!("the tensor holds {found} and not {}", T::TYPE)))
}

/// Number of elements of a shape; `None` on overflow.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    // A zero dimension makes the count zero, even if the product of the other dimensions overflows.
    if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size))
    }
}

/// Converts a shape to the node's format.
pub(crate) fn dimensions(shape: &[usize]) -> Result<Vec<u32>> {
    let sizes: Result<_, _> = shape.iter().map(|size| u32::try_from(*size)).collect();
    sizes.map_err(|_| Error::invalid(format_args!("a dimension of {shape:?} is 2^32 or more")))
}

fn whole<T>(bytes: &[u8]) -> Result<()> {
    if bytes.len().is_multiple_of(size_of::<T>()) {
        return Ok(());
    }
    Err(Error::invalid(format_args!(
        "{} bytes are no whole number of elements of {} bytes",
        bytes.len(),
        size_of::<T>()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back<T: Element + PartialEq + fmt::Debug>(elements: &[T]) {
        let bytes = T::as_bytes(elements);
        assert_eq!(Some(bytes.len()), T::TYPE.size_bytes().map(|size| size * elements.len()));
        assert_eq!(T::from_bytes(bytes).unwrap(), elements);
    }

    proptest! {
        #[test]
        fn elements_round_trip_as_bytes(bits: Vec<u64>, flags: Vec<bool>) {
            let floats: Vec<f64> = bits.iter().map(|bits| *bits as f64).collect();
            there_and_back(&flags);
            there_and_back(&bits);
            there_and_back(&floats);
            there_and_back(&floats.iter().map(|x| *x as f32).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as i8).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as i16).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as i32).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as i64).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as u8).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as u16).collect::<Vec<_>>());
            there_and_back(&bits.iter().map(|bits| *bits as u32).collect::<Vec<_>>());
        }

        /// The bytes of a tensor may have any alignment.
        #[test]
        fn unaligned_bytes_convert(bytes: Vec<u8>, skip in 0_usize..8) {
            let bytes = &bytes[skip.min(bytes.len())..];
            let found = u64::from_bytes(bytes);
            match bytes.len() % 8 {
                0 => prop_assert_eq!(found.unwrap().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>(), bytes),
                _ => prop_assert!(found.is_err()),
            }
        }
    }

    #[test]
    fn byte_order_is_little_endian() {
        assert_eq!(<f32 as Element>::as_bytes(&[1.0]), [0, 0, 0x80, 0x3f]);
        assert_eq!(<i16 as Element>::as_bytes(&[-2]), [0xfe, 0xff]);
    }

    #[cfg(feature = "half")]
    #[test]
    fn half_precision_types_are_elements() {
        there_and_back(&[half::f16::from_f32(1.5), half::f16::INFINITY]);
        there_and_back(&[half::bf16::from_f32(-3.0), half::bf16::MIN_POSITIVE]);
        assert_eq!(<half::bf16 as Element>::as_bytes(&[half::bf16::ONE]), [0x80, 0x3f]);
    }

    #[test]
    fn mismatched_type_and_invalid_bool_are_errors() {
        let error = same::<f32>(ElementType::Int64).unwrap_err();
        assert_eq!(error, Error::InvalidArgument("the tensor holds int64 and not fp32".into()));
        assert!(bool::from_bytes(&[0, 1, 2]).is_err());
        assert_eq!(bool::from_bytes(&[0, 1]).unwrap(), [false, true]);
    }

    #[test]
    fn element_count_handles_overflow() {
        assert_eq!(count(&[]), Some(1));
        assert_eq!(count(&[2, 3]), Some(6));
        assert_eq!(count(&[usize::MAX, 2]), None);
        assert_eq!(count(&[usize::MAX, 2, 0]), Some(0));
        assert_eq!(dimensions(&[1, 2]).unwrap(), [1, 2]);
        assert!(dimensions(&[1 << 32]).is_err());
    }
}
