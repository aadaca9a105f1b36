//! Tensors in a file in memory that a node and its worker both have open. They are written and read as a file is: neither side can take memory away under the
//! other's feet.

use crate::error::InferenceError;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use weir_device::Arena;
use weir_types::{ElementType, Shape};

/// Memory for tensors that is kept from one run to the next.
pub(crate) const MEMORY_BYTES_KEPT: u64 = 16 << 20;

/// A tensor in the memory that both have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) shape: Shape,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Put tensors behind each other from the beginning; gives where they are, and where they end.
pub(crate) fn write_tensors(tensors: &[Tensor], memory: &File) -> Result<(Vec<Part>, u64), InferenceError> {
    let (mut parts, mut offset) = (Vec::with_capacity(tensors.len()), 0);
    for tensor in tensors {
        let data = tensor.data();
        memory
            .write_all_at(data, offset)
            .map_err(|error| InferenceError::RunOutOfMemory(error.to_string().into()))?;
        let bytes = data.len() as u64;
        parts.push(Part { shape: tensor.shape().clone(), offset, bytes });
        offset += bytes;
    }
    Ok((parts, offset))
}

/// Take a tensor out, into `arena`.
pub(crate) fn read_tensor(
    element_type: ElementType,
    part: &Part,
    memory: &File,
    arena: &Arena,
) -> Result<Tensor, InferenceError> {
    let failed =
        |error: io::Error| InferenceError::Run(format!("its outputs cannot be read: {error}").into());
    // Not more than is there, whatever the worker says.
    let there = memory.metadata().map_err(failed)?.len();
    let end = part.offset.checked_add(part.bytes).filter(|end| *end <= there);
    let len = end.and_then(|_| usize::try_from(part.bytes).ok());
    let len = len.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    let mut buffer = arena.buffer(len)?;
    memory.read_exact_at(&mut buffer, part.offset).map_err(failed)?;
    Ok(Tensor::new(element_type, part.shape.clone(), buffer.freeze())?)
}
