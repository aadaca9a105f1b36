//! Tensors in memory files that a node and its worker have open.

use crate::write_memory;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use weir_device::Arena;
use weir_inference::{InferenceError, Tensor};
use weir_types::{ElementType, Shape};

/// Maximum size in bytes to which the memory for tensors is kept between runs.
pub const MEMORY_BYTES_KEPT: u64 = 16 << 20;

/// File with the data of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorFile {
    /// Memory file of the connection.
    Connection,
    /// Arena of the node, in which the tensor was created: no copy is needed.
    Arena,
}

/// Tensor in memory that both processes can access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorLocation {
    /// Shape of the tensor.
    pub shape: Shape,
    /// File with the data.
    pub file: TensorFile,
    /// Offset of the data in the file, in bytes.
    pub offset: u64,
    /// Length of the data in bytes.
    pub bytes: u64,
}

/// Writes tensors one after another to the start of `memory`, except tensors in an `arena` that the
/// worker reads as well. Returns the location of each tensor, and the end of the written data.
pub fn write_tensors(
    tensors: &[Tensor],
    memory: &File,
    arena: Option<&Arena>,
) -> Result<(Vec<TensorLocation>, u64), InferenceError> {
    let mut parts = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        let shape = tensor.shape().clone();
        let data = tensor.data();
        let bytes = data.len() as u64;
        if let Some(offset) = arena.and_then(|arena| arena.shared_offset(data)) {
            parts.push(TensorLocation { shape, file: TensorFile::Arena, offset, bytes });
            continue;
        }
        write_memory(memory, data, end)
            .map_err(|error| InferenceError::RunOutOfMemory(error.to_string().into()))?;
        parts.push(TensorLocation { shape, file: TensorFile::Connection, offset: end, bytes });
        end += bytes;
    }
    Ok((parts, end))
}

/// Copies a tensor into `arena`.
pub fn read_tensor(
    element_type: ElementType,
    part: &TensorLocation,
    memory: &File,
    arena: &Arena,
) -> Result<Tensor, InferenceError> {
    let failed =
        |error: io::Error| InferenceError::Run(format!("its outputs cannot be read: {error}").into());
    // Do not allocate more than the file contains, regardless of the length in the worker's answer.
    let there = memory.metadata().map_err(failed)?.len();
    let end = part.offset.checked_add(part.bytes).filter(|end| *end <= there);
    let len = end.and_then(|_| usize::try_from(part.bytes).ok());
    let len = len.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    let mut buffer = arena.buffer(len)?;
    memory.read_exact_at(&mut buffer, part.offset).map_err(failed)?;
    Ok(Tensor::new(element_type, part.shape.clone(), buffer.freeze())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_memory;

    #[test]
    fn tensors_in_shared_arena_are_not_copied() {
        let arena = Arena::new(8 << 20);
        let shared = arena.share().unwrap();
        let memory = tensor_memory(600_300).unwrap();
        let tensor = |value: u8, len: u32| {
            let data = arena.copy_of(&vec![value; len as usize]).unwrap();
            Tensor::new(ElementType::Uint8, Shape::new(&[len]).unwrap(), data).unwrap()
        };
        let tensors = [tensor(1, 100), tensor(2, 600_000), tensor(3, 200)];
        let (parts, end) = write_tensors(&tensors, &memory, Some(&arena)).unwrap();
        let homes: Vec<_> = parts.iter().map(|part| part.file).collect();
        assert_eq!(homes, [TensorFile::Connection, TensorFile::Arena, TensorFile::Connection]);
        assert_eq!(end, 300);
        for (part, tensor) in parts.iter().zip(&tensors) {
            let file = if part.file == TensorFile::Arena { &shared } else { &memory };
            let mut read = vec![0; usize::try_from(part.bytes).unwrap()];
            file.read_exact_at(&mut read, part.offset).unwrap();
            assert_eq!(read, tensor.data()[..]);
        }
        let (parts, end) = write_tensors(&tensors, &memory, None).unwrap();
        assert!(parts.iter().all(|part| part.file == TensorFile::Connection) && end == 600_300);
        let short = write_tensors(&tensors, &tensor_memory(600_299).unwrap(), None);
        assert!(matches!(short, Err(InferenceError::RunOutOfMemory(_))), "{short:?}");
    }
}
