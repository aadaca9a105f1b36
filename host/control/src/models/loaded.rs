//! Models that a guest loads from its own memory: checked and optimised like a push, and available
//! while the guest holds them.

use super::pinned::{ModelPin, RanOn};
use super::{ModelPushError, Models};
use crate::devices::NodeDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tempfile::TempDir;
use weir_cluster::Placements;
use weir_inference::{InferenceError, Meter, ModelKey, ModelSource};
use weir_storage::blobs::STAGED_PREFIX;
use weir_telemetry::{LoadReason, Trace};
use weir_types::{Batching, ModelId, Name, Platforms, TenantId, Version};

/// The name of these models in lists. A pushed model never has version 0.
const NAME: &str = "loaded";
const VERSION: Version = Version(0);

/// The reason why a guest's model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelLoadError {
    /// The model was not prepared, or its files were not written.
    #[error(transparent)]
    Prepare(#[from] ModelPushError),
    /// Loading the prepared model into device memory failed.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

/// A guest's model in device memory, until this is dropped.
pub struct LoadedModel {
    id: ModelId,
    /// Keeps the model in device memory, and runs it.
    pub pin: ModelPin,
    // Dropped after the pin.
    _loaded: GuestModelFiles,
}

impl LoadedModel {
    /// The model's id, which no pushed model has.
    pub fn id(&self) -> &ModelId {
        &self.id
    }
}

/// The files and device memory of a guest's model. Dropping it after the last user removes both.
struct GuestModelFiles {
    models: Arc<Models>,
    key: ModelKey,
    files: Option<TempDir>,
}

impl GuestModelFiles {
    /// Checks and optimises the model in a process with limited resources. Its device usage counts
    /// to `meter`. Dropping the future aborts this.
    async fn prepare(
        models: &Arc<Models>,
        tenant: &TenantId,
        meter: &Meter,
        onnx: Vec<u8>,
    ) -> Result<(Arc<ModelSource>, Self), ModelLoadError> {
        let folder = models.blobs().folder().to_owned();
        let staged = tokio::task::spawn_blocking(move || {
            let files = tempfile::Builder::new().prefix(STAGED_PREFIX).tempdir_in(folder)?;
            std::fs::write(files.path().join("upload"), onnx)?;
            Ok(files)
        });
        let files: std::io::Result<TempDir> = staged.await.map_err(std::io::Error::other).flatten();
        let files = files.map_err(ModelPushError::Io)?;
        let prepared = models.store.prepare_in(tenant, &files, models.devices.preparer()).await?;
        let name = Name::new(NAME).map_err(|error| ModelPushError::Io(std::io::Error::other(error)))?;
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

impl Models {
    /// Loads a model from the guest's bytes into device memory, until the result is dropped. The
    /// caller checks the guest's permission and bounds the time. The model runs on the first device
    /// of one of the platforms `on`, and its device usage counts to `meter`.
    pub async fn load_for_guest(
        self: &Arc<Self>,
        tenant: &TenantId,
        onnx: Vec<u8>,
        on: Platforms,
        meter: &Meter,
        placements: &Arc<Placements>,
        trace: &Trace,
    ) -> Result<LoadedModel, ModelLoadError> {
        if !self.devices.iter().any(|device| on.contains(device.platform)) {
            let why = "this node has no device of the requested kind";
            return Err(InferenceError::Unsupported(why.into()).into());
        }
        let (source, loaded) = GuestModelFiles::prepare(self, tenant, meter, onnx).await?;
        let runs = |device: &&Arc<NodeDevice>| on.contains(device.platform) && device.runs(&source.prepared);
        let device = self.devices.iter().find(runs).ok_or_else(|| {
            let why = on.iter().find_map(|platform| source.prepared.why_not(platform));
            InferenceError::Unsupported(
                why.unwrap_or("the model was not prepared for the requested device").into(),
            )
        })?;
        let pin = self.load(&source, device, placements, trace).await?;
        let cold_start = self.count_cold_start(&pin, LoadReason::First);
        let ran_on = RanOn { device: device.name.clone(), instead: None };
        let pin = ModelPin::new(pin, ran_on, device, (self, placements), None, None);
        Ok(LoadedModel { id: source.id().clone(), pin: pin.with_cold_start(cold_start), _loaded: loaded })
    }
}

impl Drop for GuestModelFiles {
    fn drop(&mut self) {
        self.models.let_go(&self.key);
        if let (Some(files), Ok(runtime)) = (self.files.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn_blocking(move || drop(files));
        }
    }
}
