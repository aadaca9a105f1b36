//! Tensors as ONNX Runtime values. Numeric data is shared without copying; strings are copied in
//! both directions.
#![allow(unsafe_code, reason = "ONNX Runtime's values are handled by pointer, over memory that Rust owns")]

use ort::memory::{Allocator, MemoryInfo};
use ort::sys::{self, ONNXTensorElementDataType as OnnxType};
use ort::{AsPointer, Error as OrtError};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use weir_device::{Arena, ArenaExhausted, Buffer, BufferMut};
use weir_inference::{Tensor, TensorError};
use weir_types::{ElementType, Shape, ShapeError};

/// A tensor owned by ONNX Runtime, possibly over memory borrowed for `'a`. Freed on drop.
pub(crate) struct OrtValue<'a> {
    pointer: NonNull<sys::OrtValue>,
    memory: PhantomData<&'a mut [u8]>,
}

/// Why a value could not be created or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(transparent)]
    Runtime(#[from] OrtError),
    #[error(transparent)]
    OutOfMemory(#[from] ArenaExhausted),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("{0}")]
    Unsupported(String),
}

impl From<ShapeError> for ValueError {
    fn from(error: ShapeError) -> Self {
        Self::Tensor(error.into())
    }
}

impl<'a> OrtValue<'a> {
    /// A value over the tensor's own memory, or over an aligned copy in `moved` if the tensor is
    /// not aligned for its type.
    pub(crate) fn input(
        tensor: &'a Tensor,
        moved: &'a mut Option<Buffer>,
        arena: &Arena,
    ) -> Result<Self, ValueError> {
        let dimensions: Vec<i64> = tensor.shape().dimensions().iter().map(|size| i64::from(*size)).collect();
        let Some(alignment) = tensor.element_type().size_bytes() else {
            return Self::strings(tensor.data(), &dimensions);
        };
        let data = if (tensor.data().as_ptr() as usize).is_multiple_of(alignment) {
            tensor.data()
        } else {
            moved.insert(arena.copy_of(tensor.data())?)
        };
        // SAFETY: the memory is borrowed for the lifetime of the value, and ONNX Runtime does not
        // write to inputs.
        unsafe { Self::over(data.as_ptr().cast_mut(), data.len(), tensor.element_type(), &dimensions) }
    }

    /// A value over `data`, into which ONNX Runtime writes an output.
    pub(crate) fn output(
        data: &'a mut BufferMut,
        element_type: ElementType,
        shape: &Shape,
    ) -> Result<Self, ValueError> {
        let dimensions: Vec<i64> = shape.dimensions().iter().map(|size| i64::from(*size)).collect();
        // SAFETY: the memory is borrowed mutably for the lifetime of the value.
        unsafe { Self::over(data.as_mut_ptr(), data.len(), element_type, &dimensions) }
    }

    /// Takes ownership of a value that a run created. Returns `None` if the pointer is null.
    ///
    /// # Safety
    /// The caller owns the value at the pointer, and the value borrows no memory that is freed
    /// before `'a` ends.
    pub(crate) unsafe fn from_pointer(pointer: *mut sys::OrtValue) -> Option<Self> {
        NonNull::new(pointer).map(|pointer| Self { pointer, memory: PhantomData })
    }

    /// A value over `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes are valid for `'a`, aligned for the type, and written only by ONNX Runtime.
    pub(crate) unsafe fn over(
        start: *mut u8,
        len: usize,
        element_type: ElementType,
        dimensions: &[i64],
    ) -> Result<Self, ValueError> {
        let memory = MemoryInfo::default();
        let onnx_type = onnx_type(element_type);
        let mut pointer = ptr::null_mut();
        let create = ort::api().CreateTensorWithDataAsOrtValue;
        let start = start.cast::<c_void>();
        let rank = dimensions.len();
        // SAFETY: the pointers are valid for the call, `rank` is the number of dimensions, and the
        // caller guarantees the memory. ONNX Runtime checks that the length fits the dimensions.
        let status = unsafe {
            create(memory.ptr(), start, len, dimensions.as_ptr(), rank, onnx_type, &raw mut pointer)
        };
        check(status)?;
        // SAFETY: a value that was just created belongs to this function.
        unsafe { Self::from_pointer(pointer) }.ok_or_else(|| OrtError::new("no value was made").into())
    }

    /// A copy of length-prefixed strings that have been validated.
    fn strings(data: &[u8], dimensions: &[i64]) -> Result<Self, ValueError> {
        let mut allocator = Allocator::default();
        let mut pointer = ptr::null_mut();
        let (create, resize) =
            (ort::api().CreateTensorAsOrtValue, ort::api().GetResizedStringTensorElementBuffer);
        let onnx_type = onnx_type(ElementType::Bytes);
        let rank = dimensions.len();
        // SAFETY: the pointers are valid for the call, and `rank` is the number of dimensions.
        let status =
            unsafe { create(allocator.ptr_mut(), dimensions.as_ptr(), rank, onnx_type, &raw mut pointer) };
        check(status)?;
        // SAFETY: a value that was just created belongs to this function.
        let value =
            unsafe { Self::from_pointer(pointer) }.ok_or_else(|| OrtError::new("no value was made"))?;
        for (index, text) in split_strings(data).enumerate() {
            let mut target = ptr::null_mut();
            // SAFETY: the value is owned, and ONNX Runtime checks the index.
            let status = unsafe { resize(value.pointer.as_ptr(), index, text.len(), &raw mut target) };
            check(status)?;
            // SAFETY: the buffer was just created with this length, and does not overlap the
            // source.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), target.cast(), text.len()) };
        }
        Ok(value)
    }

    /// The pointer for ONNX Runtime's functions. `self` keeps the ownership.
    pub(crate) fn pointer(&self) -> *mut sys::OrtValue {
        self.pointer.as_ptr()
    }

    /// Converts the value to the type of the `ort` crate, which then owns it.
    ///
    /// # Safety
    /// The memory that the value borrows outlives the result.
    pub(crate) unsafe fn into_ort(self) -> ort::value::DynValue {
        let pointer = self.pointer;
        std::mem::forget(self);
        // SAFETY: `self` gives up the value, so that it is freed once; its memory does not belong
        // to the allocator.
        unsafe { ort::value::Value::from_ptr(pointer, Some(&Allocator::default())) }
    }

    /// A copy of the value as a tensor in `arena`.
    pub(crate) fn to_tensor(&self, arena: &Arena) -> Result<Tensor, ValueError> {
        let (onnx_type, dimensions) = self.type_and_shape()?;
        let element_type = element_type(onnx_type).ok_or_else(|| {
            ValueError::Unsupported(format!(
                "an output is of the type {onnx_type:?}, which Weir does not carry"
            ))
        })?;
        let sizes: Option<Vec<u32>> = dimensions.iter().map(|size| u32::try_from(*size).ok()).collect();
        let too_large =
            || ValueError::Unsupported(format!("an output has the shape {dimensions:?}, which is too large"));
        let shape = Shape::new(&sizes.ok_or_else(too_large)?)?;
        let data = match element_type.size_bytes() {
            None => self.copy_strings(&shape, arena)?,
            Some(size_bytes) => arena.copy_of(self.bytes(&shape, size_bytes)?)?,
        };
        Ok(Tensor::new(element_type, shape, data)?)
    }

    fn type_and_shape(&self) -> Result<(OnnxType, Vec<i64>), OrtError> {
        let mut is_tensor = 0;
        // SAFETY: the value is owned, and the pointer is valid for the call.
        check(unsafe { (ort::api().IsTensor)(self.pointer(), &raw mut is_tensor) })?;
        if is_tensor == 0 {
            return Err(OrtError::new("an output is not a tensor"));
        }
        let mut onnx_type = OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let mut dimensions = ptr::null();
        let mut rank = 0;
        let look = ort::api().GetTensorElementTypeAndShapeDataReference;
        // SAFETY: the value is owned and a tensor, and the pointers are valid for the call.
        check(unsafe { look(self.pointer(), &raw mut onnx_type, &raw mut dimensions, &raw mut rank) })?;
        if rank == 0 {
            return Ok((onnx_type, Vec::new()));
        }
        // SAFETY: the dimensions live as long as the value.
        Ok((onnx_type, unsafe { std::slice::from_raw_parts(dimensions, rank) }.to_vec()))
    }

    fn bytes(&self, shape: &Shape, size_bytes: usize) -> Result<&[u8], OrtError> {
        let mut start = ptr::null_mut();
        // SAFETY: the value is owned and a numeric tensor, and the pointer is valid for the call.
        check(unsafe { (ort::api().GetTensorMutableData)(self.pointer(), &raw mut start) })?;
        let len = usize::try_from(shape.element_count()).unwrap_or(usize::MAX).saturating_mul(size_bytes);
        if start.is_null() || len == 0 {
            return Ok(&[]);
        }
        // SAFETY: a tensor's data has the length of its type and shape, and lives as long as the
        // value.
        Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }

    fn copy_strings(&self, shape: &Shape, arena: &Arena) -> Result<Buffer, ValueError> {
        let count = usize::try_from(shape.element_count()).unwrap_or(usize::MAX);
        let mut total = 0;
        let api = ort::api();
        // SAFETY: the value is owned and a string tensor, and the pointer is valid for the call.
        check(unsafe { (api.GetStringTensorDataLength)(self.pointer(), &raw mut total) })?;
        let mut text = arena.buffer(total)?;
        let mut offsets = vec![0_usize; count];
        let start = text.as_mut_ptr().cast();
        let read = api.GetStringTensorContent;
        // SAFETY: the buffers have the stated lengths.
        check(unsafe { read(self.pointer(), start, total, offsets.as_mut_ptr(), count) })?;
        offsets.push(total);
        join_strings(&text, &offsets, arena)
    }
}

impl Drop for OrtValue<'_> {
    fn drop(&mut self) {
        // SAFETY: the value is owned, and not used after this call.
        unsafe { (ort::api().ReleaseValue)(self.pointer.as_ptr()) };
    }
}

