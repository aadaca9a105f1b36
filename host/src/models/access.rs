//! What one invocation may do with models: open those that its function is granted.

use super::{Models, ModelsError};
use crate::telemetry::{ColdStart, Metrics, Phase, Trace};
use std::sync::Arc;
use tracing::Instrument;
use weir_inference::{InferenceError, Pin};
use weir_types::{FunctionManifest, ModelId, ModelRef, Signature, TenantId};

/// The models of one invocation.
pub(crate) struct ModelAccess {
    models: Arc<Models>,
    tenant: TenantId,
    manifest: Arc<FunctionManifest>,
    /// What the scheduler lets go to make room for the invocation's models.
    evict: Vec<ModelId>,
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
    pub(crate) fn new(models: Arc<Models>, tenant: TenantId, manifest: Arc<FunctionManifest>, evict: Vec<ModelId>) -> Self {
        Self { models, tenant, manifest, evict }
    }

    /// Bring the model into device memory if it is not there yet.
    pub(crate) async fn open(&self, wanted: &ModelRef, metrics: &Metrics, trace: &Trace) -> Result<Opened, OpenError> {
        if !self.manifest.models.iter().any(|grant| grant.covers(wanted)) {
            // The same whether or not it exists: what is not granted is not told about.
            let text = format!("model {wanted} is not granted to this function; add it to models in the manifest");
            return Err(OpenError::NotGranted(text));
        }
        let entry = self.models.get(&self.tenant, &wanted.name, wanted.version).map_err(|error| match error {
            ModelsError::NoModel(_) | ModelsError::NoVersion { .. } => OpenError::NotFound(error.to_string()),
            other => OpenError::Inference(InferenceError::Unavailable(other.to_string().into())),
        })?;
        let acquiring = self.models.cache.acquire(&entry.source, &self.evict);
        let pin = acquiring.instrument(trace.phase(Phase::ModelLoad)).await?;
        if let Some(load_time) = pin.load_time() {
            metrics.phase(Phase::ModelLoad, load_time);
            metrics.cold_start(ColdStart::Model);
        }
        Ok(Opened { id: entry.source.id.clone(), signature: pin.signature().clone(), pin })
    }
}
