//! Bringing models into device memory: those that an invocation's function is granted, and those that are asked for by themselves.

use super::loaded::{LoadError, Loaded};
use super::{ModelEntry, Models, ModelsError};
use crate::dispatch::Placements;
use crate::registry::Deployment;
use crate::telemetry::{ColdStart, Phase, Served, Trace};
use std::sync::Arc;
use tracing::Instrument;
use weir_inference::{InferenceError, ModelSource, Pin};
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
    /// Where its runs are counted; none where it is no model of the node's.
    pub(crate) served: Option<Served>,
    /// The files of a model that a guest has loaded.
    pub(super) _loaded: Option<Loaded>,
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

    /// Bytes of models that the function may load from its own memory; 0: it may not.
    pub(crate) fn loaded_model_bytes_max(&self) -> u64 {
        self.deployment.manifest.limits.loaded_model_bytes
    }

    /// Bring the model into device memory if it is not there yet.
    pub(crate) async fn open(&self, wanted: &ModelRef, trace: &Trace) -> Result<Opened, OpenError> {
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
        let pin = self.models.pin(&entry, &self.placements, trace).await?;
        let (id, served) = (entry.source.id().clone(), Some(entry.served.clone()));
        Ok(Opened { id, signature: pin.signature().clone(), pin, served, _loaded: None })
    }

    /// Bring a model that the guest has the bytes of into device memory, until it is dropped. The caller has checked that the guest may, and
    /// bounds the time that it takes.
    pub(crate) async fn load(&self, onnx: Vec<u8>, trace: &Trace) -> Result<Opened, LoadError> {
        let tenant = &self.deployment.id.tenant;
        let (source, loaded) = Loaded::prepare(&self.models, tenant, onnx).await?;
        let pin = self.models.load(&source, &self.placements, trace).await?;
        Ok(Opened {
            id: source.id().clone(),
            signature: pin.signature().clone(),
            pin,
            served: None,
            _loaded: Some(loaded),
        })
    }
}

impl Models {
    /// Keep a model in device memory, loading it if it is not there yet. The caller has been placed with it.
    pub(crate) async fn pin(
        &self,
        entry: &ModelEntry,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, OpenError> {
        let key = &entry.source.key;
        if let Some(pin) = self.cache.pin(key) {
            return Ok(pin);
        }
        if self.blobs().is_shared()
            && let Err(error) = self.store.fetch(&entry.source.prepared).await
        {
            return Err(InferenceError::Unavailable(error.to_string().into()).into());
        }
        let pin = self.load(&entry.source, placements, trace).await?;
        // Deleted while it was loaded: whoever deleted it may have found nothing to unload yet.
        if !self.is_current(key) {
            self.let_go(key);
            let ModelId { name, version, .. } = &key.id;
            return Err(OpenError::NotFound(format!("model {name}:{version} was deleted meanwhile")));
        }
        Ok(pin)
    }

    /// Have a model leave device memory with its last pin; the next who asks for it has it loaded anew.
    pub(crate) fn unload(&self, entry: &ModelEntry, placements: &Placements) {
        // Ready once its memory is free, which nobody waits for.
        drop(self.cache.unload(&entry.source.key));
        placements.residents(&self.cache.resident(), None);
    }

    /// Load the model, evicting what the scheduler allows, and tell it what came of that.
    async fn load(
        &self,
        source: &Arc<ModelSource>,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, InferenceError> {
        let acquired = loop {
            let mut freed = std::pin::pin!(placements.freed());
            freed.as_mut().enable();
            let victims = placements.victims();
            let acquiring = self.cache.acquire(source, &victims);
            let acquired = acquiring.instrument(trace.phase(Phase::ModelLoad)).await;
            // A scheduler that has taken over from another does not know what runs already. The caller's deadline bounds the wait.
            match &acquired {
                Err(InferenceError::NoRoom { .. }) if placements.is_held_up() => freed.await,
                _ => break acquired,
            }
        };
        let load_time = acquired.as_ref().ok().and_then(Pin::load_time);
        placements.residents(&self.cache.resident(), load_time.map(|time| (source.id(), time)));
        if let Some(load_time) = load_time {
            self.metrics.phase(Phase::ModelLoad, load_time);
            self.metrics.cold_start(ColdStart::Model);
        }
        acquired
    }
}
