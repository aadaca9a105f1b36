//! Models that a guest loads from its own memory: checked and optimised like a push, and available
//! while the guest holds them.

use super::{Models, PushError};
use crate::blobs::STAGED_PREFIX;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tempfile::TempDir;
use weir_inference::{InferenceError, Meter, ModelKey, ModelSource};
use weir_types::{Batching, ModelId, Name, TenantId, Version};

/// The name of these models in lists. A pushed model never has version 0.
const NAME: &str = "loaded";
const VERSION: Version = Version(0);

/// The reason why a guest's model was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Prepare(#[from] PushError),
    #[error(transparent)]
    Model(#[from] InferenceError),
}

/// The files and device memory of a guest's model. Dropping it after the last user removes both.
pub(crate) struct Loaded {
    models: Arc<Models>,
    key: ModelKey,
    files: Option<TempDir>,
}

impl Loaded {
    /// Checks and optimises the model in a process with limited resources. Its device usage counts
    /// to `meter`. Dropping the future aborts this.
    pub(super) async fn prepare(
        models: &Arc<Models>,
        tenant: &TenantId,
        meter: &Meter,
        onnx: Vec<u8>,
    ) -> Result<(Arc<ModelSource>, Self), LoadError> {
        let folder = models.blobs().folder().to_owned();
        let staged = tokio::task::spawn_blocking(move || {
            let files = tempfile::Builder::new().prefix(STAGED_PREFIX).tempdir_in(folder)?;
            std::fs::write(files.path().join("upload"), onnx)?;
            Ok(files)
        });
        let files: std::io::Result<TempDir> = staged.await.map_err(std::io::Error::other).flatten();
        let files = files.map_err(PushError::Io)?;
        let prepared = models.store.prepare_in(&files, models.devices.preparer()).await?;
        let name = Name::new(NAME).map_err(|error| PushError::Io(std::io::Error::other(error)))?;
        let id = ModelId { tenant: tenant.clone(), name, version: VERSION };
        let key = ModelKey { id, generation: models.loads.fetch_add(1, Ordering::Relaxed) };
        let source = ModelSource {
            key: key.clone(),
            prepared: Arc::new(prepared),
            blobs: files.path().to_owned(),
            slots: Some(1),
            batching: Batching::default(),
            meter: meter.clone(),
        };
        Ok((Arc::new(source), Self { models: models.clone(), key, files: Some(files) }))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.models.let_go(&self.key);
        if let (Some(files), Ok(runtime)) = (self.files.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn_blocking(move || drop(files));
        }
    }
}
