//! The weights of a resident model: files mapped into memory once, whatever the number of sessions, and of models that have them.
#![allow(unsafe_code, reason = "files are mapped, and handed to ONNX Runtime by address")]

use super::store::TensorStore;
use super::value::{Value, ValueError};
use crate::mapping::Mapping;
use crate::prepare::Variant;
use ort::value::DynValue;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use weir_types::ContentHash;

/// The weights of one model, ready for its sessions. Fields drop in order: the values before what they lie in.
pub(super) struct Weights {
    values: Vec<(String, Arc<DynValue>)>,
    _files: Vec<Arc<Mapping>>,
    /// What nobody has read before.
    new: Vec<(ContentHash, Arc<Mapping>)>,
}

/// Whether the files of a model have in them what they are named by. Found out on a thread of its own, while sessions are made of them.
pub(super) struct Check {
    thread: Mutex<Option<JoinHandle<Option<ContentHash>>>>,
    /// None where the thread has not lived to tell.
    found: OnceLock<Option<Option<ContentHash>>>,
}

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum WeightsError {
    #[error("its file {hash}: {source}")]
    File { hash: ContentHash, source: io::Error },
    #[error("weight {name:?} goes past the end of its file {hash}")]
    TooShort { name: String, hash: ContentHash },
    #[error("weight {name:?}: {source}")]
    Value { name: String, source: ValueError },
    #[error("its file {0} has something else in it than was pushed: push the model again")]
    Damaged(ContentHash),
    #[error("its files cannot be checked: {0}")]
    Unchecked(io::Error),
}

impl Weights {
    /// Map every weight of a model, from the files named by hash in `blobs`, unless another has them mapped.
    pub(super) fn map(variant: &Variant, blobs: &Path, store: &TensorStore) -> Result<Self, WeightsError> {
        let file_error = |hash| move |source| WeightsError::File { hash, source };
        // The graph is read by its path, and may have small weights in it.
        let skeleton = Mapping::of(&blobs.join(variant.skeleton.to_string()));
        let mut new = vec![(variant.skeleton, Arc::new(skeleton.map_err(file_error(variant.skeleton))?))];
        let mut files: Vec<Arc<Mapping>> = Vec::new();
        let mut places: HashMap<ContentHash, usize> = HashMap::new();
        let mut values = Vec::with_capacity(variant.weights.len());
        for weight in &variant.weights {
            let (hash, name) = (weight.hash, &weight.name);
            let place = match places.get(&hash) {
                Some(place) => *place,
                None => {
                    let (file, is_new) =
                        store.file(blobs.join(hash.to_string())).map_err(file_error(hash))?;
                    if is_new {
                        new.push((hash, Arc::clone(&file)));
                    }
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
        Ok(Self { values, _files: files, new })
    }

    /// Begin to find out whether they are what was pushed.
    pub(super) fn check(&mut self) -> Result<Check, WeightsError> {
        Check::begin(std::mem::take(&mut self.new)).map_err(WeightsError::Unchecked)
    }

    /// The weights by the names of their initialisers.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &Arc<DynValue>)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl Check {
    fn begin(files: Vec<(ContentHash, Arc<Mapping>)>) -> io::Result<Self> {
        let find = move || {
            files.iter().find(|(hash, file)| ContentHash::of(file.bytes()) != *hash).map(|(hash, _)| *hash)
        };
        let thread = std::thread::Builder::new().name("weir-weights".to_owned()).spawn(find)?;
        Ok(Self { thread: Mutex::new(Some(thread)), found: OnceLock::new() })
    }

    /// Wait until it is known. Asked before anything is run with them.
    pub(super) fn wait(&self) -> Result<(), WeightsError> {
        let found = self.found.get_or_init(|| {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            thread.and_then(|thread| thread.join().ok())
        });
        match found {
            Some(None) => Ok(()),
            Some(Some(hash)) => Err(WeightsError::Damaged(*hash)),
            None => Err(WeightsError::Unchecked(io::Error::other("the check panicked"))),
        }
    }
}
