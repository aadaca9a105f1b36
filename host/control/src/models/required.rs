//! Required copies: models that stay in the memory of devices whether or not calls use them
//! (`copies_min` of their manifest).
//!
//! The scheduler chooses the devices, so one node gives it the list. Each node loads the models that
//! the scheduler requires of its devices, and warms them up: a first run with generated inputs makes
//! the engine allocate, compile and initialise what later runs use.

use super::{ModelEntry, Models};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use weir_cluster::Placements;
use weir_device::Arena;
use weir_inference::{Content, GeneratedInputs, InferenceError, Pin, RunRequest};
use weir_sandbox::OpenError;
use weir_scheduler::RequiredModel;
use weir_telemetry::Trace;
use weir_types::api::EventKind;
use weir_types::{ModelId, Ordinal};

/// The interval at which the scheduler gets the list, and missing copies are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of copies that load at the same time, so that loads for calls are not held up.
const LOADS_MAX: usize = 2;
/// The time after which a load has failed.
const LOAD_TIME_MAX: Duration = Duration::from_secs(600);

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
    let mut loading_copies = BTreeSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let Some(models) = models.upgrade() else { return };
                if leads() {
                    placements.require(models.required());
                }
            }
            () = placements.missing_changed() => {}
            Some(copy) = loading.next() => {
                loading_copies.remove(&copy);
            }
        }
        for copy in placements.missing() {
            if loading_copies.len() < LOADS_MAX && loading_copies.insert(copy.clone()) {
                let Some(models) = models.upgrade() else { return };
                let placements = placements.clone();
                let arena = arena.clone();
                loading.push(async move {
                    models.load_copy(&copy, &arena, &placements).await;
                    copy
                });
            }
        }
    }
}

impl Models {
    /// The models of which devices are to have copies, by name: the active versions and canaries with
    /// `copies_min`.
    fn required(&self) -> Vec<RequiredModel> {
        let known = self.read_known();
        let serving = known.models().flat_map(|(_, _, versions)| {
            let roles = versions.roles();
            versions.entries().values().filter(move |entry| roles.serves(entry.record.version))
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
        required
    }

    /// Loads a required model onto a device. After a failure, the scheduler chooses another device.
    async fn load_copy(&self, (ordinal, model): &(Ordinal, ModelId), arena: &Arena, placements: &Placements) {
        let entry = self.get(&model.tenant, &model.name, Some(model.version));
        // Deleted, or not known to this node yet: the list changes, or the next look finds it.
        let Ok(entry) = entry else { return };
        let load = async {
            let pin = self.load_onto(&entry, *ordinal, placements).await?;
            warm_up(&entry, &pin, arena).await;
            Ok::<_, OpenError>(())
        };
        let loaded = tokio::time::timeout(LOAD_TIME_MAX, load).await;
        let why = match loaded {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the load took more than {} s", LOAD_TIME_MAX.as_secs()),
        };
        // A model that was deleted meanwhile is no failure.
        if !placements.is_required(*ordinal, model) || !self.is_current(&entry.source.key) {
            return;
        }
        let ModelId { name, version, .. } = model;
        let device = self.device_name(*ordinal);
        let text = format!("{device} could not load its copy of model {name}:{version} (copies_min): {why}");
        tracing::warn!(%model, device = &*device, why, "a device could not load a required model");
        self.note_model(EventKind::Fault, model, text);
        placements.load_failed(*ordinal, model.clone());
    }

    async fn load_onto(
        &self,
        entry: &ModelEntry,
        ordinal: Ordinal,
        placements: &Placements,
    ) -> Result<Pin, OpenError> {
        let device = self.devices.get(ordinal).unwrap_or(self.devices.first());
        let loaded = self.load_current(entry, device, placements, &Trace::none()).await;
        if let Err(OpenError::Inference(InferenceError::Unsupported(why))) = &loaded {
            entry.refusals.note(device.platform, why.clone());
        }
        loaded
    }
}

/// Runs a model once with generated inputs. A model that cannot run them is as usable as without the
/// run.
async fn warm_up(entry: &ModelEntry, pin: &Pin, arena: &Arena) {
    let mask = entry.record.manifest.batching.mask.as_deref();
    let made = GeneratedInputs::smallest(pin.signature(), mask);
    let arena = arena.clone();
    let made = tokio::task::spawn_blocking(move || made?.make(1, &arena)).await;
    let Ok(Ok(inputs)) = made else { return };
    let request = RunRequest { inputs, ..RunRequest::default() };
    if let Err(error) = pin.run(request).await {
        tracing::debug!(model = %entry.source.id(), %error, "a model was not warmed up");
    }
}
