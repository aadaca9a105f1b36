//! Memory files for tensors, which a node and its worker have open for reading and writing.
//!
//! The length of such a file is fixed and sealed, so that a worker can neither truncate the file nor
//! fill the machine's memory through it: pages of memory files do not count as address space.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Largest length of a file.
const FILE_BYTES_MAX: u64 = 1 << 62;
/// Unit of [`MetadataExt::blocks`].
const BLOCK_BYTES: u64 = 512;

/// Creates a file of `bytes_max` bytes, none of which takes memory before it is written.
pub fn tensor_memory(bytes_max: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("weir-tensors", flags)?);
    file.set_len(bytes_max.min(FILE_BYTES_MAX))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Writes `data` at `offset`. Fails if the file is too short.
pub fn write_memory(memory: &File, data: &[u8], offset: u64) -> io::Result<()> {
    let bytes_max = memory.metadata()?.len();
    // The system would refuse it with the error for seals, and end a process whose limit of file
    // sizes it exceeds.
    if offset.checked_add(data.len() as u64).is_none_or(|end| end > bytes_max) {
        let why = format!("the inputs or outputs of a run take more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    memory.write_all_at(data, offset)
}

/// Returns the memory of the file to the system if it exceeds `bytes`. Its contents become zeroes.
pub fn release_memory_beyond(memory: &File, bytes: u64) {
    let Ok(metadata) = memory.metadata() else { return };
    if metadata.blocks().saturating_mul(BLOCK_BYTES) > bytes {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The file keeps its memory on an error, until it is closed.
        let _ = fallocate(memory, hole, 0, metadata.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_tensor_memory_cannot_be_changed() {
        let memory = tensor_memory(1 << 20).unwrap();
        assert!(memory.set_len(0).is_err() && memory.set_len(2 << 20).is_err());
        assert!(memory.write_all_at(&[1; 10], (1 << 20) - 5).is_err());
        let beyond = FallocateFlags::empty();
        assert!(fallocate(&memory, beyond, 0, 2 << 20).is_err());
        assert!(fcntl_add_seals(&memory, SealFlags::WRITE).is_err(), "the node must be able to write");
        assert_eq!(memory.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn writes_beyond_the_end_are_refused_with_the_limit() {
        let memory = tensor_memory(100).unwrap();
        write_memory(&memory, &[1; 60], 40).unwrap();
        for (len, offset) in [(61, 40), (1, 100), (1, u64::MAX)] {
            let error = write_memory(&memory, &vec![1; len], offset).unwrap_err();
            assert!(error.to_string().contains("more than 100 bytes"), "{error}");
        }
    }

    #[test]
    fn memory_beyond_a_bound_is_returned_to_the_system() {
        let memory = tensor_memory(1 << 20).unwrap();
        let held = || memory.metadata().unwrap().blocks() * BLOCK_BYTES;
        assert_eq!(held(), 0);
        write_memory(&memory, &[1; 100_000], 0).unwrap();
        let written = held();
        assert!(written >= 100_000);
        release_memory_beyond(&memory, written);
        assert_eq!(held(), written);
        release_memory_beyond(&memory, 50_000);
        assert_eq!((held(), memory.metadata().unwrap().len()), (0, 1 << 20));
    }
}
