//! Pins models in device memory, and loads them first if necessary.

use super::pinned::{Beside, ModelPin, RanOn};
use super::placing::DevicePick;
use super::trial::CountedRun;
use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use std::sync::Arc;
use std::time::Instant;
use weir_cluster::{HealthChange, LocalPlacement, Placements};
use weir_inference::{Health, InferenceError, ModelSource, Pin};
use weir_sandbox::OpenError;
use weir_telemetry::events::NewEvent;
use weir_telemetry::{AttributeValue, ColdStart, LoadReason, LoadSource, ModelColdStart, Phase, Trace};
use weir_types::Ordinal;
use weir_types::api::{EventKind, EventResource};
use weir_types::{ModelId, Platform};

impl Models {
    /// Pins a model in device memory for a run, and loads it first if necessary. The caller's
    /// placement includes the model.
    pub async fn pin(
        self: &Arc<Self>,
        entry: &Arc<ModelEntry>,
        placement: LocalPlacement,
        placements: &Arc<Placements>,
        trace: &Trace,
    ) -> Result<ModelPin, OpenError> {
        let counted = CountedRun::begin(entry);
        let pinned = self.pin_ahead(entry, placement, placements, trace).await;
        counted.opened(&pinned);
        pinned
    }

    /// Like [`pin`](Self::pin), before there is a run: a failure does not count as one of a run.
    pub async fn pin_ahead(
        self: &Arc<Self>,
        entry: &Arc<ModelEntry>,
        placement: LocalPlacement,
        placements: &Arc<Placements>,
        trace: &Trace,
    ) -> Result<ModelPin, OpenError> {
        let mut refused: Option<Arc<str>> = None;
        loop {
            let Some(DevicePick { device, instead }) = self.choose(entry, placement.device) else {
                let why = refused.unwrap_or_else(|| "no device of the node can run the model".into());
                return Err(InferenceError::Unsupported(why).into());
            };
            let recorder = placements.recorder(placement.invocation, device.ordinal);
            let asked = Instant::now();
            match self.pin_on(entry, device, placement, placements, trace).await {
                Ok((pin, cold_start)) => {
                    if let Some(recorder) = &recorder
                        && pin.load_time().is_some()
                    {
                        recorder.loaded(asked);
                    }
                    let ran_on = RanOn { device: device.name.clone(), instead: instead.or(refused) };
                    let beside = self.beside(entry, device, placement, trace);
                    let pin = ModelPin::new(pin, ran_on, device, (self, placements), beside, recorder);
                    return Ok(pin.counted_for(entry).with_cold_start(cold_start));
                }
                // A platform refuses a model only once, so the loop ends.
                Err(OpenError::Inference(InferenceError::Unsupported(why)))
                    if entry.refusals.note(device.platform, why.clone()) =>
                {
                    let model = entry.source.id();
                    tracing::warn!(%model, device = &*device.name, why = &*why, "a device rejected a model that was prepared for it");
                    refused = Some(self.instead(entry, &device.name, &why));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`pin`](Self::pin), on one device. Also returns the load that the caller has waited for.
    pub(super) async fn pin_on(
        &self,
        entry: &ModelEntry,
        device: &NodeDevice,
        placement: LocalPlacement,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<(Pin, Option<ModelColdStart>), OpenError> {
        let key = &entry.source.key;
        if placement.device.is_some_and(|placed| placed != device.ordinal) {
            placements.grant_beside(placement.invocation, device.ordinal, key.id.clone());
        }
        if let Some(pin) = device.cache.pin(key) {
            return Ok((pin, None));
        }
        let reason = entry.loaded_devices.reason(device.ordinal);
        let pin = self.load_current(entry, device, placements, trace).await?;
        let cold_start = self.count_cold_start(&pin, reason);
        if let Some(cold_start) = cold_start {
            entry.served.cold_start(cold_start);
        }
        Ok((pin, cold_start))
    }

    /// Fetches the files of a model and loads it onto a device.
    pub(super) async fn load_current(
        &self,
        entry: &ModelEntry,
        device: &NodeDevice,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, OpenError> {
        let key = &entry.source.key;
        if self.blobs().is_shared()
            && let Err(error) = self.fetch(entry, device.platform, placements).await
        {
            return Err(InferenceError::Unavailable(error.to_string().into()).into());
        }
        let pin = self.load(&entry.source, device, placements, trace).await?;
        entry.loaded_devices.note(device.ordinal);
        // Deleted during the load: the deletion may have found no model to unload yet.
        if !self.is_current(key) {
            self.let_go(key);
            let ModelId { name, version, .. } = &key.id;
            return Err(OpenError::NotFound(format!("model {name}:{version} was deleted meanwhile")));
        }
        Ok(pin)
    }

    /// The node's CPU as a fallback for runs that an accelerator does not support.
    fn beside(
        &self,
        entry: &Arc<ModelEntry>,
        device: &NodeDevice,
        placement: LocalPlacement,
        trace: &Trace,
    ) -> Option<Beside> {
        let cpu = self.devices.cpu().filter(|cpu| cpu.ordinal != device.ordinal)?;
        entry.runs_on().contains(Platform::Cpu).then(|| Beside {
            entry: entry.clone(),
            cpu: cpu.clone(),
            instead_of: device.platform,
            placement,
            trace: trace.clone(),
        })
    }

    /// Unloads a model from device memory once its last pin is dropped. The next use loads it
    /// again.
    pub fn unload(&self, entry: &ModelEntry, placements: &Placements) {
        for device in self.devices.iter() {
            self.unload_from(entry, device, placements);
        }
    }

    /// Like [`unload`](Self::unload), from one device.
    pub(super) fn unload_from(&self, entry: &ModelEntry, device: &NodeDevice, placements: &Placements) {
        // The future completes once the memory is free; this caller does not wait for it.
        drop(device.cache.unload(&entry.source.key));
        self.note_residents(device.ordinal, placements);
        self.staging.note(entry.source.id());
    }

    /// Reports a device's health to the scheduler.
    pub fn note_health(&self, ordinal: Ordinal, placements: &Placements) {
        let Some(device) = self.devices.get(ordinal) else { return };
        let (kind, text) = match placements.note_health(ordinal, &device.cache.health()) {
            None => return,
            Some(HealthChange::Lost) => {
                self.metrics.devices.lost(&device.name);
                let why = match device.health() {
                    Health::Lost(why) => format!(": {why}"),
                    Health::Up => String::new(),
                };
                (EventKind::DeviceLost, format!("device {} was lost{why}", device.name))
            }
            Some(HealthChange::Recovered) => {
                (EventKind::DeviceRecovered, format!("device {} works again", device.name))
            }
        };
        self.metrics.events.record(NewEvent {
            tenant: None,
            kind,
            resource: EventResource::Device,
            name: device.name.as_ref().to_owned(),
            text,
            repeats: Some("health"),
        });
    }

    /// Records an event of a model. Repetitions within a minute are counted.
    pub(super) fn note_model(&self, kind: EventKind, model: &ModelId, text: String) {
        let ModelId { tenant, name, version } = model;
        self.metrics.events.record(NewEvent {
            tenant: Some(tenant.clone()),
            kind,
            resource: EventResource::Model,
            name: format!("{name}:{version}"),
            text,
            repeats: Some("model"),
        });
    }

    /// Reports a device's memory for models to the scheduler.
    pub fn note_capacity(&self, ordinal: Ordinal, placements: &Placements) {
        let Some(device) = self.devices.get(ordinal) else { return };
        placements.note_capacity(ordinal, &device.cache.capacity());
    }

    /// Loads the model, evicting models as the scheduler allows, and reports the result to the
    /// scheduler.
    pub(super) async fn load(
        &self,
        source: &Arc<ModelSource>,
        device: &NodeDevice,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, InferenceError> {
        let NodeDevice { ordinal, cache, .. } = device;
        let mut is_last = false;
        let acquired = loop {
            let mut loads = cache.loads();
            let mut freed = std::pin::pin!(placements.freed());
            freed.as_mut().enable();
            let mut unpinned = std::pin::pin!(cache.unpinned());
            unpinned.as_mut().enable();
            let victims = placements.victims(*ordinal);
            let acquiring = cache.acquire(source, &victims);
            let mut loading = trace.phase(Phase::ModelLoad);
            loading.set("weir.model", || AttributeValue::Name(source.id().name.clone()));
            let acquired = loading.around(acquiring).await;
            // A scheduler that took over from another does not know the running invocations. The
            // caller's deadline bounds the wait.
            match &acquired {
                Err(InferenceError::NoRoom { .. }) if placements.is_held_up(*ordinal) => freed.await,
                // A run keeps its model until the device has stopped it, which may be after the end
                // of its invocation.
                Err(InferenceError::NoRoom { .. }) if cache.is_any_pinned(&victims) => unpinned.await,
                // The scheduler also does not know models whose load has outlasted the call, or was
                // not requested by any call.
                Err(InferenceError::NoRoom { .. })
                    if cache.is_any_loading() || loads.has_changed().unwrap_or_default() =>
                {
                    // The cache and the sender exist, so this cannot fail.
                    let _ = loads.changed().await;
                    self.note_residents(*ordinal, placements);
                }
                // The scheduler also does not know models whose load has just completed. These
                // loads are recorded by now, so the models are evicted unless an invocation needs
                // them.
                Err(InferenceError::NoRoom { .. }) => {
                    self.note_residents(*ordinal, placements);
                    // Another load may have given up the same models meanwhile.
                    if !placements.give_up_unneeded(*ordinal) && placements.victims(*ordinal) == victims {
                        // A run may have ended since this attempt.
                        if is_last {
                            break acquired;
                        }
                        is_last = true;
                    }
                }
                _ => break acquired,
            }
        };
        if acquired.as_ref().is_err_and(InferenceError::is_device_loss) {
            self.note_health(*ordinal, placements);
        }
        // A load that is still in progress is reported later, by the task that watches the device.
        self.note_residents(*ordinal, placements);
        acquired
    }

    /// Counts a cold start if a call has waited for the load of a model.
    pub(super) fn count_cold_start(&self, pin: &Pin, reason: LoadReason) -> Option<ModelColdStart> {
        let load_time = pin.load_time()?;
        self.metrics.phase(Phase::ModelLoad, load_time);
        self.metrics.cold_start(ColdStart::Model);
        Some(ModelColdStart { reason, from: LoadSource::from_tier(pin.load_tier()) })
    }
}