/// Consumes the status returned by a call.
fn check(status: sys::OrtStatusPtr) -> Result<(), OrtError> {
    // SAFETY: every status in this module comes directly from a call, and is consumed here.
    unsafe { OrtError::result_from_status(status) }
}

/// The protocol's type for an ONNX Runtime type, if it has one.
pub(crate) fn element_type(onnx_type: OnnxType) -> Option<ElementType> {
    ElementType::ALL.iter().copied().find(|known| self::onnx_type(*known) == onnx_type)
}

/// The protocol's type for a type number of `onnx.proto`, if it has one.
pub(crate) fn element_type_numbered(number: i32) -> Option<ElementType> {
    ElementType::ALL.iter().copied().find(|known| onnx_type(*known) as i32 == number)
}

fn onnx_type(element_type: ElementType) -> OnnxType {
    match element_type {
        ElementType::Bool => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        ElementType::Uint8 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        ElementType::Uint16 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        ElementType::Uint32 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        ElementType::Uint64 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        ElementType::Int8 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        ElementType::Int16 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        ElementType::Int32 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        ElementType::Int64 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        ElementType::Fp16 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        ElementType::Bf16 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        ElementType::Fp32 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        ElementType::Fp64 => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        ElementType::Bytes => OnnxType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
    }
}

fn split_strings(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        data = rest;
        Some(text)
    })
}

/// Prefixes each string with its length. `offsets` holds the start of each string in `text`,
/// followed by the end of the last one.
fn join_strings(text: &[u8], offsets: &[usize], arena: &Arena) -> Result<Buffer, ValueError> {
    let mut data = arena.with_capacity(text.len() + offsets.len() * size_of::<u32>())?;
    for pair in offsets.windows(2) {
        let [start, end] = *pair else { continue };
        let wrong = || ValueError::Unsupported("the strings of an output overlap".to_owned());
        let one = text.get(start..end).ok_or_else(wrong)?;
        let length = u32::try_from(one.len())
            .map_err(|_| ValueError::Unsupported("a string of an output is too long".to_owned()))?;
        data.extend_from_slice(&length.to_le_bytes())?;
        data.extend_from_slice(one)?;
    }
    Ok(data.freeze())
}
