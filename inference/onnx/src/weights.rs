//! Weights of a resident model: files mapped into memory once for all sessions and all models that
//! use them.
#![allow(unsafe_code, reason = "files are mapped, and handed to ONNX Runtime by address")]

use crate::store::WeightStore;
use crate::value::{OrtValue, ValueError};
use ort::value::DynValue;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use weir_inference::{IntegrityCheck, IntegrityError, MappedFile, Variant, VerifiedFiles};
use weir_types::ContentHash;

/// Weights of one model, ready for its sessions. Fields drop in order: the values before the
/// mappings that they point into.
pub(crate) struct SessionWeights {
    values: Vec<(String, Arc<DynValue>)>,
    /// Includes the graph's file.
    files: Vec<(ContentHash, Arc<MappedFile>)>,
}

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionWeightsError {
    #[error("its file {hash}: {source}")]
    File { hash: ContentHash, source: io::Error },
    #[error("weight {name:?} goes past the end of its file {hash}")]
    TooShort { name: String, hash: ContentHash },
    #[error("weight {name:?}: {source}")]
    Value { name: String, source: ValueError },
}

impl SessionWeights {
    /// Maps every weight of a model, from the files named by hash in `blobs`, and shares mappings
    /// with other models.
    pub(crate) fn map(
        variant: &Variant,
        blobs: &Path,
        store: &WeightStore,
    ) -> Result<Self, SessionWeightsError> {
        let file_error = |hash| move |source| SessionWeightsError::File { hash, source };
        // ONNX Runtime reads the graph by path; the mapping is for the integrity check, since the
        // graph may contain small weights.
        let skeleton = MappedFile::open(&blobs.join(variant.skeleton.to_string()));
        let skeleton = Arc::new(skeleton.map_err(file_error(variant.skeleton))?);
        let mut files = vec![(variant.skeleton, skeleton)];
        let mut places: HashMap<ContentHash, usize> = HashMap::new();
        let mut values = Vec::with_capacity(variant.weights.len());
        for weight in &variant.weights {
            let hash = weight.hash;
            let name = &weight.name;
            let place = match places.get(&hash) {
                Some(place) => *place,
                None => {
                    let file = store.file(blobs.join(hash.to_string())).map_err(file_error(hash))?;
                    files.push((hash, file));
                    places.insert(hash, files.len() - 1);
                    files.len() - 1
                }
            };
            let too_short = || SessionWeightsError::TooShort { name: name.clone(), hash };
            let start = usize::try_from(weight.offset).map_err(|_| too_short())?;
            let end = usize::try_from(weight.bytes)
                .ok()
                .and_then(|len| start.checked_add(len))
                .ok_or_else(too_short)?;
            let bytes = files[place].1.bytes().get(start..end).ok_or_else(too_short)?;
            let address = bytes.as_ptr().cast_mut();
            let len = bytes.len();
            // SAFETY: the same struct keeps the mapping alive as long as the value, and no code
            // writes to initialisers. Each weight starts at a multiple of 64 bytes in its file, and
            // mappings are aligned at least as strictly.
            let value = unsafe { OrtValue::over(address, len, weight.element_type, &weight.dimensions) };
            let value = value.map_err(|source| SessionWeightsError::Value { name: name.clone(), source })?;
            // SAFETY: as above: `SessionWeights` drops its values before its mappings, and sessions
            // hold the `SessionWeights`.
            values.push((name.clone(), Arc::new(unsafe { value.into_ort() })));
        }
        Ok(Self { values, files })
    }

    /// Starts checking the files against their hashes.
    pub(crate) fn check(&self, verified: &VerifiedFiles) -> Result<IntegrityCheck, IntegrityError> {
        verified.check(self.files.clone())
    }

    /// The weights, by the names of their initialisers.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &Arc<DynValue>)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}
