//! The weights of a resident model: files mapped into memory once, whatever the number of sessions, and of models that have them.
#![allow(unsafe_code, reason = "files are mapped, and handed to ONNX Runtime by address")]

use super::store::TensorStore;
use super::value::{Value, ValueError};
use crate::prepare::Variant;
use ort::value::DynValue;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use weir_types::ContentHash;

/// The weights of one model, ready for its sessions. Fields drop in order: the values before what they lie in.
pub(super) struct Weights {
    values: Vec<(String, Arc<DynValue>)>,
    _files: Vec<Arc<Mapping>>,
}

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum WeightsError {
    #[error("weight file {hash}: {source}")]
    File { hash: ContentHash, source: io::Error },
    #[error("weight {name:?} goes past the end of its file {hash}")]
    TooShort { name: String, hash: ContentHash },
    #[error("weight {name:?}: {source}")]
    Value { name: String, source: ValueError },
}

impl Weights {
    /// Map every weight of a model, from the files named by hash in `blobs`, unless another has them mapped.
    pub(super) fn map(variant: &Variant, blobs: &Path, store: &TensorStore) -> Result<Self, WeightsError> {
        let mut files: Vec<Arc<Mapping>> = Vec::new();
        let mut places: HashMap<ContentHash, usize> = HashMap::new();
        let mut values = Vec::with_capacity(variant.weights.len());
        for weight in &variant.weights {
            let (hash, name) = (weight.hash, &weight.name);
            let place = match places.get(&hash) {
                Some(place) => *place,
                None => {
                    let file = store
                        .file(blobs.join(hash.to_string()))
                        .map_err(|source| WeightsError::File { hash, source })?;
                    files.push(file);
                    places.insert(hash, files.len() - 1);
                    files.len() - 1
                }
            };
            let too_short = || WeightsError::TooShort { name: name.clone(), hash };
            let start = usize::try_from(weight.offset).map_err(|_| too_short())?;
            let end = usize::try_from(weight.bytes)
                .ok()
                .and_then(|len| start.checked_add(len))
                .ok_or_else(too_short)?;
            let bytes = files[place].bytes().get(start..end).ok_or_else(too_short)?;
            let (address, len) = (bytes.as_ptr().cast_mut(), bytes.len());
            // SAFETY: the mapping lives as long as the value, kept by the same struct, and nothing writes to initialisers. Where a weight starts in
            // its file is a multiple of 64, as is the mapping.
            let value = unsafe { Value::over(address, len, weight.element_type, &weight.dimensions) };
            let value = value.map_err(|source| WeightsError::Value { name: name.clone(), source })?;
            // SAFETY: as above: `Weights` drops its values before its mappings, and sessions hold the `Weights`.
            values.push((name.clone(), Arc::new(unsafe { value.into_ort() })));
        }
        Ok(Self { values, _files: files })
    }

    /// The weights by the names of their initialisers.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &Arc<DynValue>)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// A file in memory, to read. The file must not be changed meanwhile: files named by their hash never are.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is memory that only its owner unmaps, and that nobody writes to.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the whole of a file, and read it in now rather than at the first use.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Self { start: NonNull::dangling(), len });
        }
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choosing aliases nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, flags, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len })
    }

    /// What is in the file.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is this long and lives as long as we do; an empty one is never read.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `of` mapped exactly this range, and nobody can have a slice of it any more. An error would leave it mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
