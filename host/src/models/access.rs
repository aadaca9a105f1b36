//! What one invocation may do with models: open those that its function is granted.

use super::{ModelEntry, Models, ModelsError};
use crate::dispatch::Placements;
use crate::registry::Deployment;
use crate::telemetry::{ColdStart, Metrics, Phase, Trace};
use std::sync::Arc;
use tracing::Instrument;
use weir_inference::{InferenceError, Pin};
use weir_types::{ModelId, ModelRef, Signature};

/// The models of one invocation. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ModelAccess {
    models: Arc<Models>,
    deployment: Arc<Deployment>,
    placements: Arc<Placements>,
}

/// A model in device memory, kept there until this is dropped.
pub(crate) struct Opened {
    pub(crate) id: ModelId,
    pub(crate) signature: Signature,
    pub(crate) pin: Pin,
}

/// Why a model was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{0}")]
    NotGranted(String),
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Inference(#[from] InferenceError),
}

impl ModelAccess {
    pub(crate) fn new(models: Arc<Models>, deployment: Arc<Deployment>, placements: Arc<Placements>) -> Self {
        Self { models, deployment, placements }
    }

    /// Bring the model into device memory if it is not there yet.
    pub(crate) async fn open(
        &self,
        wanted: &ModelRef,
        metrics: &Metrics,
        trace: &Trace,
    ) -> Result<Opened, OpenError> {
        if !self.deployment.manifest.models.iter().any(|grant| grant.covers(wanted)) {
            // The same whether or not it exists: what is not granted is not told about.
            let text =
                format!("model {wanted} is not granted to this function; add it to models in the manifest");
            return Err(OpenError::NotGranted(text));
        }
        let entry =
            self.models.get(&self.deployment.id.tenant, &wanted.name, wanted.version).map_err(|error| {
                match error {
                    ModelsError::NoModel(_) | ModelsError::NoVersion { .. } => {
                        OpenError::NotFound(error.to_string())
                    }
                    other => OpenError::Inference(InferenceError::Unavailable(other.to_string().into())),
                }
            })?;
        let key = &entry.source.key;
        let pin = match self.models.cache.pin(key) {
            Some(pin) => pin,
            None => {
                let pin = self.load(&entry, metrics, trace).await?;
                // Deleted while it was loaded: whoever deleted it may have found nothing to unload yet.
                if !self.models.is_current(key) {
                    self.models.let_go(key);
                    return Err(OpenError::NotFound(format!("model {wanted} was deleted meanwhile")));
                }
                pin
            }
        };
        Ok(Opened { id: key.id.clone(), signature: pin.signature().clone(), pin })
    }

    /// Load the model, evicting what the scheduler allows, and tell it what came of that.
    async fn load(
        &self,
        entry: &ModelEntry,
        metrics: &Metrics,
        trace: &Trace,
    ) -> Result<Pin, InferenceError> {
        if self.models.blobs().is_shared()
            && let Err(error) = self.models.store.fetch(&entry.source.prepared).await
        {
            return Err(InferenceError::Unavailable(error.to_string().into()));
        }
        let victims = self.placements.victims();
        let acquired = self
            .models
            .cache
            .acquire(&entry.source, &victims)
            .instrument(trace.phase(Phase::ModelLoad))
            .await;
        let load_time = acquired.as_ref().ok().and_then(Pin::load_time);
        self.placements
            .residents(&self.models.cache.resident(), load_time.map(|time| (entry.source.id(), time)));
        if let Some(load_time) = load_time {
            metrics.phase(Phase::ModelLoad, load_time);
            metrics.cold_start(ColdStart::Model);
        }
        acquired
    }
}
