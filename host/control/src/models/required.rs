//! Required copies: models that stay in the memory of devices whether or not calls use them
//! (`copies_min` of their manifest).
//!
//! The scheduler chooses the devices, so one node gives it the list. Each node loads the models that
//! the scheduler requires of its devices, and warms them up: a first run with generated inputs makes
//! the engine allocate, compile and initialise what later runs use.

use super::{ModelEntry, Models};
use crate::devices::NodeDevice;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};
use weir_cluster::{CopyLoad, Placements};
use weir_device::Arena;
use weir_inference::{Content, GeneratedInputs, InferenceError, Pin, RunRequest};
use weir_sandbox::OpenError;
use weir_scheduler::RequiredModel;
use weir_telemetry::Trace;
use weir_types::api::EventKind;
use weir_types::{ModelId, Ordinal, TenantId};

/// The interval at which the scheduler gets the list. A copy whose load has ended and that is missing
/// again is not loaded before the next interval.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time after which a load has failed.
const LOAD_TIME_MAX: Duration = Duration::from_secs(600);
/// The time limit of a first run.
const WARM_UP_TIME_MAX: Duration = Duration::from_secs(60);
/// The first run waits for the runs of calls: 1 is the most urgent priority.
const WARM_UP_PRIORITY: u32 = u32::MAX;

/// Gives the scheduler the required models where `leads` holds, and loads those that it requires of
/// this node's devices, until `models` is dropped.
pub async fn load_required(
    models: Weak<Models>,
    arena: Arena,
    placements: Arc<Placements>,
    leads: impl Fn() -> bool,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut loading = FuturesUnordered::new();
    let mut resting: BTreeSet<(Ordinal, ModelId)> = BTreeSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                resting.clear();
                let Some(models) = models.upgrade() else { return };
                if leads() {
                    placements.require(models.required());
                }
            }
            () = placements.missing_changed() => {}
            Some(copy) = loading.next() => {
                resting.insert(copy);
            }
        }
        while let Some(load) = placements.begin_load(&resting) {
            let Some(models) = models.upgrade() else { return };
            let arena = arena.clone();
            let placements = placements.clone();
            loading.push(async move {
                let copy = (load.device(), load.model().clone());
                models.load_copy(load, &arena, &placements).await;
                copy
            });
        }
    }
}

impl Models {
    /// The models of which devices are to have copies: the active versions and canaries with
    /// `copies_min`. The first ones of all tenants come first, since the list is limited.
    fn required(&self) -> Vec<RequiredModel> {
        let known = self.read_known();
        let serving = known.models().flat_map(|(_, _, versions)| {
            let roles = versions.roles();
            versions.entries().values().filter(move |entry| roles.answers(entry.record.version))
        });
        let required = serving
            .filter(|entry| entry.record.manifest.copies_min > 0 && entry.content() == Content::Network);
        let mut required: Vec<_> = required
            .map(|entry| RequiredModel {
                demand: entry.demand(),
                copies_min: entry.record.manifest.copies_min,
            })
            .collect();
        required.sort_unstable_by(|a, b| a.demand.model.cmp(&b.demand.model));
        let mut place = 0;
        let mut before: Option<TenantId> = None;
        required.sort_by_cached_key(|required| {
            let tenant = &required.demand.model.tenant;
            place = if before.as_ref() == Some(tenant) { place + 1 } else { 0 };
            before = Some(tenant.clone());
            place
        });
        required
    }

    /// Loads a required model onto a device, and warms it up. After a failure, the scheduler chooses
    /// another device.
    async fn load_copy(&self, load: CopyLoad, arena: &Arena, placements: &Placements) {
        let Some(device) = self.devices.get(load.device()) else { return };
        let model = load.model().clone();
        let entry = self.get(&model.tenant, &model.name, Some(model.version));
        // Deleted, or not known to this node yet: the list changes, or a later look finds it.
        let Ok(entry) = entry else { return };
        let why = match timeout(LOAD_TIME_MAX, self.load_onto(&entry, device, placements)).await {
            Ok(Ok(pin)) => return self.warm_up(&entry, &pin, device, arena).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the load took more than {} s", LOAD_TIME_MAX.as_secs()),
        };
        // A model that was deleted meanwhile is no failure.
        if !self.is_current(&entry.source.key) || !load.fail() {
            return;
        }
        let ModelId { name, version, .. } = &model;
        let name_of_device = &*device.name;
        let text =
            format!("{name_of_device} could not load its copy of model {name}:{version} (copies_min): {why}");
        tracing::warn!(%model, device = name_of_device, why, "a device could not load a required model");
        self.note_model(EventKind::Fault, &model, text);
    }

    async fn load_onto(
        &self,
        entry: &ModelEntry,
        device: &NodeDevice,
        placements: &Placements,
    ) -> Result<Pin, OpenError> {
        let loaded = self.load_current(entry, device, placements, &Trace::none()).await;
        if let Err(OpenError::Inference(InferenceError::Unsupported(why))) = &loaded {
            entry.refusals.note(device.platform, why.clone());
        }
        loaded
    }

    /// Runs a model once with generated inputs, on the account of its tenant. A model that cannot run
    /// them is as usable as without the run.
    async fn warm_up(&self, entry: &ModelEntry, pin: &Pin, device: &NodeDevice, arena: &Arena) {
        let mask = entry.record.manifest.batching.mask.as_deref();
        let made = GeneratedInputs::smallest(pin.signature(), mask);
        let arena = arena.tenant(&entry.source.id().tenant);
        let made = tokio::task::spawn_blocking(move || made?.make(1, &arena)).await;
        let Ok(Ok(inputs)) = made else { return };
        let request = RunRequest { inputs, priority: WARM_UP_PRIORITY, ..RunRequest::default() };
        let id = entry.source.id();
        match timeout(WARM_UP_TIME_MAX, pin.run(request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(InferenceError::Unsupported(why))) => {
                entry.note_unsupported(device.platform, &why);
            }
            Ok(Err(error)) if matches!(error, InferenceError::WorkerLost(_)) || error.is_device_loss() => {
                let ModelId { name, version, .. } = id;
                let text = format!("the first run of model {name}:{version} (copies_min) failed: {error}");
                self.note_model(EventKind::Fault, id, text);
            }
            Ok(Err(error)) => tracing::debug!(model = %id, %error, "a model was not warmed up"),
            Err(_) => tracing::debug!(model = %id, "a model was not warmed up in time"),
        }
    }
}
